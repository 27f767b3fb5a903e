"""The sets that steps are projected on: the nearest point of each, exactly, up to rounding. No torch.

Formal guarantee: `project` moves a point to the nearest point of the set. A ball is smaller by a share `ROUNDING`, so
that iterates keep to it after rounding.

Source: Held, Wolfe and Crowder 1974, for the simplex; the others are closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.schema import BallConstraint, BoxConstraint, Constraint, IntervalConstraint

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Relative margin by which bounds are tightened, so that they hold after rounding."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ball:
    """All points within `radius` of `centre`, which is 0 where it is None."""

    radius: float
    centre: Floats | None = None

    @property
    def max_norm(self) -> float:
        """Largest distance from the centre."""
        return self.radius * (1 - ROUNDING)

    def project(self, w: Floats) -> None:
        """Moves w, in place, to the nearest point of the set."""
        if self.centre is not None:
            w -= self.centre
        square = np.vdot(w, w)
        if square > self.max_norm * self.max_norm:
            w *= self.max_norm / np.sqrt(square)
        if self.centre is not None:
            w += self.centre

    def middle(self, shape: tuple[int, ...]) -> Floats:
        """Returns a point deep inside the set."""
        return np.zeros(shape) if self.centre is None else self.centre.reshape(shape).copy()

    def place(self, direction: Floats, size: float) -> Floats:
        """Returns a point of the set in this direction from its middle; for size 1, on the boundary."""
        reach = direction * (size * self.radius / np.linalg.norm(direction))
        return np.asarray(reach + self.middle(direction.shape))

    def distance_to_boundary(self, count: int) -> float:
        """Returns the distance of the middle of `count` parameters from the boundary, within the set's own plane."""
        return self.radius

    def oppose(self, w: Floats) -> Floats:
        """Returns the point of the set that is farthest from a point of the boundary."""
        return np.asarray(2 * self.middle(w.shape) - w)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Box:
    """All points whose coordinates lie between `low` and `high`: numbers, or one for each coordinate."""

    low: float | Floats
    high: float | Floats

    def project(self, w: Floats) -> None:
        """Moves w, in place, to the nearest point of the set."""
        np.clip(w, self.low, self.high, out=w)

    def middle(self, shape: tuple[int, ...]) -> Floats:
        """Returns a point deep inside the set."""
        return np.zeros(shape) + (np.asarray(self.low) / 2 + np.asarray(self.high) / 2)

    def place(self, direction: Floats, size: float) -> Floats:
        """Returns a point of the set in this direction from its middle; for size 1, a corner."""
        if size == 1:
            return np.where(direction > 0, self.high, self.low) + np.zeros(direction.shape)
        inner = direction / float(np.abs(direction).max()) * size
        return np.asarray(self.middle(direction.shape) + inner * (np.asarray(self.high) - self.low) / 2)

    def distance_to_boundary(self, count: int) -> float:
        """Returns the distance of the middle from the boundary."""
        return float(np.min(np.asarray(self.high) - self.low)) / 2

    def oppose(self, w: Floats) -> Floats:
        """Returns the point of the set that is farthest from a corner."""
        return np.asarray(np.asarray(self.low) + self.high - w)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Simplex:
    """All points without a negative coordinate whose coordinates add up to `total`."""

    total: float

    def project(self, w: Floats) -> None:
        """Moves w, in place, to the nearest point of the set: max(w - θ, 0), with θ such that they add up."""
        falling = np.sort(w, axis=None)[::-1]
        excess = np.cumsum(falling) - self.total
        count = int(np.count_nonzero(falling * np.arange(1, falling.size + 1) > excess))
        np.maximum(w - excess[count - 1] / count, 0.0, out=w)

    def middle(self, shape: tuple[int, ...]) -> Floats:
        """Returns a point deep inside the set."""
        return np.full(shape, self.total / max(1, int(np.prod(shape))))

    def place(self, direction: Floats, size: float) -> Floats:
        """Returns a point of the set between its middle and the vertex of the largest coordinate; for size 1, the
        vertex."""
        vertex = np.zeros(direction.size)
        vertex[int(np.abs(direction).argmax())] = self.total
        return np.asarray(size * vertex.reshape(direction.shape) + (1 - size) * self.middle(direction.shape))

    def distance_to_boundary(self, count: int) -> float:
        """Returns the distance of the middle of `count` parameters from the nearest point with a zero."""
        return self.total / count

    def oppose(self, w: Floats) -> Floats:
        """Returns another vertex."""
        return np.roll(w.reshape(-1), 1).reshape(w.shape)


ConvexSet = Ball | Box | Simplex


def set_of(constraint: Constraint, shape: tuple[int, ...]) -> ConvexSet:
    """Returns the set of a recipe, for parameters of this shape: lists give the parameters in their order, outputs
    first."""
    match constraint:
        case BallConstraint(radius=radius, centre=None | 0.0):
            return Ball(radius)
        case BallConstraint(radius=radius, centre=centre):
            return Ball(radius, _spread(centre, shape))
        case BoxConstraint(bound=bound):
            return Box(-bound, bound)
        case IntervalConstraint(low=low, high=high):
            return Box(_spread(low, shape), _spread(high, shape))
    return Simplex(constraint.total)


def _spread(numbers: float | tuple[float, ...] | None, shape: tuple[int, ...]) -> Floats:
    return np.full(shape, numbers) if isinstance(numbers, float) else np.asarray(numbers, np.float64).reshape(shape)
