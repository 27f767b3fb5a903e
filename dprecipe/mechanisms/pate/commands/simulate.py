"""Votes of an ensemble that nobody has trained: what thresholds and noise are chosen by, in place of private votes.

How much teachers agree is an assumption that someone states, and public like the recipe. Nothing here reads data.

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
"""Of the dissenters' votes the first share u³ (0 < u < 1) of the other classes gets the share u: most goes to few."""

_QUANTILES = 128
_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class Agreement:
    """The share of teachers that agree on a query's class is uniform on [low, high].

    Raises:
        ValueError: not 0 <= low <= high <= 1.
    """

    low: float = 0.5
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"expected 0 <= low <= high <= 1, got {self.low} and {self.high}")


def simulate_counts(teachers: int, classes: int, queries: int, agreement: Agreement, seed: int) -> NDArray[np.int64]:
    """Simulated votes: (Q, M), each row summing to `teachers`; the same for the same arguments.

    Each query has a class of its own, drawn uniformly, and a share of agreement; every teacher votes for that class
    with this chance, else for one of the others, the same few being the likelier ones for all teachers of a query.
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
    """Pr[the answer is the class with the most votes], should the query be answered: (Q,), to about 5e-4.

    With z the noise of that class, the mean over its quantiles of Π Pr[noise <= gap + z] over the other classes. Of
    several classes with the most votes, the first counts.
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
    """The inverse of `_below`."""
    if family == "gaussian":
        normal: Array = special.ndtri(chances)
        return normal
    laplace: Array = -np.sign(chances - 0.5) * np.log1p(-2 * np.abs(chances - 0.5))
    return laplace


def _below(values: Array, family: str) -> Array:
    """Pr[noise of scale 1 <= value]."""
    if family == "gaussian":
        normal: Array = special.ndtr(values)
        return normal
    tail = np.exp(-np.abs(values)) / 2
    return np.where(values < 0, tail, 1 - tail)
