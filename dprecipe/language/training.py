"""The `training` block: how a model learns by gradient steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import (
    Block,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Schedule,
    SolvableFloat,
    SolvableInt,
    SparseBlock,
    Text,
    word_form,
)

MAX_RATE = 1e20
"""A larger learning rate, and what Adam divides it by, may be none of single precision."""


class LearningRateSchedule(Schedule):
    """A learning rate that moves from one value to another, then stays."""

    from_: Annotated[float, Field(gt=0, le=MAX_RATE)] = Field(alias="from", description="at the first step")
    to: Annotated[float, Field(ge=0, le=MAX_RATE)] = Field(description="at the last step of the schedule")


LearningRate = Annotated[
    Annotated[float, Field(gt=0, le=MAX_RATE), Tag("number")] | Annotated[LearningRateSchedule, Tag("block")],
    Discriminator(lambda value: "block" if word_form(value) == "block" else "number"),
]


class WarmSchedule(SparseBlock, LearningRateSchedule):
    """A learning rate that moves from one value to another, after a warm-up."""

    left_out: ClassVar[tuple[str, ...] | None] = ("warmup",)

    warmup: PositiveFloat | None = Field(
        None, description="epochs in which it first rises from 0 to `from`, in a line; none when left out"
    )

    def rate(self, step: int, steps: int, epoch: int) -> float:
        """Returns the rate of a step, from 0, of a run of `steps`, with `epoch` steps in an epoch."""
        rise = min(steps, math.ceil((self.warmup or 0.0) * epoch))
        if step < rise:
            return self.from_ * (step + 1) / rise
        return self.at(step - rise, steps - rise if self.epochs is None else math.ceil(self.epochs * epoch))


class StepSchedule(Block):
    """A learning rate that falls at once, again and again."""

    schedule: Literal["step"]
    from_: Annotated[float, Field(gt=0, le=MAX_RATE)] = Field(alias="from", description="at the first step")
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(description="of the rate before")
    every: PositiveFloat = Field(description="epochs between two falls")

    def rate(self, step: int, steps: int, epoch: int) -> float:
        """Returns the rate of a step: see `WarmSchedule.rate`."""
        return self.from_ * self.factor ** (step // max(1, math.ceil(self.every * epoch)))


class OneCycle(Block):
    """A learning rate that rises to its peak and falls to nearly nothing, both along half a cosine.

    Source: L. Smith, N. Topin, "Super-Convergence", 2018; the constants are those of torch's OneCycleLR.
    """

    schedule: Literal["one_cycle"]
    peak: Annotated[float, Field(gt=0, le=MAX_RATE)]
    rise: Annotated[float, Field(gt=0, lt=1)] = Field(0.3, description="part of the run until the peak")

    def rate(self, step: int, steps: int, epoch: int) -> float:
        """Returns the rate of a step: see `WarmSchedule.rate`."""
        top, low = self.rise * steps - 1, self.peak / 25
        if step <= top:
            start, end, progress = low, self.peak, step / top if top > 0 else 1.0
        else:
            start, end, progress = self.peak, low / 1e4, (step - top) / (steps - 1 - top)
        return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def _name_schedule(value: Any) -> str:
    """Returns the tag of a learning rate: a number, or a block by its schedule."""
    if word_form(value) != "block":
        return "number"
    kind = value.get("schedule") if isinstance(value, Mapping) else value.schedule
    return kind if kind in ("step", "one_cycle") else "block"


DescentRate = Annotated[
    Annotated[float, Field(gt=0, le=MAX_RATE), Tag("number")]
    | Annotated[WarmSchedule, Tag("block")]
    | Annotated[StepSchedule, Tag("step")]
    | Annotated[OneCycle, Tag("one_cycle")],
    Discriminator(_name_schedule),
]


class Sgd(Block):
    """Stochastic gradient descent."""

    kind: Literal["sgd"]
    lr: DescentRate = Field(description="learning rate: a number or a schedule")
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    nesterov: bool = False
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled: it reads the weights, never the data")


class Adam(Block):
    """Adam, with decoupled weight decay: `adamw` is its other name."""

    kind: Literal["adam", "adamw"]
    lr: DescentRate = Field(description="learning rate: a number or a schedule")
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = Field(0.0, description="decoupled: it reads the weights, never the data")


class PythonOptimizer(Block):
    """The module's own: what its `configure_optimizers` returns, with its schedules."""

    kind: Literal["python"]


Optimizer = Annotated[Sgd | Adam, Field(discriminator="kind")]
AnyOptimizer = Annotated[Sgd | Adam | PythonOptimizer, Field(discriminator="kind")]


class EmaAverage(Block):
    """Release the exponential moving average of the iterates."""

    kind: Literal["ema"]
    decay: Fraction = Field(description="weight of the past at each step")


class TailAverage(Block):
    """Release the mean of the last iterates."""

    kind: Literal["tail"]
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(description="part of the run that is averaged")


class LowPass(Block):
    """A first-order low-pass filter of the noisy gradients (DOPPLER, Zhang et al. 2024)."""

    kind: Literal["low_pass"]
    decay: Fraction = Field(0.9, description="weight of the past at each step")


class Kalman(Block):
    """A Kalman filter of one gain; sums are taken ahead, where the last step leads (DiSK, Zhang et al. 2025)."""

    kind: Literal["kalman"]
    gain: Fraction = Field(0.5, description="weight of the new gradient, once there are enough earlier ones")


class Keep(Block):
    """Release the iterate with the best score, of those that are scored along the run."""

    by: Literal["accuracy", "loss", "mean_absolute_error"] = Field(description="the score")
    on: Literal["public"] = Field("public", description="the records: `data.test`, declared public")


class Affine(Block):
    """Turn, scale, shear and shift each image at random, by up to these constants."""

    degrees: NonNegativeFloat = Field(15.0, description="of the turn, either way")
    scale: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="part that height and width grow or shrink by")
    shear: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="columns that a row slants by, for each row")
    shift: Annotated[float, Field(ge=0, lt=1)] = Field(0.06, description="part of height and width")


class Vat(Block):
    """Learn from unlabelled public records too: predictions shall not change nearby (virtual adversarial training)."""

    kind: Literal["vat"]
    weight: NonNegativeFloat = Field(1.0, description="of the smoothness against the labels")
    radius: PositiveFloat = Field(2.0, description="L2 length of the adversarial change of a record's features")
    xi: PositiveFloat = Field(0.1, description="L2 length of the probe that finds its direction")
    power_iterations: PositiveInt = Field(1, description="how often the direction is improved")
    entropy: NonNegativeFloat = Field(0.3, description="weight of confident predictions against the labels")
    ramp: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="part of the run in which both weights grow from 0: labels come first"
    )
    batch_size: PositiveInt = Field(64, description="unlabelled records in one update")


class SquaredLoss(Block):
    """Half the squared error."""

    kind: Literal["squared_error"]


class HuberLoss(Block):
    """Huber's loss: half the squared error for small errors, absolute for large ones."""

    kind: Literal["huber"]
    delta: PositiveFloat = Field(0.5, description="error from which on it is absolute, in halves of the label's range")


class TokenLoss(Block):
    """The negative log-likelihood of a text's learned tokens, one number a record."""

    kind: Literal["next_token"]
    reduce: Literal["mean", "sum"] = Field("mean", description="over the record's learned tokens")


class PythonLoss(Block):
    """The module's own: its `training_step`, or its `loss(outputs, batch)`; one number a record."""

    kind: Literal["python"]


ClassWeight = Annotated[float, Field(gt=0, le=1e6)]
ClassWeights = Annotated[
    Annotated[dict[Text, ClassWeight], Field(min_length=1), Tag("block")]
    | Annotated[tuple[ClassWeight, ...], Field(min_length=2), Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "block"),
]


class Training(SparseBlock):
    """Optimiser, length, schedules; of models that learn by gradient steps. Exactly one of `epochs` and `steps`."""

    left_out: ClassVar[tuple[str, ...] | None] = ("filter", "keep", "label_smoothing")

    epochs: SolvableFloat | None = Field(None, description="passes over the data; `auto`: until the budget ends")
    steps: SolvableInt | None = Field(None, description="updates; `auto`: until the budget ends")
    batch_size: PositiveInt | None = Field(
        None, description="records in one update of a student; where steps are noisy, `mechanism.sampling` says it"
    )
    optimizer: AnyOptimizer | None = Field(None, description="`python`: that of the module that `dprecipe.run` takes")
    average: Annotated[EmaAverage | TailAverage, Field(discriminator="kind")] | None = Field(
        None, description="release an average of the iterates: post-processing, it costs no privacy"
    )
    filter: Annotated[LowPass | Kalman, Field(discriminator="kind")] | None = Field(
        None, description="of the noisy gradients: post-processing, it costs no privacy"
    )
    keep: Keep | None = Field(None, description="release the best iterate instead of the last: it costs no privacy")
    loss: Annotated[SquaredLoss | HuberLoss | TokenLoss | PythonLoss, Field(discriminator="kind")] | None = Field(
        None,
        description="of a number to be predicted, half the squared error when left out; of the next token, the mean "
        "over a record's tokens when left out; `python`: that of the module that `dprecipe.run` takes",
    )
    class_weights: ClassWeights | None = Field(
        None,
        description="what the loss of a record is multiplied by before it is clipped: by the name (or number) of a "
        "class, 1 where it is left out, or a list in the order of the classes; declared, never measured",
    )
    label_smoothing: Fraction | None = Field(
        None, description="part of a label that is spread over all classes alike: declared, never measured"
    )
    augment: Affine | None = Field(
        None, description="of a student: images are moved at random, as its predictions should not mind"
    )
    robustness: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="of a student: 0 is cross-entropy; the higher, the less labels count that it finds unlikely"
    )
    semi_supervised: Vat | None = Field(None, description="of a student: learn from unanswered public records too")

    @property
    def descent(self) -> Optimizer:
        """The recipe's optimiser of a model that learns by gradient steps.

        Raises:
            ValueError: there is none; `planning.rules` refuses such a recipe, and a module's own is `own_optimizer`.
        """
        if self.optimizer is None or isinstance(self.optimizer, PythonOptimizer):
            raise ValueError("a model that learns by gradient steps needs training.optimizer")
        return self.optimizer

    @property
    def own_loss(self) -> bool:
        """True if a module from Python brings the loss."""
        return isinstance(self.loss, PythonLoss)

    @property
    def own_optimizer(self) -> bool:
        """True if a module from Python brings the optimiser."""
        return isinstance(self.optimizer, PythonOptimizer)
