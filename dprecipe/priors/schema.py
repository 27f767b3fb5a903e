"""The block `model.prior`: initial weights that were learned from images of a random process, and from no real data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.language.base import Block

MIN_SIDE, MAX_SIDE, CHANNELS = 4, 256, (1, 3)
"""Sides and channels of images that generators make: up to this size, sums of `spectrum` stay below 2^53."""


Generator = Literal["dead_leaves", "spectrum", "wavelets", "strokes", "mixed"]


class Prior(Block):
    """The images that `model.init` was learned from, and how: `dprecipe prior` makes the file of this block.

    Source: X. Tang, A. Panda, V. Sehwag, P. Mittal, "Differentially Private Image Classification by Learning Priors
    from Random Processes", NeurIPS 2023.
    """

    generator: Generator = Field(
        description="the random process: `dead_leaves` are shapes that cover each other, `spectrum` has random phases "
        "under a power law, `wavelets` has few large coefficients, `mixed` takes turns of these; `strokes` are lines "
        "of a pen, as in scans of digits and letters"
    )
    # Of all generators together: images of one version, generator, seed and shape are the same bytes for good.
    version: Literal[1] = Field(1, description="of the generator: another makes other images")
    images: Annotated[int, Field(ge=64, le=10_000_000)] = Field(20_000, description="how many")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="of images, views and weights; it is public")
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the images; `dprecipe prior` then refuses to learn from any others"
    )
    steps: Annotated[int, Field(ge=1, le=10_000_000)] = Field(2_000, description="of learning")
    batch_size: Annotated[int, Field(ge=2, le=65_536)] = Field(256, description="images a step; each is seen twice")
    lr: Annotated[float, Field(gt=0, le=1)] = Field(1e-3, description="learning rate at the start; it falls to 0")
    uniformity: Annotated[float, Field(ge=0, le=100)] = Field(
        1.0, description="weight of the loss that spreads all images, beside that which draws two views together"
    )


def fits_generators(shape: tuple[int, ...]) -> bool:
    """Returns True if generators make images of this shape: 1 or 3 channels, 4 to 256 pixels a side."""
    return len(shape) == 3 and shape[0] in CHANNELS and all(MIN_SIDE <= side <= MAX_SIDE for side in shape[1:])
