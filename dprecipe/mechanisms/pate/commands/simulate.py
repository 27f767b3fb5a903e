"""Simulated votes, by which to choose thresholds and noise without the private votes.

How much teachers agree is an assumption, as public as the recipe. Nothing here reads data.

Axes: Q queries, M classes, K classes but for the one agreed on, U quantiles of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dprecipe.mechanisms.pate.theory.votes import Voting
from dprecipe.privacy.divergence import Array

SKEW = 3
"""The skew of dissenters' votes: the first share u³ (0 < u < 1) of the other classes gets the share u of them."""

_QUANTILES = 128
_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class Agreement:
    """The share of teachers that agree on a query's class is uniform on [low, high]. `student`: the chance that the
    student of an interactive run knows that class before it is answered.

    Raises:
        ValueError: not 0 <= low <= high <= 1, or `student` is no chance.
    """

    low: float = 0.5
    high: float = 1.0
    student: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"expected 0 <= low <= high <= 1, got {self.low} and {self.high}")
        if not 0 <= self.student <= 1:
            raise ValueError(f"expected a student from 0 to 1, got {self.student}")


def simulate_counts(teachers: int, classes: int, queries: int, agreement: Agreement, seed: int) -> NDArray[np.int64]:
    """Simulates votes: (Q, M); each row sums to `teachers`. The same arguments give the same votes.

    Each query has a class of its own, drawn uniformly, and a share of agreement. Every teacher votes for that class
    with this chance, else for one of the others. On one query, the same few of these are likelier for all teachers.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    share_Q1 = random.uniform(agreement.low, agreement.high, (queries, 1))
    runners_up_K = np.diff((np.arange(classes) / (classes - 1)) ** (1 / SKEW))
    chances_QM = np.concatenate([share_Q1, (1 - share_Q1) * runners_up_K], axis=1)
    counts_QM = random.multinomial(teachers, chances_QM / chances_QM.sum(axis=1, keepdims=True))
    class_Q1 = random.integers(classes, size=(queries, 1))
    votes_QM: NDArray[np.int64] = np.take_along_axis(counts_QM, (np.arange(classes) - class_Q1) % classes, axis=1)
    return votes_QM


def plurality_chance(counts_QM: NDArray[np.int64], voting: Voting) -> Array:
    """Computes Pr[the answer is the class with the most votes], if the query is answered: (Q,), to about 5e-4.

    With z the noise of that class, it is the mean over quantiles of z of Π Pr[noise <= gap + z] over the other classes.
    If several classes have the most votes, the first counts.
    """
    quantiles_U = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    noise_U = voting.multiplier * _quantile(quantiles_U, voting.family)
    ordered_QM = -np.sort(-counts_QM, axis=1).astype(np.float64)
    gaps_QK = ordered_QM[:, :1] - ordered_QM[:, 1:]
    chances_Q = np.empty(len(gaps_QK))
    rows = max(1, _AT_ONCE // (gaps_QK.shape[1] * _QUANTILES))
    for start in range(0, len(gaps_QK), rows):
        ahead_QKU = (gaps_QK[start : start + rows, :, None] + noise_U) / voting.multiplier
        chances_Q[start : start + rows] = _below(ahead_QKU, voting.family).prod(axis=1).mean(axis=1)
    return chances_Q


def _quantile(chances: Array, family: str) -> Array:
    """Computes the inverse of `_below`."""
    if family == "gaussian":
        normal: Array = special.ndtri(chances)
        return normal
    laplace: Array = -np.sign(chances - 0.5) * np.log1p(-2 * np.abs(chances - 0.5))
    return laplace


def _below(values: Array, family: str) -> Array:
    """Computes Pr[noise of scale 1 <= value]."""
    if family == "gaussian":
        normal: Array = special.ndtr(values)
        return normal
    tail = np.exp(-np.abs(values)) / 2
    return np.where(values < 0, tail, 1 - tail)
