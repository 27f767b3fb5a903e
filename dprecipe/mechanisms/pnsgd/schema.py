"""The `mechanism` block of projected noisy SGD: plain steps on a convex loss, of which only the last iterate shows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.language.base import Auto, Block, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.language.training import LearningRate
from dprecipe.noise.schema import PhasedNoise, phases


class BallConstraint(Block):
    """All parameters together have at most this L2 norm."""

    kind: Literal["ball"]
    radius: PositiveFloat


class BoxConstraint(Block):
    """Each parameter lies between minus this bound and this bound; of one parameter, an interval."""

    kind: Literal["box"]
    bound: PositiveFloat


Constraint = Annotated[BallConstraint | BoxConstraint, Field(discriminator="kind")]


class Constants(Block):
    """Rounder constants than those derived from the model, none of which may promise more than they do."""

    lipschitz: PositiveFloat | None = Field(None, description="L, of the loss without its regulariser; no smaller")
    smoothness: PositiveFloat | None = Field(None, description="β; no smaller")
    strong_convexity: NonNegativeFloat | None = Field(None, description="ρ; no larger")


class Pnsgd(Block):
    """Projected noisy SGD with hidden iterates (Asoodeh, Diaz & Calmon 2020; Feldman et al. 2018)."""

    kind: Literal["pnsgd"]
    constraint: Constraint = Field(description="the convex set, with 0 in its middle, that every step is projected on")
    learning_rate: LearningRate = Field(description="η of a step: a number or a schedule")
    noise: PhasedNoise = Field(
        description="added to the mean gradient of a step, before the learning rate; a list: phases, in order"
    )
    batch_size: PositiveInt = Field(1, description="records of a step, whose mean gradient it takes")
    order: Literal["sequential", "permuted"] = Field(
        "permuted",
        description="`permuted`: one random order for all passes, one guarantee for all records; `sequential`: the "
        "file's, a guarantee for each position",
    )
    stop: Literal["last", "random"] = Field(
        "last", description="`random`: after a number of steps drawn uniformly from 1 to all"
    )
    constants: Constants = Field(default_factory=Constants, description="instead of those derived from the model")
    checkpoint: Literal["encrypted", "none", "plain"] = Field(
        "encrypted", description="how a run that was cut short goes on; `none`: from its start"
    )
    iterates: Literal["hidden", "released"] = Field("hidden", description="of the model, before the last one")
    private_log: bool = Field(False, description="write the loss on the private records to `private/`, pass by pass")

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """What can be `auto`, by dotted path."""
        return {f"{path}.multiplier": noise.multiplier for path, noise in phases(self.noise)}


BLOCK = Pnsgd
