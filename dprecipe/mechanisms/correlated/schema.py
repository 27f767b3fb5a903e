"""The `mechanism` block of correlated noise: clip each unit's gradient, add noise to the sum, take part of it back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, PositiveInt, word_form
from dprecipe.noise.schema import Multiplier
from dprecipe.noisy_sum.clip import CLIP_SCHEMA, Clip
from dprecipe.noisy_sum.sampling import (
    DealtSampling,
    FixedOrderSampling,
    FixedSizeSampling,
    FullBatchSampling,
    PermutedSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
)

Share = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[float, Field(ge=0, le=1)], Tag("number")],
    Discriminator(word_form),
]


class PreviousStepNoise(Block):
    """Normal noise, less a share of the fresh noise of the step before: z_t - λ z_{t-1} (DP-λCGD)."""

    form: Literal["previous_step"]
    multiplier: Multiplier = Field(
        description="standard deviation of a step's fresh noise, divided by the clip norm; `auto`: solved"
    )
    previous: Share = Field(
        "auto",
        description="λ, the share that is taken back; `auto`: what leaves the least noise in the iterates",
    )


class Correlated(Block):
    """DP-SGD with correlated noise, in a fixed order."""

    kind: Literal["correlated"]
    clip: Clip = Field(description="how far one unit can move the sum of gradients", json_schema_extra=CLIP_SCHEMA)
    noise: PreviousStepNoise
    sampling: Annotated[
        FixedOrderSampling
        | PoissonSampling
        | TruncatedPoissonSampling
        | FixedSizeSampling
        | FullBatchSampling
        | DealtSampling
        | PermutedSampling,
        Field(discriminator="scheme", description="`fixed_order`; others have no account here"),
    ]
    augmentations: PositiveInt = Field(
        1, description="independently augmented copies of each record; their gradients are averaged before clipping"
    )

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """The values that may be `auto`, by dotted path. λ is no free variable: it follows from the length."""
        return {"mechanism.noise.multiplier": self.noise.multiplier}


BLOCK = Correlated
