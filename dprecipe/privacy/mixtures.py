"""Several units that leave a data set together: the sum moves by as many clip norms as take part.

`Event.together` says which events have such a form. These events are of no ledger: they only account.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dprecipe.privacy import pairs
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Event
from dprecipe.privacy.loss import MAX_BINS, LossPair, swap_loss

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array

_NODES = 4001
_REACH = 13.0
"""Standard deviations of the tail that the quadrature covers: exp(-13²/2) = 2e-37."""
_SLACK = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class MixedGaussian(Event):
    """Gaussian noise of `noise_multiplier` on a sum that the units of a group move by 0, `shift`, 2 `shift` … with the
    probabilities `weights`.

    Formal guarantee: dominated by Σ w_j N(j shift, σ²) against N(0, σ²), in both directions, for a group that is added
    or removed. Source: Theorem K of docs/explanation/accounting.md#groups; Ganesh 2024 (Poisson batches).
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
        return np.array([self._divergence(order) for order in orders])

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        loss = pairs.mixed_gaussian(self.weights, self.shift / self.noise_multiplier, step, tail, MAX_BINS)
        return LossPair(loss, swap_loss(loss))

    def _divergence(self, order: float) -> float:
        """Returns the larger Rényi divergence of both directions, by the trapezoidal rule."""
        move = self.shift / self.noise_multiplier
        j_J = np.flatnonzero(self.weights)
        logs_J = np.log(np.array(self.weights)[j_J])
        x_N = np.linspace(-_REACH - (order - 1) * move * j_J[-1], _REACH + order * move * j_J[-1], _NODES)
        ratio_N = np.logaddexp.reduce(logs_J[:, None] + np.outer(move * j_J, x_N) - (move * j_J[:, None]) ** 2 / 2)
        density_N = -(x_N**2) / 2 - math.log(math.sqrt(2 * math.pi)) + math.log(x_N[1] - x_N[0])
        removed, added = (float(np.logaddexp.reduce(power * ratio_N + density_N)) for power in (order, 1 - order))
        return max(removed, added, 0.0) / (order - 1) * _SLACK


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
