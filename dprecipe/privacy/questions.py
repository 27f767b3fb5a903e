"""The questions that the cross-check accountant can answer. Every event states itself as one of them.

A question restates the release in the terms of the other library: scales and rates, no divergences. Only `RenyiCurve`
and `WholeRun` contain arithmetic, for releases that the library does not support: a second computation, independent of
the event's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dprecipe.privacy.box.box import BoxSum
    from dprecipe.privacy.curves import Array


@dataclass(frozen=True, slots=True)
class GaussianSum:
    """Gaussian noise of `sigma` times what one added or removed unit moves a sum; units join with probability
    `rate`."""

    sigma: float
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class CappedSum:
    """As `GaussianSum` over `size` units, of a batch with more than `cap` of them a random subset of `cap`."""

    sigma: float
    rate: float
    size: int
    cap: int


@dataclass(frozen=True, slots=True)
class FixedSizeSum:
    """As `GaussianSum`, of a random subset of `batch` of `size` units."""

    sigma: float
    size: int
    batch: int


@dataclass(frozen=True, slots=True)
class NoisyCounts:
    """`changed` counts that a unit moves by one each, whatever the relation; noise of `family` (gaussian: `scale` is
    its standard deviation; laplace: its scale parameter) on each."""

    family: str
    scale: float
    changed: int


@dataclass(frozen=True, slots=True)
class NoisyBox:
    """A sum that one unit moves within a box, with noise that is not Gaussian."""

    box: BoxSum


@dataclass(frozen=True, slots=True)
class BoundedRange:
    """A choice by the exponential mechanism: how far the privacy losses of two outcomes lie apart where a unit is added
    or removed, and where one is replaced."""

    added: float
    replaced: float


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """Counts of items, of which a unit has up to `most`, with Gaussian noise of `sigma`; those from `threshold` on are
    told. An item that nobody else has is not drawn for in the other data set."""

    most: int
    sigma: float
    threshold: float


@dataclass(frozen=True, slots=True)
class RenyiCurve:
    """A release that has only Rényi divergences: at orders from 1 to `max_order`, as `divergences` gives."""

    divergences: Callable[[Array], Array]
    max_order: float


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A release that is asked as a whole: `epsilon` at a δ; and, if it composes, `deltas` at each of some ε >= 0, of
    both directions."""

    epsilon: Callable[[float], float]
    deltas: Callable[[Sequence[float]], list[float]] | None = None


@dataclass(frozen=True, slots=True)
class LibraryLoss:
    """A release whose privacy-loss distribution the library makes itself: `distribution` asks it for one on a grid of a
    given step, for the relation that the event is accounted under."""

    distribution: Callable[[float], Any]


@dataclass(frozen=True, slots=True)
class SelectedRuns:
    """The best of runs that each release what `run` asks about, (question, how often). Their number is
    `negative_binomial` (truncated, η = `shape`), `poisson` or `fixed`, of mean `mean`."""

    run: tuple[tuple[Question, int], ...]
    distribution: str
    mean: float
    shape: float | None


Question = (
    GaussianSum
    | CappedSum
    | FixedSizeSum
    | NoisyCounts
    | NoisyBox
    | BoundedRange
    | UniqueItems
    | RenyiCurve
    | LibraryLoss
    | SelectedRuns
    | WholeRun
)
