"""The places of canaries' gradients: one coordinate in each group of clipped parameters, another one in each step.

A canary that kept its coordinate would compete with what the records want of that weight: their gradients there add up
over the steps, and far exceed the canary's. So coordinates and signs change, and what the records add to a score has a
random sign of its own in each step and averages out (as a spread spectrum does). For the same reason canaries pull no
weight in one direction: to the model they are a little more noise.

All of it is public: a function of the plan's digest, the step, and the canary's number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Positions of the groups of clipped parameters in a flat gradient: group g has the coordinates
    `starts[g][k]` … `starts[g][k] + lengths[g][k]` of each of its parts k."""

    starts: tuple[Numbers, ...]
    lengths: tuple[Numbers, ...]

    @staticmethod
    def of(groups: Sequence[Sequence[slice]]) -> Layout:
        """Returns the layout of the groups, each a list of slices."""
        return Layout(
            tuple(np.array([part.start for part in parts], np.int64) for parts in groups),
            tuple(np.array([part.stop - part.start for part in parts], np.int64) for parts in groups),
        )

    def flat(self, group: int, places: Numbers) -> Numbers:
        """Returns the coordinates of a flat gradient at these places of a group."""
        ends = np.cumsum(self.lengths[group])
        part = np.searchsorted(ends, places, side="right")
        result: Numbers = self.starts[group][part] + places - (ends - self.lengths[group])[part]
        return result


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Places in one step, for G groups and M canaries: coordinates of a flat gradient, and signs, (G, M) each."""

    places: Numbers
    signs: Floats


def place_canaries(layout: Layout, count: int, key: str, step: int) -> Placement:
    """Places `count` canaries in a step.

    Guarantees: the same for the same arguments; no two canaries share a coordinate of a group that has at least as many
    as there are canaries.

    `key`: the plan's digest.
    """
    generator = generator_of(key, step)
    numbers, places, signs = np.arange(count), [], []
    for group, lengths in enumerate(layout.lengths):
        size = int(lengths.sum())
        places.append(layout.flat(group, (_draw_stride(generator, size) * numbers + generator.integers(size)) % size))
        signs.append(2.0 * generator.integers(2, size=count) - 1.0)
    return Placement(np.stack(places), np.stack(signs))


def _draw_stride(generator: np.random.Generator, size: int) -> int:
    """Returns a number below `size` whose first `size` multiples are all different modulo it."""
    while True:
        stride = int(generator.integers(1, max(2, size)))
        if math.gcd(stride, size) == 1:
            return stride


def generator_of(key: str, number: int) -> np.random.Generator:
    """Returns public draws: a function of the plan's digest and a number."""
    return np.random.default_rng([int(key.removeprefix("sha256:"), 16), number])
