"""The `mechanism` block of gradient encoding: clip each gradient into a codeword's box, add noise, denoise, step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, NonNegativeFloat, NonNegativeInt, PositiveInt, Text, word_form
from dprecipe.noise.schema import PhasedNoise, phases
from dprecipe.noisy_sum.sampling import Sampling

Norm = Annotated[float, Field(ge=1e-6, le=1e6)]
Relative = Annotated[float, Field(ge=1e-6, le=1e6)]
NORM = "L2 norm of every codeword: the most one unit can move the sum"


class GaussianCodebook(Block):
    """Codewords of sorted normal magnitudes, drawn from a public seed."""

    source: Literal["gaussian"]
    size: Annotated[int, Field(gt=0, le=100_000)] = Field(1000, description="how many codewords")
    floor: NonNegativeFloat = Field(1e-5, description="drawn magnitudes below this become zero")
    norm: Norm = Field(1.0, description=NORM)
    seed: NonNegativeInt = Field(0, description="public: the codebook is no secret")


class FileCodebook(Block):
    """Codewords from a file, made from public data: `dprecipe codebook` writes one."""

    source: Literal["file"]
    path: Text = Field(description="an .npz file; relative to the recipe that is run, not to one it extends")
    norm: Norm = Field(1.0, description=NORM)


class GradientCodebook(Block):
    """Codewords fitted to gradients. Refused: the training records are private."""

    source: Literal["gradients"]
    norm: Norm = Field(1.0, description=NORM)


Codebook = Annotated[GaussianCodebook | FileCodebook | GradientCodebook, Field(discriminator="source")]


class KolmogorovSmirnov(Block):
    """Scale each step by how far the noisy sum is from pure noise."""

    method: Literal["kolmogorov_smirnov"]
    per: Literal["model", "group"] = Field("model", description="one factor for all coordinates, or one for each group")
    shrink: bool = Field(False, description="subtract the expected value under pure noise, a public constant")
    on: Literal["noisy_sum", "clean_sum"] = Field("noisy_sum", description="`clean_sum` is refused: it is private")


Denoise = Annotated[
    Annotated[Literal["kolmogorov_smirnov", "none"], Tag("word")] | Annotated[KolmogorovSmirnov, Tag("block")],
    Discriminator(lambda value: "block" if word_form(value) == "block" else "word"),
]


class Slots(Block):
    """Micro-batches of about `size` units whose gradients are averaged before they are encoded."""

    size: PositiveInt
    by: Literal["unit", "position"] = Field(
        "unit", description="`unit`: each unit draws its slot independently; `position` is refused"
    )


Microbatch = Annotated[
    Annotated[PositiveInt, Tag("number")] | Annotated[Slots, Tag("block")],
    Discriminator(lambda value: "block" if word_form(value) == "block" else "number"),
]


class Encoded(Block):
    """Gradient encoding and denoising (Nasr, Shokri and Houmansadr 2020)."""

    kind: Literal["encoded"]
    codebook: Codebook
    noise: PhasedNoise
    denoise: Denoise = Field("kolmogorov_smirnov", description="the public step multiplier, or `none`")
    sampling: Sampling
    microbatch: Microbatch = Field(1, description="units averaged before encoding; more than 1 costs twice the noise")
    groups: Literal["model", "layer"] = Field(
        "model", description="rank and bound all coordinates jointly, or each layer separately"
    )
    group_noise: tuple[Relative, ...] | None = Field(
        None, description="relative scale of the noise in each layer; needs `groups: layer`"
    )
    divide_by: Literal["expected_batch", "realised_batch"] = Field(
        "expected_batch", description="`realised_batch` is refused: who joined is private"
    )

    @property
    def microbatch_size(self) -> int:
        """Average number of units that share a code."""
        return self.microbatch if isinstance(self.microbatch, int) else self.microbatch.size

    @property
    def denoising(self) -> KolmogorovSmirnov | None:
        """The block form of `denoise`."""
        if isinstance(self.denoise, KolmogorovSmirnov):
            return self.denoise
        return None if self.denoise == "none" else KolmogorovSmirnov(method="kolmogorov_smirnov")

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """Values that may be `auto`, by dotted path."""
        return {f"{path}.multiplier": noise.multiplier for path, noise in phases(self.noise)}


BLOCK = Encoded
