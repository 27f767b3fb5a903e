"""The blocks of a recipe that every mechanism shares: budget, runtime with its loggers, release.

Loggers have two streams, which never mix: `covered` values may go anywhere, `private` ones stay in files of the run's
owner.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.language.base import (
    Block,
    Fraction,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SolvableFloat,
    SparseBlock,
    Text,
)
from dprecipe.language.statement import ReleaseStatement

Stream = Literal["covered", "private"]
VALUES = (
    "`covered`: step, ε so far, learning rate and scores on public records; `private`: those on private records too, "
    "into files under `private/`"
)


class LoggerBlock(Block):
    """A logger."""

    networked: ClassVar[bool] = False
    """True if it sends values to another machine."""
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that it needs: one of them. The first is that of this package's extra."""


class CsvLog(LoggerBlock):
    """A CSV file with a line for each time."""

    kind: Literal["csv"]
    values: Stream = Field("covered", description=VALUES)


class TensorBoardLog(LoggerBlock):
    """Event files of TensorBoard."""

    modules: ClassVar[tuple[str, ...]] = ("tensorboardX", "tensorboard")

    kind: Literal["tensorboard"]
    values: Stream = Field("covered", description=VALUES)


class MlflowLog(LoggerBlock):
    """A tracking server of MLflow."""

    networked: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = ("mlflow",)

    kind: Literal["mlflow"]
    uri: Annotated[str, Field(pattern=r"^https?://[^\s@]+$")] | None = Field(
        None, description="of the server, without credentials; $MLFLOW_TRACKING_URI when left out"
    )
    experiment: Text = "dprecipe"
    values: Stream = Field("covered", description=VALUES)


class WandbLog(LoggerBlock):
    """Weights & Biases; offline, files that `wandb sync` sends."""

    networked: ClassVar[bool] = True
    modules: ClassVar[tuple[str, ...]] = ("wandb",)

    kind: Literal["wandb"]
    project: Text = "dprecipe"
    online: bool = Field(False, description="send the numbers while the run goes on")
    values: Stream = Field("covered", description=VALUES)


AnyLogger = Annotated[CsvLog | TensorBoardLog | MlflowLog | WandbLog, Field(discriminator="kind")]
Loggers = Annotated[tuple[AnyLogger, ...], Field(max_length=8)]


MIN_DELTA = 1e-30
"""Far below any use; at 1e-100 the arithmetic of two libraries no longer agrees, and no release would verify."""

DEFAULT_PHYSICAL_BATCH = 512
"""Records held in memory at once, where the recipe does not say, and while nothing has been measured."""


class Budget(SparseBlock):
    """The most that may be spent, and how it is counted."""

    left_out = ("account",)

    epsilon: SolvableFloat = Field(description="ε, the cap; `auto` computes it from a fixed noise and length")
    delta: Fraction = Field(ge=MIN_DELTA, description="δ, the chance that ε does not hold; far below 1 / data.size")
    neighbouring: Literal["add_or_remove_one", "replace_one", "zero_out_one"] = Field(
        "add_or_remove_one", description="which two data sets must be hard to tell apart"
    )
    accountant: Literal["pld", "rdp", "rdp_classic"] = Field(
        "pld",
        description="`pld`: privacy-loss distributions, tightest; `rdp`: Rényi, looser and simpler; `rdp_classic`: of "
        "older papers, looser still",
    )
    account: Annotated[Text, Field(max_length=300)] | None = Field(
        None,
        description="the data set's account, which this run is charged to: a file, relative to the recipe, or "
        "postgresql://…, without a password",
    )


class InsecureRandomness(Block):
    """Fixed randomness, for tests: the certificate says so and does not verify as a release."""

    seed: NonNegativeInt


class Runtime(Block):
    """Device and options of the run. Nothing here can change what is spent, so it is outside the plan digest."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal[32, "bf16"] = Field(
        32,
        description="precision of the forward and backward pass: single, or `bf16` where torch mixes it in; "
        "not every mechanism takes it",
    )
    compile: Literal["auto", True, False] = Field(
        "auto",
        description="compile the gradient's pass: `auto` where a run is long and gains by it; "
        "not every mechanism takes it",
    )
    physical_batch: PositiveInt | Literal["auto"] = Field(
        DEFAULT_PHYSICAL_BATCH,
        description="records held in memory at once; `auto` measures how many fit as the run starts; "
        "not every mechanism takes it",
    )
    processes: PositiveInt = Field(
        1, description="processes on this machine that run it together, one a GPU; not every mechanism takes it"
    )
    sharding: Literal["none", "optimizer", "parameters"] = Field(
        "none",
        description="what several processes divide: `optimizer`: the noisy sum, the optimiser's state and the average; "
        "`parameters`: the model's weights, too; not every mechanism takes it",
    )
    seed: NonNegativeInt = Field(
        0, description="seed of the model's initial weights; never of sampling, augmentation or noise"
    )
    checkpoint_seconds: PositiveFloat = Field(30.0, description="longest time between resumable checkpoints")
    recompute: bool = Field(
        False,
        description="compute a decoder's blocks again in the backward pass, in place of storing what is inside them: "
        "less memory, about a third more time; not every mechanism takes it",
    )
    loggers: Loggers = Field((), description="where the run's numbers go while it runs; none by default")
    python_tensors: Literal["declare", "refuse"] = Field(
        "declare",
        description="tensors of a module from Python that no noisy step makes (buffers, fixed parameters): `declare` "
        "them as an assumption of the certificate, or `refuse` the run",
    )
    prepared: Text | None = Field(
        None,
        description="folder, relative to the recipe, in which prepared copies of the records are kept for later runs: "
        "private data",
    )
    insecure: InsecureRandomness | None = Field(None, description="tests only: makes sampling and noise repeatable")

    @property
    def physical_batch_size(self) -> int:
        """Records held in memory at once: a number, also before memory was measured."""
        return DEFAULT_PHYSICAL_BATCH if self.physical_batch == "auto" else self.physical_batch


Reason = Annotated[str, Field(min_length=1, max_length=300)]
"""Reason why a warning is accepted: one line, for the certificate."""


class Sign(Block):
    """Signer of the certificate."""

    key: Text = Field(description="path of an Ed25519 private key (PEM), relative to the recipe")


class Release(SparseBlock):
    """Published parts of a run, and their signer."""

    left_out = ("statement", "weights")

    report: bool = Field(True, description="write report.html and card.md, and private/report.html")
    labels: bool = Field(False, description="publish the released labels too (labels.csv)")
    weights: Literal["merged", "adapters"] | None = Field(
        None,
        description="of a language model with `lora`: `merged` into the weights of the base, as when left out, or the "
        "`adapters` alone",
    )
    sign: Sign | None = None
    statement: ReleaseStatement | None = Field(
        None, description="what only people know, declared: in the certificate, on the card and in the report"
    )
