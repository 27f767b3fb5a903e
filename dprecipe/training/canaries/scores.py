"""Scores of gradient canaries: the log-likelihood ratios of all noisy sums, with a canary against without it.

They are made of noisy sums and public numbers; in a fixed order, whose claim holds for each place, of the canaries'
places, too, which depend on no record.

| case | what happens |
|---|---|
| which batch of an event a unit is in is secret | the ratio is that of a mixture over the event's batches |
| noise is correlated over steps | sums are whitened; a canary is looked for in the sums after its own, too |
| records' gradients | noise of their own, but for what sums before let expect of them |
| a later attempt | nothing is expected at first, and what the next sums would have shown is lost |

Legend: M canaries, G groups.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.faults import InternalFault
from dprecipe.privacy.audit.implied import response_of
from dprecipe.privacy.correlation.whiten import Whitener
from dprecipe.privacy.events import Event
from dprecipe.privacy.sampling import (
    CyclicPoisson,
    DealtBatches,
    EveryUnit,
    FixedOrder,
    FixedSizeBatch,
    PermutedBatches,
    PoissonBatch,
)
from dprecipe.training.canaries.contract import Floats, Numbers
from dprecipe.training.run.gate import distribution_of, multiplier_of

MEMORY = 1 / 8
"""The weight of the last noisy sum in a trend."""


@final
@dataclass(frozen=True, slots=True)
class Sight:
    """Places in noisy sums where canaries show, and what their gradients look like there; all (G, M) but where said."""

    places: NDArray[np.int64]
    signs: Floats
    bounds: Floats
    """Distance that a unit may move the sum at these coordinates, in which its noise is measured."""
    thresholds: Floats
    """(G, 1)."""

    @property
    def shares(self) -> Floats:
        """Share of its bound that a gradient takes up."""
        return self.thresholds / self.bounds

    def choose(self, canaries: Numbers) -> Sight:
        """Returns the sight of these canaries alone."""
        return Sight(self.places[:, canaries], self.signs[:, canaries], self.bounds[:, canaries], self.thresholds)

    def read(self, vector_P: Tensor) -> Floats:
        """Returns what a vector shows along the gradients, over their bounds."""
        numbers = vector_P[torch.from_numpy(self.places).to(vector_P.device)]
        seen_GM: Floats = self.signs * numbers.to("cpu", torch.float64).numpy() / self.bounds
        return seen_GM


@final
class CanaryScores:
    """The scores of a run's canaries, while noisy sums come."""

    def __init__(self, count: int, units: int, *, replaced: bool) -> None:
        """`units`: the number that batches are drawn from. `replaced`: a canary that is out has the opposite
        gradient."""
        self._units = units
        self._replaced = replaced
        self.ended = np.zeros(count)
        """Sums over the events that have ended and show in no later sum."""
        self._events: deque[_EventScores] = deque()
        self._seen_in: deque[_StepRatios] = deque()
        self._trend = Trend()
        self._whitener: Whitener[Tensor] | None = None  # of this attempt

    def current(self) -> Floats:
        """Returns the scores (M,) by all noisy sums so far, those of an event that has not ended left out."""
        events = {id(event): event.copy() for event in self._events if event.ended}
        for step in self._seen_in:
            if id(step.event) in events:
                events[id(step.event)].add(step)
        result = self.ended.copy()
        for event in events.values():
            result += event.score(self._replaced)
        return result

    def take(self, noisy: Tensor, event: Event, sight: Sight, sampled: Numbers) -> None:
        """Takes the noisy sum of one step of an event. `sampled`: the canaries in its batch, in or out."""
        if not self._events or self._events[-1].ended:
            self._events.append(_EventScores.of(event, self._units, len(self.ended)))
        white = self._whiten(noisy, event)
        level = self._trend.fit(white)
        expected_GM = self._trend.read(sight)
        seen_GM = sight.read(white) - level * expected_GM
        variance = _estimate_variance(seen_GM, sight.shares, event)
        for step in self._seen_in:
            step.look(step.read(white, level), event, variance)
        # Of a unit whose place may be known, only its own steps are of interest.
        chosen = sampled if self._events[-1].joins is None else np.arange(len(self.ended))
        response, seen_GM = response_of(event.strategy), seen_GM[:, chosen]
        step = _StepRatios(self._events[-1], chosen, sight.choose(chosen), expected_GM[:, chosen], response)
        step.look(seen_GM, event, variance)
        self._seen_in.append(step)
        while self._seen_in and self._seen_in[0].complete:
            step = self._seen_in.popleft()
            step.event.add(step)
        self._trend.update(white)
        self._close_events()

    def end_event(self) -> None:
        """Notes that all sums of an event were released."""
        self._events[-1].ended = True
        self._close_events()

    def _whiten(self, noisy: Tensor, event: Event) -> Tensor:
        """Returns the noisy sum with fresh noise alone: what correlated noise took back is added again, and with it a
        share of the sums before."""
        if self._whitener is None:
            self._whitener = Whitener(event.strategy)
        return self._whitener.take(noisy)

    def _close_events(self) -> None:
        """Adds up the first events, if they have ended and none of their steps is looked for any more."""
        oldest = self._seen_in[0].event if self._seen_in else None
        while self._events and self._events[0].ended and self._events[0] is not oldest:
            self.ended = self.ended + self._events.popleft().score(self._replaced)


@final
@dataclass(slots=True)
class _EventScores:
    """Log-likelihoods of one event's sums, each against those without the canary."""

    joins: float | None
    """The probability that a unit is in a certain batch; None where its batch may be known."""
    inside: Floats
    outside: Floats
    """With the opposite gradient."""
    ended: bool = False

    @staticmethod
    def of(event: Event, units: int, count: int) -> _EventScores:
        joins = _probability_of(event, units)
        if joins is None:
            return _EventScores(None, np.zeros(count), np.zeros(count))
        stays_out = max(0.0, 1 - joins * event.steps)
        first = np.full(count, math.log(stays_out) if stays_out else -np.inf)
        return _EventScores(joins, first, first)

    def copy(self) -> _EventScores:
        return _EventScores(self.joins, self.inside.copy(), self.outside.copy())

    def add(self, step: _StepRatios) -> None:
        if self.joins is None:
            self.inside[step.chosen] += step.inside
            self.outside[step.chosen] += step.outside
        else:
            self.inside = np.logaddexp(self.inside, math.log(self.joins) + step.inside)
            self.outside = np.logaddexp(self.outside, math.log(self.joins) + step.outside)

    def score(self, replaced: bool) -> Floats:
        return self.inside - (self.outside if replaced else 0.0)


@final
class _StepRatios:
    """Log-likelihood ratios of canaries in one step: by its noisy sum, and by those after it in which they show."""

    def __init__(
        self, event: _EventScores, chosen: Numbers, sight: Sight, expected: Floats, response: tuple[float, ...]
    ) -> None:
        """`chosen`: the canaries that are scored. `expected`: how the sums before the step show along their gradients:
        what a canary itself adds is not in it."""
        self.event = event
        self.chosen = chosen
        self.inside, self.outside = np.zeros((2, len(chosen)))
        self._sight, self._expected = sight, expected
        self._response = response
        self._rows = 0

    @property
    def complete(self) -> bool:
        """True if later sums show too little of the step."""
        return self._rows == len(self._response)

    def read(self, white: Tensor, level: float) -> Floats:
        """Returns what a whitened sum shows, less what is expected of it: so far in the direction of the mean."""
        return self._sight.read(white) - level * self._expected

    def look(self, seen_GM: Floats, event: Event, variance: float) -> None:
        """Takes what the next whitened sum shows."""
        inside, outside = _log_ratios(seen_GM, self._response[self._rows] * self._sight.shares, event, variance)
        self.inside += inside
        self.outside += outside
        self._rows += 1


@final
class Trend:
    """The part that noisy sums have in common with those before them: mostly the records' gradients, which change
    slowly, and from which canaries have to be distinguished. It is made of noisy sums alone. A later attempt begins
    with none."""

    def __init__(self) -> None:
        self._mean_P: Tensor | None = None
        self._length = 0.0

    def fit(self, noisy_P: Tensor) -> float:
        """Returns how far a whole sum goes in the direction of the mean: near 0 where sums are hardly more than
        noise."""
        if self._mean_P is None or not self._length:
            return 0.0
        along = float(torch.dot(noisy_P, self._mean_P)) / self._length
        return min(max(along, 0.0), self._length / MEMORY)

    def read(self, sight: Sight) -> Floats:
        """Returns how the direction of the mean, of length 1, shows along the gradients."""
        if self._mean_P is None or not self._length:
            return np.zeros(sight.places.shape)
        return sight.read(self._mean_P) / self._length

    def update(self, noisy_P: Tensor) -> None:
        if self._mean_P is None:
            self._mean_P = noisy_P * MEMORY
        else:
            self._mean_P.lerp_(noisy_P, MEMORY)
        self._length = float(torch.linalg.vector_norm(self._mean_P))


def _estimate_variance(seen_GM: Floats, shares_GM: Floats, event: Event) -> float:
    """Returns the variance of what a whitened sum shows: the records' gradients add to that of the noise, by an amount
    that only the sums themselves tell."""
    power_M, seen_M = _project(seen_GM, shares_GM)
    return max(multiplier_of(event) ** 2, float(np.mean(seen_M**2 / power_M)))


def _log_ratios(seen_GM: Floats, shares_GM: Floats, event: Event, variance: float) -> tuple[Floats, Floats]:
    """Returns the log-likelihood ratios of what was seen, (M,) each: with the gradient against without, and with the
    opposite one against without.

    `seen_GM`: along the gradient, over its bound. `shares_GM`: how much of its bound the gradient takes up.
    """
    if distribution_of(event).family == "laplace":
        multiplier, size_GM = multiplier_of(event), np.abs(seen_GM)
        along, against = (np.abs(seen_GM - shares_GM), np.abs(seen_GM + shares_GM))
        return (size_GM - along).sum(0) / multiplier, (size_GM - against).sum(0) / multiplier
    power_M, seen_M = _project(seen_GM, shares_GM)
    return (2 * seen_M - power_M) / (2 * variance), (-2 * seen_M - power_M) / (2 * variance)


def _project(seen_GM: Floats, shares_GM: Floats) -> tuple[Floats, Floats]:
    """Returns the squared length of each gradient, and what is seen along it."""
    return (shares_GM**2).sum(0), (shares_GM * seen_GM).sum(0)


def _probability_of(event: Event, units: int) -> float | None:
    """Returns the probability that a unit is in a certain one of an event's batches; None where its batch may be known:
    the claim of a fixed order holds for each place."""
    match event.sampling():
        case PoissonBatch(rate):
            return float(rate)
        case FixedSizeBatch(batch) | PermutedBatches(batch):
            return batch / units
        case DealtBatches(batches):
            return 1 / batches
        case CyclicPoisson(parts, rate):
            return rate / parts
        case EveryUnit():
            return 1.0
        case FixedOrder():
            return None
    raise InternalFault(f"canaries in a {event.kind}")
