"""The `training` block: how a model learns by gradient steps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.recipe.base import (
    Block,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    SolvableFloat,
    SolvableInt,
    form,
)


class LearningRateSchedule(Block):
    """A learning rate that moves from one value to another, then stays."""

    schedule: Literal["linear", "cosine"]
    from_: PositiveFloat = Field(alias="from", description="at the first step")
    to: NonNegativeFloat = Field(description="at the last step of the schedule")
    epochs: PositiveFloat | None = Field(None, description="length; the whole run when left out")


LearningRate = Annotated[
    Annotated[PositiveFloat, Tag("number")] | Annotated[LearningRateSchedule, Tag("block")],
    Discriminator(lambda value: "block" if form(value) == "block" else "number"),
]


class Sgd(Block):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    lr: LearningRate = Field(description="learning rate: a number or a schedule")
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled: it reads the weights, never the data")


class Adam(Block):
    """Adam, with decoupled weight decay (AdamW)."""

    kind: Literal["adam"]
    lr: LearningRate = Field(description="learning rate: a number or a schedule")
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled: it reads the weights, never the data")


Optimizer = Annotated[Sgd | Adam, Field(discriminator="kind")]


class EmaAverage(Block):
    """Release the exponential moving average of the iterates."""

    kind: Literal["ema"]
    decay: Fraction = Field(description="weight of the past at each step")


class TailAverage(Block):
    """Release the mean of the last iterates."""

    kind: Literal["tail"]
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(description="part of the run that is averaged")


class Vat(Block):
    """Learn from unlabelled public records too: predictions shall not change nearby (virtual adversarial training)."""

    kind: Literal["vat"]
    weight: NonNegativeFloat = Field(1.0, description="of the smoothness against the labels")
    radius: PositiveFloat = Field(2.0, description="L2 length of the adversarial change of a record's features")
    xi: PositiveFloat = Field(1e-2, description="length of the probe that finds its direction")
    power_iterations: PositiveInt = 1
    entropy: NonNegativeFloat = Field(1.0, description="weight of confident predictions on unlabelled records")
    batch_size: PositiveInt = Field(128, description="unlabelled records in one update")


class Training(Block):
    """Optimiser, length, schedules; of models that learn by gradient steps. Exactly one of `epochs` and `steps`."""

    epochs: SolvableFloat | None = Field(None, description="passes over the data; `auto`: until the budget ends")
    steps: SolvableInt | None = Field(None, description="updates; `auto`: until the budget ends")
    batch_size: PositiveInt | None = Field(
        None, description="records in one update of a student; where steps are noisy, `mechanism.sampling` says it"
    )
    optimizer: Optimizer | None = None
    average: Annotated[EmaAverage | TailAverage, Field(discriminator="kind")] | None = Field(
        None, description="release an average of the iterates: post-processing, it costs no privacy"
    )
    semi_supervised: Vat | None = Field(None, description="of a student: learn from unanswered public records too")

    @property
    def descent(self) -> Optimizer:
        """The optimiser of a model that learns by gradient steps.

        Raises:
            ValueError: there is none; `planning.rules` refuses such a recipe.
        """
        if self.optimizer is None:
            raise ValueError("a model that learns by gradient steps needs training.optimizer")
        return self.optimizer
