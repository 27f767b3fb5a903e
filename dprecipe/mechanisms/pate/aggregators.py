"""The four aggregators that turn votes into an answer, each with its events. No torch; nothing is recorded here.

An aggregator receives the noise that it adds, and has no randomness of its own.

Axes: K queries, M classes.
Source: Papernot et al. 2017 (LNMax); Papernot et al. 2018, Algorithms 1 and 2 (the others).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Stream

Counts = NDArray[np.int32]
"""Numbers of teachers that vote for each class: (K, M); each row sums to the number of teachers."""
Scores = NDArray[np.float64]
"""Probabilities that a student gives each class: (K, M); each row is a distribution."""
Floats = NDArray[np.float64]

NOTHING = -2
"""The value that stands for a missing label."""
SUMS_TO_ONE = 1e-3
"""Tolerance for the sum of a student's scores on a query, which should be 1: scores are in single precision."""


def noise(event: NoisyMax | NoisyThreshold, stream: Stream, count: int) -> Floats:
    """Draws `count` independent values of an event's noise, in votes: float64. All noise on votes is drawn here."""
    family = event.family if isinstance(event, NoisyMax) else "gaussian"
    return event.noise_multiplier * draw_noise(Distribution(family), stream, count)


def choose_class(counts_KM: Counts, noise_KM: Floats) -> NDArray[np.int64]:
    """Returns the class with the most votes after noise: (K,). It costs a `NoisyMax`."""
    labels: NDArray[np.int64] = np.argmax(counts_KM + noise_KM, axis=1)
    return labels


@final
@dataclass(frozen=True, slots=True)
class LnMaxAggregator:
    """Laplace noise of this scale; every query is answered."""

    scale: float
    check = None

    @property
    def answer(self) -> NoisyMax:
        return NoisyMax("laplace", self.scale)


@final
@dataclass(frozen=True, slots=True)
class GnMaxAggregator:
    """Gaussian noise of this standard deviation; every query is answered."""

    sigma: float
    check = None

    @property
    def answer(self) -> NoisyMax:
        return NoisyMax("gaussian", self.sigma)


@final
@dataclass(frozen=True, slots=True)
class ConfidentGnMaxAggregator:
    """Gaussian noise, as in `GnMaxAggregator`; answers only queries whose largest count, with noise, reaches the
    threshold."""

    sigma: float
    threshold: float
    check_sigma: float

    @property
    def answer(self) -> NoisyMax:
        return NoisyMax("gaussian", self.sigma)

    @property
    def check(self) -> NoisyThreshold:
        return NoisyThreshold(self.check_sigma)

    def passes(self, counts_KM: Counts, expected_KM: Scores | None, noise_K: Floats) -> NDArray[np.bool_]:
        """Decides for each query if it is answered: (K,). It costs a `NoisyThreshold`: one moved vote moves a largest
        count by at most 1."""
        return _reaches(counts_KM.max(axis=1) + noise_K, self.threshold)

    def unanswered(self, expected_KM: Scores | None, count: int) -> NDArray[np.int64]:
        """Returns the labels of the queries that are not answered, without looking at the votes: (K,)."""
        return np.full(count, NOTHING)


@final
@dataclass(frozen=True, slots=True)
class InteractiveGnMaxAggregator:
    """Gaussian noise for queries on which the votes exceed what a student expects.

    Where a student expects nothing, it is a `ConfidentGnMaxAggregator`. A query that is not answered gets the student's
    own prediction as its label if the student is confident of it.
    """

    sigma: float
    threshold: float
    check_sigma: float
    further: float
    """Votes by which a class must exceed what the student expects."""
    confidence: float

    @property
    def answer(self) -> NoisyMax:
        return NoisyMax("gaussian", self.sigma)

    @property
    def check(self) -> NoisyThreshold:
        return NoisyThreshold(self.check_sigma)

    def passes(self, counts_KM: Counts, expected_KM: Scores | None, noise_K: Floats) -> NDArray[np.bool_]:
        """Decides for each query if it is answered: (K,). One moved vote moves the largest n_j - N p_j by at most 1:
        these are real numbers and never rounded."""
        if expected_KM is None:
            return _reaches(counts_KM.max(axis=1) + noise_K, self.threshold)
        votes_K1 = counts_KM.sum(axis=1, keepdims=True)
        beyond_K: Floats = (counts_KM - votes_K1 * _check_scores(expected_KM, counts_KM.shape)).max(axis=1)
        return _reaches(beyond_K + noise_K, self.further)

    def unanswered(self, expected_KM: Scores | None, count: int) -> NDArray[np.int64]:
        """Returns the labels of the queries that are not answered, without looking at the votes: (K,)."""
        if expected_KM is None:
            return np.full(count, NOTHING)
        return np.where(expected_KM.max(axis=1) > self.confidence, expected_KM.argmax(axis=1), NOTHING)


Aggregator = LnMaxAggregator | GnMaxAggregator | ConfidentGnMaxAggregator | InteractiveGnMaxAggregator


def list_rounds(plan: PatePlan) -> list[tuple[range, Aggregator]]:
    """Returns the queries of each round of a plan, and the aggregator that answers them."""
    if plan.interaction is None:
        return [(range(plan.queries), aggregator_of(plan))]
    rounds, start = [], 0
    for number, planned in enumerate(plan.interaction.rounds):
        rounds.append((range(start, start + planned.queries), aggregator_of(plan, number)))
        start += planned.queries
    return rounds


def aggregator_of(plan: PatePlan, number: int | None = None) -> Aggregator:
    """Returns a plan's aggregator; for an interaction, that of round `number` from 0, by default the second round."""
    sigma, check, interaction = plan.answer.noise_multiplier, plan.check, plan.interaction
    if plan.aggregator == "lnmax":
        return LnMaxAggregator(sigma)
    if check is None or plan.threshold is None:
        return GnMaxAggregator(sigma)
    if interaction is None:
        return ConfidentGnMaxAggregator(sigma, plan.threshold, check.noise_multiplier)
    planned = interaction.rounds[1 if number is None else number]
    check_sigma, sigma = planned.multipliers
    return InteractiveGnMaxAggregator(sigma, plan.threshold, check_sigma, planned.threshold, interaction.confidence)


def _reaches(noisy_K: Floats, threshold: float) -> NDArray[np.bool_]:
    passed_K: NDArray[np.bool_] = noisy_K >= threshold
    return passed_K


def _check_scores(expected_KM: Scores, shape: tuple[int, ...]) -> Scores:
    """Returns the scores, if they are distributions.

    Raises:
        RunFailed: they are not.
    """
    sound = expected_KM.shape == shape and bool(
        np.isfinite(expected_KM).all()
        and (expected_KM >= 0).all()
        and (np.abs(expected_KM.sum(axis=1) - 1) <= SUMS_TO_ONE).all()
    )
    if not sound:
        raise RunFailed(
            "the student's scores are no distributions over the classes: finite, not negative, summing to 1",
            "lower training.optimizer.lr, or choose aggregator confident_gnmax, which asks no student",
        )
    return expected_KM
