"""The `mechanism` block of projected noisy SGD: noisy steps on a convex loss; only the last iterate is released."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.language.training import LearningRate
from dprecipe.noise.schema import PhasedNoise, one_or_many, phases

Coordinate = Annotated[float, Field(ge=-1e6, le=1e6)]
Coordinates = Annotated[
    Annotated[Coordinate, Tag("one")]
    | Annotated[Annotated[tuple[Coordinate, ...], Field(min_length=1, max_length=100_000)], Tag("many")],
    Discriminator(one_or_many),
]
"""One number for all parameters, or one for each."""


def list_coordinates(numbers: float | tuple[float, ...] | None, parameters: int) -> tuple[float, ...]:
    """Returns a number for each parameter; zeros where there are none."""
    return numbers if isinstance(numbers, tuple) else (0.0 if numbers is None else numbers,) * parameters


class BallConstraint(Block):
    """The vector of all parameters is at most this far from a public centre, in L2 norm."""

    kind: Literal["ball"]
    radius: PositiveFloat
    centre: Coordinates | None = Field(
        None, description="public: a number for all parameters, or one for each, in their order; 0 when left out"
    )


class BoxConstraint(Block):
    """Each parameter lies between minus this bound and this bound; of one parameter, an interval."""

    kind: Literal["box"]
    bound: PositiveFloat


class IntervalConstraint(Block):
    """Each parameter lies in its own interval."""

    kind: Literal["intervals"]
    low: Coordinates = Field(description="a number for all parameters, or one for each, in their order")
    high: Coordinates = Field(description="likewise; above `low`")


class SimplexConstraint(Block):
    """No parameter is negative, and all of them add up to `total`: shares of a whole."""

    kind: Literal["simplex"]
    total: PositiveFloat = 1.0


Constraint = Annotated[
    BallConstraint | BoxConstraint | IntervalConstraint | SimplexConstraint, Field(discriminator="kind")
]


class Constants(Block):
    """Rounded constants instead of those proved of the model; none may be stronger than the proved one."""

    lipschitz: PositiveFloat | None = Field(None, description="L, of the loss without its regulariser; no smaller")
    smoothness: PositiveFloat | None = Field(None, description="β; no smaller")
    strong_convexity: NonNegativeFloat | None = Field(None, description="ρ; no larger")


class Pnsgd(Block):
    """Projected noisy SGD that releases only the last iterate (Asoodeh, Diaz & Calmon 2020; Feldman et al. 2018)."""

    kind: Literal["pnsgd"]
    constraint: Constraint = Field(description="the convex set that every step is projected on")
    learning_rate: LearningRate = Field(description="η of a step: a number or a schedule")
    noise: PhasedNoise = Field(
        description="added to the mean gradient of a step, before the learning rate; a list gives phases, in order"
    )
    batch_size: PositiveInt = Field(1, description="records of one step")
    order: Literal["sequential", "permuted"] = Field(
        "permuted",
        description="`permuted`: one random order for all passes, and one guarantee for all records; `sequential`: the "
        "order of the file, and a guarantee for each position",
    )
    stop: Literal["last", "random"] = Field(
        "last", description="`last`: after all steps; `random`: after a number of steps drawn uniformly from 1 to all"
    )
    constants: Constants = Field(default_factory=Constants, description="instead of those proved of the model")
    checkpoint: Literal["encrypted", "none", "plain"] = Field(
        "encrypted", description="what an interrupted run resumes from; `none`: it starts over"
    )
    iterates: Literal["hidden", "released"] = Field(
        "hidden", description="iterates before the last one; `released` is refused"
    )
    private_log: bool = Field(False, description="write the loss on the private records to `private/`, pass by pass")

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """Values that can be `auto`, by dotted path."""
        return {f"{path}.multiplier": noise.multiplier for path, noise in phases(self.noise)}


BLOCK = Pnsgd
