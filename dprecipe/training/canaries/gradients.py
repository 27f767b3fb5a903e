"""Canaries that are gradients: where a canary was sampled and is in, its gradient is clipped and added to the sum; what
the gate releases is scored (`scores`).

Formal guarantee: a canary is clipped by the function that clips every unit, so it moves a sum by at most the bound that
noise is scaled to. Scores are computed from noisy sums and public numbers (and the canaries' places in a fixed order,
which depend on no record), so what is published of them costs the records nothing (post-processing).

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

from collections.abc import Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe.faults import InternalFault
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.events import Event
from dprecipe.training.canaries.contract import Coins, Floats, Layout, Numbers, Placement, place_canaries
from dprecipe.training.canaries.scores import CanaryScores, Sight
from dprecipe.training.engine.clipped_sum import ClippedSum, add_sparse_units, group_slices
from dprecipe.training.engine.clipping import Clipping

WITHIN = 1 - 2.0**-20
"""The length of a gradient that just is within the clip norm, over it."""
BEYOND = 1000.0
"""The length of one that is not."""


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
        self._values_M = np.where(coins.inside, 1.0, -1.0 if replaced else 0.0)
        self._layout: Layout | None = None
        self._added: Sight | None = None
        self._scores = CanaryScores(coins.count, self.units, replaced=replaced)

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
        thresholds = np.array(clipping.thresholds)[:, None]
        self._added = Sight(placement.places, placement.signs, _bounds_at(placement, clipped), thresholds)
        chosen = sampled[self._values_M[sampled] != 0]
        if not len(chosen):
            return clipped
        signs_GU = placement.signs[:, chosen]
        lengths_GU = thresholds * np.where(signs_GU > 0, WITHIN, BEYOND)
        if clipping.stability is not None:
            lengths_GU = BEYOND * (lengths_GU + clipping.stability)
        values_GU = signs_GU * lengths_GU * self._values_M[chosen]
        places_GU = placement.places[:, chosen]
        return add_sparse_units(clipped, torch.from_numpy(places_GU), torch.from_numpy(values_GU), clipping)

    def score(self, noisy: Tensor, event: Event, units: UnitNumbers) -> None:
        """Takes the noisy sum that was released of what `add` returned last, in all processes of this batch."""
        if self._added is None:
            raise InternalFault("a noisy sum without canaries was to be scored")
        added, self._added = self._added, None
        self._scores.take(noisy, event, added, self.split(units)[1])

    def end_event(self) -> None:
        """Notes that all sums of an event were released."""
        self._scores.end_event()

    def rank(self, released: Mapping[str, Tensor]) -> Floats:
        """Ranks the canaries by the log-likelihood ratio of all noisy sums."""
        return self._scores.current()

    def state(self) -> dict[str, Any]:
        """Returns what a later attempt needs; called between events."""
        return {"coins": self.coins.digest, "scores": torch.from_numpy(self._scores.current())}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not of these canaries.
        """
        if state["coins"] != self.coins.digest or state["scores"].shape != (self.coins.count,):
            raise ValueError("the scores of other canaries")
        self._scores.ended = state["scores"].to(torch.float64).numpy().copy()


def _bounds_at(placement: Placement, clipped: ClippedSum) -> Floats:
    if isinstance(clipped.bound, float | int):
        return np.full(placement.places.shape, float(clipped.bound))
    places = torch.from_numpy(placement.places).to(clipped.bound.device)
    bounds: Floats = clipped.bound[places].to("cpu", torch.float64).numpy()
    return bounds
