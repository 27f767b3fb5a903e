"""Runs whose steps are all equal: what `dprecipe noise` needs to compare other noise in them."""

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
    """A `mechanism` block with settings under which all steps are equal."""

    def uniform_steps(self) -> UniformSteps | None:
        """Its steps; None if they are not equal, or their noise is not Gaussian."""
