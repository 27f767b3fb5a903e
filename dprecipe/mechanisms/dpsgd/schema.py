"""The `mechanism` block of DP-SGD: clip each unit's gradient, add noise to the sum, step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.mechanisms.sampling import Sampling
from dprecipe.noise.schema import Noise, phases
from dprecipe.recipe.base import Auto, Block


class Clip(Block):
    """How far one unit can move the sum of gradients."""

    norm: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(description="largest L2 norm of a unit's gradient")
    mode: Literal["flat"] = Field("flat", description="`flat`: one norm over all parameters")


class Dpsgd(Block):
    """DP-SGD (Abadi et al. 2016)."""

    kind: Literal["dpsgd"]
    clip: Clip
    noise: Noise
    sampling: Sampling

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """What can be `auto`, by dotted path."""
        return {f"{path}.multiplier": noise.multiplier for path, noise in phases(self.noise)}
