"""Canaries that are gradients: where a canary was sampled and is in, its gradient is clipped and added to the sum; what
the gate releases is scored.

Formal guarantee: a canary is clipped by the function that clips every unit, so it moves a sum by at most the bound that
noise is scaled to. Scores are computed from noisy sums and public numbers alone, so what is published of them costs the
records nothing (post-processing).

| case | what happens |
|---|---|
| a canary that was sampled and is out | adds nothing; where a record may be replaced, the opposite gradient |
| more canaries than coordinates of a group | some share one: they are each other's noise |
| automatic clipping | the gradient is so long that it reaches nearly the norm |
| adaptive clipping | half of the gradients are within the norm and half are not, so that no quantile moves |
| a step whose update was lost in a crash | its score is lost with it |
| several processes | a canary's unit number decides which of them adds it, as it does for any unit |

Source: Steinke, Nasr, Jagielski 2023, "Privacy Auditing with One (1) Training Run" (Dirac canaries), with coordinates
that move: see `placement`. Legend: M canaries, G groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe.faults import InternalFault
from dprecipe.noisy_sum.batches import UnitNumbers
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
from dprecipe.training.canaries.contract import Coins, Floats, Layout, Numbers, Placement, place_canaries
from dprecipe.training.engine.clipped_sum import ClippedSum, add_sparse_units, group_slices
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.run.gate import distribution_of, multiplier_of

WITHIN = 1 - 2.0**-20
"""The length of a gradient that just is within the clip norm, over it."""
BEYOND = 1000.0
"""The length of one that is not."""
MEMORY = 1 / 8
"""The weight of the last noisy sum in a trend."""


@final
class GradientCanaries:
    """The canaries of a run, in the program's steps."""

    def __init__(self, coins: Coins, records: int, key: str, *, replaced: bool) -> None:
        """`records`: the units of the training set; canaries are numbered on from there. `key`: the plan's digest.
        `replaced`: a neighbour replaces a unit, so a canary that is out has the opposite gradient."""
        self.units = records + coins.count
        """Number of units that batches are drawn from."""
        self.coins = coins
        self._records = records
        self._key = key
        self._replaced = replaced
        self._values_M = np.where(coins.inside, 1.0, -1.0 if replaced else 0.0)
        self._layout: Layout | None = None
        self._added: _Added | None = None
        self._trend = Trend()
        self._whitener: Whitener[Tensor] | None = None  # of this attempt
        self._scores_M = np.zeros(coins.count)
        self._inside_M = self._outside_M = np.zeros(coins.count)  # of the event that is going on
        self._begun = False

    def split(self, units: UnitNumbers) -> tuple[UnitNumbers, Numbers]:
        """Returns the records of a batch, and its canaries by number."""
        first = int(np.searchsorted(units, self._records))
        return units[:first], units[first:] - self._records

    def add(
        self, clipped: ClippedSum, model: nn.Module, clipping: Clipping | None, step: int, sampled: Numbers
    ) -> ClippedSum:
        """Adds the canaries that were sampled, in place."""
        if clipping is None:
            raise InternalFault("canaries with gradients that no norm bounds")
        if self._layout is None:
            self._layout = Layout.of(group_slices(model, clipping))
        placement = place_canaries(self._layout, self.coins.count, self._key, step)
        self._added = _Added(placement, _bounds_at(placement, clipped), np.array(clipping.thresholds)[:, None])
        chosen = sampled[self._values_M[sampled] != 0]
        if not len(chosen):
            return clipped
        signs_GU = placement.signs[:, chosen]
        lengths_GU = self._added.thresholds * np.where(signs_GU > 0, WITHIN, BEYOND)
        if clipping.stability is not None:
            lengths_GU = BEYOND * (lengths_GU + clipping.stability)
        values_GU = signs_GU * lengths_GU * self._values_M[chosen]
        places_GU = placement.places[:, chosen]
        return add_sparse_units(clipped, torch.from_numpy(places_GU), torch.from_numpy(values_GU), clipping)

    def score(self, noisy: Tensor, event: Event) -> None:
        """Takes the noisy sum that was released of what `add` returned last."""
        if self._added is None:
            raise InternalFault("a noisy sum without canaries was to be scored")
        added, self._added = self._added, None
        places = torch.from_numpy(added.placement.places.reshape(-1)).to(noisy.device)
        seen = self._trend.remove(self._whiten(noisy, event), places)
        seen_GM = seen.to("cpu", torch.float64).numpy().reshape(added.bounds.shape)
        shares_GM = added.thresholds / added.bounds
        ratios = _log_ratios(added.placement.signs * seen_GM / added.bounds, shares_GM, event)
        joins = _probability_of(event, self.units)
        if not self._begun:
            stays_out = max(0.0, 1 - joins * event.steps)
            self._inside_M = self._outside_M = np.full(self.coins.count, math.log(stays_out) if stays_out else -np.inf)
            self._begun = True
        inside_M, outside_M = (math.log(joins) + ratio_M for ratio_M in ratios)
        self._inside_M = np.logaddexp(self._inside_M, inside_M)
        self._outside_M = np.logaddexp(self._outside_M, outside_M)

    def _whiten(self, noisy: Tensor, event: Event) -> Tensor:
        """Returns the noisy sum with fresh noise alone: what correlated noise took back is added again, and with it a
        share of the sums before."""
        if event.strategy is None:
            return noisy
        if self._whitener is None:
            self._whitener = Whitener(event.strategy)
        return self._whitener.take(noisy)

    def end_event(self) -> None:
        """Notes that all sums of an event were released."""
        self._scores_M = self._scores_M + self._inside_M - (self._outside_M if self._replaced else 0.0)
        self._begun = False

    def rank(self, released: Mapping[str, Tensor]) -> Floats:
        """Ranks the canaries by the log-likelihood ratio of all noisy sums."""
        return self._scores_M.copy()

    def state(self) -> dict[str, Any]:
        """Returns what a later attempt needs; called between events."""
        return {"coins": self.coins.digest, "scores": torch.from_numpy(self._scores_M.copy())}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not of these canaries.
        """
        if state["coins"] != self.coins.digest or state["scores"].shape != self._scores_M.shape:
            raise ValueError("the scores of other canaries")
        self._scores_M = state["scores"].to(torch.float64).numpy().copy()


@final
class Trend:
    """The part that noisy sums have in common with those before them: mostly the records' gradients, which change
    slowly, and from which canaries have to be distinguished. It is made of noisy sums alone. A later attempt begins
    with none."""

    def __init__(self) -> None:
        self._mean_P: Tensor | None = None

    def remove(self, noisy_P: Tensor, places: Tensor) -> Tensor:
        """Returns the numbers of a noisy sum at these places, less what the sums before it let expect of them: their
        mean, times the factor that fits the whole sum best. Where sums are hardly more than noise the factor is near
        0."""
        seen = noisy_P[places]
        if self._mean_P is None:
            self._mean_P = noisy_P * MEMORY
            return seen
        factor = torch.dot(noisy_P, self._mean_P) / torch.dot(self._mean_P, self._mean_P).clamp(min=1e-300)
        seen = seen - factor.clamp(0.0, 1 / MEMORY) * self._mean_P[places]
        self._mean_P.lerp_(noisy_P, MEMORY)
        return seen


@final
@dataclass(frozen=True, slots=True)
class _Added:
    """Terms of a noisy sum that scores need."""

    placement: Placement
    bounds: Floats
    """(G, M): how far a unit may move the sum at the canaries' coordinates, in which its noise is measured."""
    thresholds: Floats
    """(G, 1)."""


def _bounds_at(placement: Placement, clipped: ClippedSum) -> Floats:
    if isinstance(clipped.bound, float | int):
        return np.full(placement.places.shape, float(clipped.bound))
    places = torch.from_numpy(placement.places).to(clipped.bound.device)
    bounds: Floats = clipped.bound[places].to("cpu", torch.float64).numpy()
    return bounds


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


def _probability_of(event: Event, units: int) -> float:
    """Returns the probability that a unit is in a certain one of an event's batches."""
    match event.sampling():
        case PoissonBatch(rate):
            return float(rate)
        case FixedSizeBatch(batch) | PermutedBatches(batch):
            return batch / units
        case DealtBatches(batches) | FixedOrder(batches):
            return 1 / batches
        case CyclicPoisson(parts, rate):
            return rate / parts
        case EveryUnit():
            return 1.0
    raise InternalFault(f"canaries in a {event.kind}")
