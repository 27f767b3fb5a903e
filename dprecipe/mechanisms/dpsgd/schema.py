"""The `mechanism` block of DP-SGD: clip each unit's gradient, add noise to the sum, step."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dprecipe.language.base import Auto, Block, PositiveInt, Schedule
from dprecipe.noise.schema import MovingGaussianNoise, MovingNoise, phases
from dprecipe.noisy_sum.clip import CLIP_SCHEMA, Clip
from dprecipe.noisy_sum.sampling import BatchSampling, UniformSteps, find_cap


class Dpsgd(Block):
    """DP-SGD (Abadi et al. 2016)."""

    kind: Literal["dpsgd"]
    clip: Clip = Field(
        description="how far one unit can move the sum of gradients",
        json_schema_extra=CLIP_SCHEMA,
    )
    noise: MovingNoise = Field(description="one noise, or a list of phases in order")
    sampling: BatchSampling
    augmentations: PositiveInt = Field(
        1, description="augmented copies of each record; their gradients are averaged before clipping"
    )

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """The values that may be `auto`, by dotted path."""
        result = {f"{path}.multiplier": noise.multiplier for path, noise in phases(self.noise)}
        return {path: value for path, value in result.items() if not isinstance(value, Schedule)}

    def uniform_steps(self) -> UniformSteps | None:
        """Returns the steps, if all are equal and the noise is Gaussian; else None."""
        noise, norm, sampling = self.noise, self.clip.norm, self.sampling
        if (
            not isinstance(norm, float)
            or getattr(self.clip, "noise", None) is not None
            or not isinstance(noise, MovingGaussianNoise)
            or isinstance(noise.multiplier, Schedule)
            or sampling.scheme not in ("poisson", "dealt", "full_batch")
            or find_cap(sampling) is not None
            or isinstance(getattr(sampling, "batch_size", None), Schedule)
        ):
            return None
        return UniformSteps(norm, noise.multiplier, sampling)


BLOCK = Dpsgd
