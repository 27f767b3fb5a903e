"""The `mechanism` block."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dprecipe.language.base import Auto, Block
from dprecipe.noise.schema import Multiplier


class OutputPerturbation(Block):
    """Noise on the minimum of a strongly convex loss, once (Chaudhuri, Monteleoni & Sarwate 2011, Algorithm 1)."""

    kind: Literal["output_perturbation"]
    noise_multiplier: Multiplier = Field(
        description="m: noise has density ∝ exp(-‖b‖ / (m Δ)), Δ how far one record moves the minimum; `auto`: solved"
    )

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """Values that can be `auto`, by dotted path in the recipe."""
        return {"mechanism.noise_multiplier": self.noise_multiplier}


BLOCK = OutputPerturbation
