"""A noise block: `{family, multiplier, …shape}`.

All six families are words of the language. Each mechanism lists those that it can account for, so that a family without
a bound is refused with a reason, and not as a spelling mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, overload

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, PositiveFloat, PositiveInt, Schedule, word_form

# Far beyond this range, floating-point numbers end.
Multiplier = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[float, Field(ge=1e-3, le=1e6)], Tag("number")],
    Discriminator(word_form),
]
MULTIPLIER = "scale of the noise, divided by the clip norm or the codeword norm, or in votes; `auto`: solved"
MOVING = "scale of the noise, divided by the clip norm; `auto`: solved; or a schedule"


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
    force: bool = Field(False, description="use it although its draws have no mean and no variance")


class VarianceGammaNoise(Block):
    """Variance-gamma noise."""

    family: Literal["variance_gamma"]
    shape: PositiveFloat = Field(description="λ")
    multiplier: Multiplier = Field(description=MULTIPLIER)


class SechNoise(Block):
    """Hyperbolic-secant noise."""

    family: Literal["sech"]
    multiplier: Multiplier = Field(description=MULTIPLIER)


class MultiplierSchedule(Schedule):
    """A noise multiplier that moves from one value to another, then stays."""

    from_: Annotated[float, Field(ge=1e-3, le=1e6, alias="from", description="at the first step")]
    to: Annotated[float, Field(ge=1e-3, le=1e6, description="at the last step of the schedule")]


MovingMultiplier = Annotated[
    Annotated[Auto, Tag("word")]
    | Annotated[Annotated[float, Field(ge=1e-3, le=1e6)], Tag("number")]
    | Annotated[MultiplierSchedule, Tag("block")],
    Discriminator(word_form),
]


class MovingGaussianNoise(Block):
    """Normal noise whose multiplier may move."""

    family: Literal["gaussian"]
    multiplier: MovingMultiplier = Field(description=MOVING)


class MovingLaplaceNoise(Block):
    """Laplace noise whose multiplier may move."""

    family: Literal["laplace"]
    multiplier: MovingMultiplier = Field(description=MOVING)


Noise = Annotated[
    GaussianNoise | LaplaceNoise | StudentTNoise | CauchyNoise | VarianceGammaNoise | SechNoise,
    Field(discriminator="family"),
]


class Lasting(Block):
    """A phase of a run: noise and its length. The last phase lasts to the end and states no length."""

    epochs: PositiveFloat | None = Field(None, description="length of the phase in passes over the data; or `steps`")
    steps: PositiveInt | None = None


class GaussianPhase(GaussianNoise, Lasting):
    """A phase of normal noise."""


class LaplacePhase(LaplaceNoise, Lasting):
    """A phase of Laplace noise."""


class StudentTPhase(StudentTNoise, Lasting):
    """A phase of Student's t noise."""


class CauchyPhase(CauchyNoise, Lasting):
    """A phase of Cauchy noise."""


class VarianceGammaPhase(VarianceGammaNoise, Lasting):
    """A phase of variance-gamma noise."""


class SechPhase(SechNoise, Lasting):
    """A phase of hyperbolic-secant noise."""


Phase = Annotated[
    GaussianPhase | LaplacePhase | StudentTPhase | CauchyPhase | VarianceGammaPhase | SechPhase,
    Field(discriminator="family"),
]


def one_or_many(value: Any) -> str:
    """Returns the tag of a value that is one block or a list of them."""
    return "many" if isinstance(value, Sequence) and not isinstance(value, str) else "one"


PhasedNoise = Annotated[
    Annotated[Noise, Tag("one")] | Annotated[Annotated[tuple[Phase, ...], Field(min_length=1)], Tag("many")],
    Discriminator(one_or_many),
]
"""One noise for the whole run, or a list of phases in order."""

OneMovingNoise = Annotated[
    MovingGaussianNoise | MovingLaplaceNoise | StudentTNoise | CauchyNoise | VarianceGammaNoise | SechNoise,
    Field(discriminator="family"),
]
MovingNoise = Annotated[
    Annotated[OneMovingNoise, Tag("one")] | Annotated[Annotated[tuple[Phase, ...], Field(min_length=1)], Tag("many")],
    Discriminator(one_or_many),
]
"""The same as `PhasedNoise`, or one noise whose multiplier follows a schedule."""


@overload
def phases(noise: Noise | tuple[Phase, ...], path: str = ...) -> tuple[tuple[str, Noise], ...]: ...
@overload
def phases(
    noise: OneMovingNoise | tuple[Phase, ...], path: str = ...
) -> tuple[tuple[str, OneMovingNoise | Noise], ...]: ...
def phases(noise: Any, path: str = "mechanism.noise") -> tuple[tuple[str, Any], ...]:
    """Returns each noise block of a run with its dotted path."""
    if isinstance(noise, tuple):
        return tuple((f"{path}.{index}", phase) for index, phase in enumerate(noise))
    return ((path, noise),)


def shape_of(noise: Noise) -> float | None:
    """Returns the family's parameter beyond its scale (`dprecipe.noise.families.SHAPED`)."""
    match noise:
        case StudentTNoise(df=df):
            return df
        case VarianceGammaNoise(shape=shape):
            return shape
        case _:
            return None
