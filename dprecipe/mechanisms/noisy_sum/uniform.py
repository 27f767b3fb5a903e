"""Runs whose steps are all alike: what `dprecipe noise` needs to ask what other noise would do in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dprecipe.language.base import Auto, Block


@dataclass(frozen=True, slots=True)
class UniformSteps:
    """Each step adds Gaussian noise of one multiplier to one sum of clipped gradients."""

    norm: float
    """How far one unit can move the sum, L2."""
    multiplier: float | Auto
    sampling: Block


@runtime_checkable
class MayHaveUniformSteps(Protocol):
    """A `mechanism` block of which some settings make all steps alike."""

    def uniform_steps(self) -> UniformSteps | None:
        """Its steps; None where they are not alike, or their noise is another."""
