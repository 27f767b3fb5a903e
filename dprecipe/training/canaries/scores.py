"""Scores of gradient canaries: the log-likelihood ratios of all noisy sums, with a canary against without it.

They are made of noisy sums and public numbers alone; where a claim holds whatever is known of a unit's place in the
order, of that place, too.

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
from dprecipe.privacy.audit.implied import step_response
from dprecipe.privacy.correlation.whiten import Whitener
from dprecipe.privacy.curves import Array
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
from dprecipe.training.canaries.contract import Floats, Placement
from dprecipe.training.run.gate import distribution_of, multiplier_of

MEMORY = 1 / 8
"""The weight of the last noisy sum in a trend."""


@final
@dataclass(frozen=True, slots=True)
class Added:
    """Terms of a noisy sum that scores need."""

    placement: Placement
    bounds: Floats
    """(G, M): how far a unit may move the sum at the canaries' coordinates, in which its noise is measured."""
    thresholds: Floats
    """(G, 1)."""
    sampled: NDArray[np.bool_]
    """(M,): the canaries that were sampled, in or out."""


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

    def take(self, noisy: Tensor, event: Event, added: Added) -> None:
        """Takes the noisy sum of one step of an event."""
        if not self._events or self._events[-1].ended:
            self._events.append(_EventScores.of(event, self._units, len(self.ended)))
        white = self._whiten(noisy, event)
        factor = self._trend.fit(white)
        places = torch.from_numpy(added.placement.places.reshape(-1)).to(noisy.device)
        expected = self._trend.expect(places)
        self._seen_in.append(_StepRatios(added, self._events[-1], places, expected, step_response(event)))
        for step in self._seen_in:
            step.look(white, factor, event)
        while self._seen_in and self._seen_in[0].complete:
            step = self._seen_in.popleft()
            step.event.add(step)
        self._trend.update(white)
        self._close_events()

    def end_event(self) -> None:
        """Notes that all sums of an event were released."""
        self._events[-1].ended = True
        self._close_events()

    def _close_events(self) -> None:
        """Adds up the first events, if they have ended and none of their steps is looked for any more."""
        oldest = self._seen_in[0].event if self._seen_in else None
        while self._events and self._events[0].ended and self._events[0] is not oldest:
            self.ended = self.ended + self._events.popleft().score(self._replaced)

    def _whiten(self, noisy: Tensor, event: Event) -> Tensor:
        """Returns the noisy sum with fresh noise alone: what correlated noise took back is added again, and with it a
        share of the sums before."""
        if event.strategy is None:
            return noisy
        if self._whitener is None:
            self._whitener = Whitener(event.strategy)
        return self._whitener.take(noisy)


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
        return _EventScores(self.joins, self.inside, self.outside)

    def add(self, step: _StepRatios) -> None:
        if self.joins is None:
            self.inside = self.inside + step.inside * step.added.sampled
            self.outside = self.outside + step.outside * step.added.sampled
        else:
            self.inside = np.logaddexp(self.inside, math.log(self.joins) + step.inside)
            self.outside = np.logaddexp(self.outside, math.log(self.joins) + step.outside)

    def score(self, replaced: bool) -> Floats:
        return self.inside - (self.outside if replaced else 0.0)


@final
class _StepRatios:
    """Log-likelihood ratios of a canary in one step: by its noisy sum, and by those after it in which it shows."""

    def __init__(
        self, added: Added, event: _EventScores, places: Tensor, expected: Tensor | None, response: Array
    ) -> None:
        """`expected`: of each number before the step, up to a factor: what the canary itself adds is not in it."""
        self.added = added
        self.event = event
        self._places = places
        self._expected = expected
        self._response = response
        self._rows = 0
        self.inside = self.outside = np.zeros(added.bounds.shape[1])

    @property
    def complete(self) -> bool:
        """True if later sums show too little of the step."""
        return self._rows == len(self._response)

    def look(self, white: Tensor, factor: float, event: Event) -> None:
        """Takes the next whitened sum."""
        seen = white[self._places]
        if self._expected is not None:
            seen = seen - factor * self._expected
        added = self.added
        seen_GM = seen.to("cpu", torch.float64).numpy().reshape(added.bounds.shape)
        shares_GM = self._response[self._rows] * added.thresholds / added.bounds
        inside_M, outside_M = _log_ratios(added.placement.signs * seen_GM / added.bounds, shares_GM, event)
        self.inside, self.outside = self.inside + inside_M, self.outside + outside_M
        self._rows += 1


@final
class Trend:
    """The part that noisy sums have in common with those before them: mostly the records' gradients, which change
    slowly, and from which canaries have to be distinguished. It is made of noisy sums alone. A later attempt begins
    with none."""

    def __init__(self) -> None:
        self._mean_P: Tensor | None = None

    def fit(self, noisy_P: Tensor) -> float:
        """Returns the factor of the mean that fits a whole sum best: near 0 where sums are hardly more than noise."""
        if self._mean_P is None:
            return 0.0
        factor = torch.dot(noisy_P, self._mean_P) / torch.dot(self._mean_P, self._mean_P).clamp(min=1e-300)
        return float(factor.clamp(0.0, 1 / MEMORY))

    def expect(self, places: Tensor) -> Tensor | None:
        """Returns the mean at these places."""
        return None if self._mean_P is None else self._mean_P[places]

    def update(self, noisy_P: Tensor) -> None:
        if self._mean_P is None:
            self._mean_P = noisy_P * MEMORY
        else:
            self._mean_P.lerp_(noisy_P, MEMORY)


def _log_ratios(seen_GM: Floats, shares_GM: Floats, event: Event) -> tuple[Floats, Floats]:
    """Returns the log-likelihood ratios of what was seen, (M,) each: with the gradient against without, and with the
    opposite one against without.

    `seen_GM`: along the gradient, over its bound. `shares_GM`: how much of its bound the gradient takes up.

    The records' gradients add to the variance of what is seen, by an amount that only the steps themselves tell.
    """
    multiplier = multiplier_of(event)
    if distribution_of(event).family == "laplace":
        size_GM = np.abs(seen_GM)
        along, against = (np.abs(seen_GM - shares_GM), np.abs(seen_GM + shares_GM))
        return (size_GM - along).sum(0) / multiplier, (size_GM - against).sum(0) / multiplier
    power_M, seen_M = (shares_GM**2).sum(0), (shares_GM * seen_GM).sum(0)
    variance = max(multiplier**2, float(np.mean(seen_M**2 / power_M)))
    return (2 * seen_M - power_M) / (2 * variance), (-2 * seen_M - power_M) / (2 * variance)


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
