"""Runs whose steps are all equal, in which `dprecipe noise` compares other noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dprecipe.language.base import Auto, Block


@dataclass(frozen=True, slots=True)
class UniformSteps:
    """A run in which each step adds Gaussian noise of one multiplier to one sum of clipped gradients."""

    norm: float
    """Largest L2 distance that one unit can move the sum."""
    multiplier: float | Auto
    sampling: Block


@runtime_checkable
class MayHaveUniformSteps(Protocol):
    """A `mechanism` block with settings under which all steps are equal."""

    def uniform_steps(self) -> UniformSteps | None:
        """Returns its steps; None if they are not equal, or their noise is not Gaussian."""
