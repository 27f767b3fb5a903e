"""Steps of preprocessing that take images, or their maps: fixed transforms, and moves in training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.language.base import Block, PositiveInt
from dprecipe.priors.schema import Generator


class Scattering(Block):
    """Images to the coefficients of a wavelet scattering transform of second order: fixed, nothing is learned."""

    scales: Annotated[int, Field(ge=1, le=4)] = Field(
        2, description="J: wavelets of J sizes; height and width shrink by 2^J"
    )
    angles: Annotated[int, Field(ge=1, le=16)] = Field(8, description="L: wavelets of L directions")


class Patches(Block):
    """Images to maps of what they share with small parts of generated images: constants from a seed, no record's.

    Two channels a filter: how far an image's parts are like it, and how far they are unlike it, averaged over a grid.
    """

    filters: Annotated[int, Field(ge=1, le=4096)] = Field(512, description="filters, each a part of a generated image")
    size: Annotated[int, Field(ge=2, le=12)] = Field(6, description="pixels of a side of a part")
    grid: Annotated[int, Field(ge=1, le=16)] = Field(3, description="rows, and columns, of averages")
    threshold: Annotated[float, Field(ge=0, le=8)] = Field(
        0.25, description="what a part shares with a filter counts as far as it exceeds this"
    )
    mirror: bool = Field(
        False,
        description="true: means of an image's features and its mirror image's, for what has no left or right",
    )
    generator: Generator = Field("mixed", description="the random process, as in `model.prior`")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="of the images; it is public")


class Whiten(Block):
    """Features of images evened out by images of random processes: constants from a seed, no record's.

    Each direction is divided by a power of the standard deviation that features of such images have along it.
    """

    across: Literal["features", "channels"] = Field(
        "features",
        description="`features`: all of them, to one vector; `channels`: those of each place alike, and maps stay maps",
    )
    power: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5, description="1: all directions vary alike; 0.5: halfway there, by logarithms"
    )
    floor: Annotated[float, Field(ge=1e-6, le=1)] = Field(
        0.01, description="added to each variance, in units of the largest: what varies less is hardly amplified"
    )
    images: Annotated[int, Field(ge=64, le=20_000)] = Field(6_000, description="how many are made")
    generator: Generator = Field("mixed", description="the random process, as in `model.prior`")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="of the images; it is public")


class Crop(Block):
    """Augmentation: pad by this many pixels and crop back at a random place, in training only."""

    padding: PositiveInt


class Flip(Block):
    """Augmentation: mirror an image, or its maps of scattering, with this probability, in training only."""

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
