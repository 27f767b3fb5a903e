"""Several units that leave a data set together: the sum moves by as many clip norms as take part.

`Event.together` says which events have such a form. These events are of no ledger: they only account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dprecipe.privacy import pairs
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Event
from dprecipe.privacy.loss import MAX_BINS, LossPair, swap_loss

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array


@dataclass(frozen=True, slots=True)
class MixedGaussian(Event):
    """Gaussian noise of `noise_multiplier` on a sum that the units of a group move by 0, `shift`, 2 `shift` … with the
    probabilities `weights`.

    Formal guarantee: dominated by Σ w_j N(j shift, σ²) against N(0, σ²), in both directions, for a group that is added
    or removed. Source: docs/explanation/accounting.md#groups; Ganesh 2024 (Poisson batches).
    """

    kind: ClassVar[str] = "mixed_gaussian"
    integrates: ClassVar[bool] = True
    weights: tuple[float, ...]
    shift: float
    noise_multiplier: float

    @property
    def participation(self) -> float:
        return 1 - self.weights[0]

    def is_bounded(self, relation: Neighbouring) -> bool:
        return relation is Neighbouring.ADD_OR_REMOVE_ONE

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy import curves

        return curves.mixed_gaussian(self.weights, self.noise_multiplier / self.shift, orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        loss = pairs.mixed_gaussian(self.weights, self.shift / self.noise_multiplier, step, tail, MAX_BINS)
        return LossPair(loss, swap_loss(loss))


def binomial_weights(size: int, rate: float) -> tuple[float, ...]:
    """Returns the probabilities that 0, 1 … `size` units take part, each independently with probability `rate`."""
    return tuple(math.comb(size, j) * rate**j * (1 - rate) ** (size - j) for j in range(size + 1))


def hypergeometric_weights(size: int, units: int, batch: int) -> tuple[float, ...]:
    """Returns the probabilities that 0, 1 … of `size` among `units` units are in a uniformly random subset of
    `batch`."""
    weights = []
    for j in range(min(size, batch) + 1):
        chosen = math.prod((batch - i) / (units - i) for i in range(j))
        others = math.prod((units - batch - i) / (units - j - i) for i in range(size - j))
        weights.append(math.comb(size, j) * chosen * others)
    return tuple(weights)
