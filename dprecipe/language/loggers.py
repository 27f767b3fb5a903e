"""Loggers of a run, `runtime.loggers`: where its numbers go while it runs.

Two streams, which never mix: `covered` values may go anywhere, `private` ones stay in files of the run's owner.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.language.base import Block, Text

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
