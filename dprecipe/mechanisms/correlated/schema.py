"""The `mechanism` block of correlated noise: clip each unit's gradient, add noise to the sum, take part of it back."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, PositiveInt, word_form
from dprecipe.noise.schema import Multiplier
from dprecipe.noisy_sum.clip import CLIP_SCHEMA, Clip
from dprecipe.noisy_sum.sampling import (
    CyclicPoissonSampling,
    DealtSampling,
    FixedOrderSampling,
    FixedSizeSampling,
    FullBatchSampling,
    PermutedSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
)
from dprecipe.privacy.correlation.strategies import MAX_BANDS

Share = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[float, Field(ge=0, le=1)], Tag("number")],
    Discriminator(word_form),
]
Power = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[float, Field(gt=0, le=1)], Tag("number")],
    Discriminator(word_form),
]
Bands = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[int, Field(ge=1, le=MAX_BANDS)], Tag("number")],
    Discriminator(word_form),
]
FRESH = "standard deviation of a step's fresh noise, divided by the clip norm; `auto`: solved"


class PreviousStepNoise(Block):
    """Normal noise, less a share of the fresh noise of the step before: z_t - λ z_{t-1} (DP-λCGD). In a fixed order."""

    form: Literal["previous_step"]
    multiplier: Multiplier = Field(description=FRESH)
    previous: Share = Field(
        "auto",
        description="λ, the share that is taken back; `auto`: what leaves the least noise in the iterates",
    )


class BandedNoise(Block):
    """Normal noise, less shares of all noise of a few steps before: z_t - Σ c_j w_{t-j} (BandMF). Of cyclic Poisson
    batches."""

    form: Literal["banded"]
    multiplier: Multiplier = Field(description=FRESH)
    bands: Bands = Field(
        "auto",
        description="b: the noise of b - 1 steps stays in memory; `auto`: what leaves the least noise in the iterates",
    )
    power: Power = Field(
        "auto",
        description="g: c_0, c_1, … are the first b coefficients of (1 - x)^-g; `auto`: as for `bands`",
    )


class Correlated(Block):
    """DP-SGD with correlated noise, in a fixed order or with parts of the data in turn."""

    kind: Literal["correlated"]
    clip: Clip = Field(description="how far one unit can move the sum of gradients", json_schema_extra=CLIP_SCHEMA)
    noise: Annotated[PreviousStepNoise | BandedNoise, Field(discriminator="form")]
    sampling: Annotated[
        FixedOrderSampling
        | CyclicPoissonSampling
        | PoissonSampling
        | TruncatedPoissonSampling
        | FixedSizeSampling
        | FullBatchSampling
        | DealtSampling
        | PermutedSampling,
        Field(
            discriminator="scheme",
            description="`fixed_order` for `previous_step`, `cyclic_poisson` for `banded`; others have no account here",
        ),
    ]
    augmentations: PositiveInt = Field(
        1, description="augmented copies of each record; their gradients are averaged before clipping"
    )

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """The free variables that may be `auto`, by dotted path."""
        return {"mechanism.noise.multiplier": self.noise.multiplier}

    @property
    def choices(self) -> dict[str, float | int | Auto]:
        """The other values that may be `auto`: λ, or bands and their power. They follow from length and budget."""
        noise = self.noise
        if isinstance(noise, PreviousStepNoise):
            return {"mechanism.noise.previous": noise.previous}
        return {"mechanism.noise.bands": noise.bands, "mechanism.noise.power": noise.power}


BLOCK = Correlated
