"""A noise block: `{family, multiplier, …shape}`.

All six families are words of the language; which of them a mechanism can account for is its room's business
(`dprecipe.planning.rules`), so that a pair without a bound is refused with a reason and not as a spelling mistake.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.recipe.base import Auto, Block, PositiveFloat, form

# Far beyond this range lies nothing but the end of floating-point numbers.
Multiplier = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[float, Field(ge=1e-3, le=1e6)], Tag("number")],
    Discriminator(form),
]
MULTIPLIER = "scale of the noise, divided by the sensitivity of what it protects; `auto`: solved"


class GaussianNoise(Block):
    """Normal noise."""

    family: Literal["gaussian"]
    multiplier: Multiplier = Field(description=MULTIPLIER)


class LaplaceNoise(Block):
    """Laplace noise."""

    family: Literal["laplace"]
    multiplier: Multiplier = Field(description=MULTIPLIER)


class StudentTNoise(Block):
    """Student's t noise."""

    family: Literal["student_t"]
    df: PositiveFloat = Field(description="degrees of freedom")
    multiplier: Multiplier = Field(description=MULTIPLIER)


class CauchyNoise(Block):
    """Cauchy noise."""

    family: Literal["cauchy"]
    multiplier: Multiplier = Field(description=MULTIPLIER)


class VarianceGammaNoise(Block):
    """Variance-gamma noise."""

    family: Literal["variance_gamma"]
    shape: PositiveFloat = Field(description="λ")
    multiplier: Multiplier = Field(description=MULTIPLIER)


class SechNoise(Block):
    """Hyperbolic-secant noise."""

    family: Literal["sech"]
    multiplier: Multiplier = Field(description=MULTIPLIER)


Noise = Annotated[
    GaussianNoise | LaplaceNoise | StudentTNoise | CauchyNoise | VarianceGammaNoise | SechNoise,
    Field(discriminator="family"),
]
