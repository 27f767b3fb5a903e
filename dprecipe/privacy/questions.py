"""The questions that the cross-check accountant can answer. Every event states itself as one of them.

A question restates the release in the terms of the other library: scales and rates, no divergences. Only `RenyiCurve`
and `WholeRun` contain arithmetic, for releases that the library does not support: a second computation, independent of
the event's.
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
    """A sum with Gaussian noise of `sigma` times the distance that one added or removed unit moves it; units join with
    probability `rate`."""

    sigma: float
    rate: float = 1.0


@dataclass(frozen=True, slots=True)
class CappedSum:
    """A `GaussianSum` over `size` units; of a batch with more than `cap` units, a random subset of `cap` takes part."""

    sigma: float
    rate: float
    size: int
    cap: int


@dataclass(frozen=True, slots=True)
class FixedSizeSum:
    """A `GaussianSum` over a random subset of `batch` of `size` units."""

    sigma: float
    size: int
    batch: int


@dataclass(frozen=True, slots=True)
class NoisyCounts:
    """Counts with noise of `family` on each; a unit moves `changed` of them by one each, whatever the relation
    (`scale`: for gaussian the standard deviation, for laplace the scale parameter)."""

    family: str
    scale: float
    changed: int


@dataclass(frozen=True, slots=True)
class NoisyBox:
    """A sum that one unit moves within a box, with noise that is not Gaussian."""

    box: BoxSum


@dataclass(frozen=True, slots=True)
class BoundedRange:
    """A choice by the exponential mechanism, given by the largest distance between the privacy losses of two outcomes:
    if a unit is added or removed, and if one is replaced."""

    added: float
    replaced: float


@dataclass(frozen=True, slots=True)
class UniqueItems:
    """Counts of items with Gaussian noise of `sigma`, where a unit has up to `most` items and counts from `threshold`
    on are released. If no other unit has an item, no noise is drawn for it in the other data set."""

    most: int
    sigma: float
    threshold: float


@dataclass(frozen=True, slots=True)
class RenyiCurve:
    """A release that has only Rényi divergences, given by `divergences` at orders from 1 to `max_order`."""

    divergences: Callable[[Array], Array]
    max_order: float


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A release that is assessed as a whole: by `epsilon` at a δ; and, if it composes, by `deltas` at each of some
    ε >= 0, in both directions."""

    epsilon: Callable[[float], float]
    deltas: Callable[[Sequence[float]], list[float]] | None = None


@dataclass(frozen=True, slots=True)
class LibraryLoss:
    """A release whose privacy-loss distribution the library makes itself: `distribution` requests it on a grid of a
    given step, with a mass that may be cut off, for the relation under which the event is accounted. `full`: the
    probability, at most, that a batch in it has its maximum size."""

    distribution: Callable[[float, float], Any]
    full: float = 0.0


@dataclass(frozen=True, slots=True)
class SelectedRuns:
    """The best of several runs; each releases what `run` asks about, as (question, count) pairs. The number of runs is
    `negative_binomial` (truncated, η = `shape`), `poisson` or `fixed`, with mean `mean`."""

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
