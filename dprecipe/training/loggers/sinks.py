"""The sinks of points: each kind of logger, through Lightning's.

A sink is used from one thread of its own. It may raise anything, and take any time: `BackgroundSink` has that thread.

Formal guarantee: `BackgroundSink.log` returns at once and raises nothing, and the run goes on as without it. A sink
that raises, hangs or is too slow is reported once, by its kind and the kind of error, and what it was to get is
dropped.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any, Literal, Protocol, final

from dprecipe.language.blocks import CsvLog, LoggerBlock, MlflowLog, TensorBoardLog, WandbLog
from dprecipe.libraries import importing_libraries
from dprecipe.progress import report_progress
from dprecipe.training.run import log

Status = Literal["finished", "interrupted", "failed"]
MLFLOW_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""A server that is down is given up soon; nothing is printed, and nothing sent to anybody else."""


class Sink(Protocol):
    """Receiver of the values of a step."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...
    def finish(self, status: Status) -> None: ...


@final
class Identity:
    """Identity of the run as a sink sees it, and what the sink remembers of it for a resumed attempt."""

    def __init__(self, name: str, constants: Mapping[str, str | float], known: str | None) -> None:
        self.name = name
        """Name of the run."""
        self.constants = constants
        """Constants of the recipe and its plan."""
        self.known = known
        """The run's identifier at the logger, from an earlier attempt."""
        self.remember: Callable[[str], None] = lambda identifier: None


def open_sink(block: LoggerBlock, folder: Path, identity: Identity) -> Sink:
    """Returns the sink of a block; its files go to `folder`. Imports the sink's library."""
    match block:
        case CsvLog():
            return CsvSink(folder)
        case TensorBoardLog():
            return TensorBoardSink(folder)
        case MlflowLog():
            return MlflowSink(block, identity)
        case WandbLog():
            return WandbSink(block, folder, identity)
        case _:
            raise ValueError(f"no sink for {type(block).__name__}")


@final
class CsvSink:
    """`metrics.csv`. Lightning's own deletes what an earlier attempt has written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.csv"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        before, row = log.read(self._path), {"step": step, **values}
        names = tuple(dict.fromkeys((*before.names, *row)))  # scores come later, and not with each step
        kept = [each for each in before.rows if each["step"] != step]
        whole = names != before.names or len(kept) < len(before.rows)
        if whole and before.names:
            self._path.unlink()
        for each in (*kept, row) if whole else (row,):
            log.append_line(self._path, {name: each.get(name, math.nan) for name in names})

    def finish(self, status: Status) -> None:
        """Does nothing: nothing is open."""


@final
class TensorBoardSink:
    """Event files; a resumed attempt adds one to the same folder."""

    def __init__(self, folder: Path) -> None:
        with importing_libraries("runtime.loggers: tensorboard"):
            from lightning.pytorch.loggers import TensorBoardLogger

        # A file is named by the second; without a number, an attempt of the same second would replace the one before.
        number = sum(1 for _ in folder.glob("events.out.tfevents.*"))
        self._logger = TensorBoardLogger(folder, name="", version="", filename_suffix=f".{number}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._logger.log_metrics(dict(values), step)
        self._logger.experiment.flush()

    def finish(self, status: Status) -> None:
        self._logger.experiment.close()


@final
class MlflowSink:
    """A run at a tracking server; a resumed attempt goes on with it."""

    STATUS: Mapping[Status, str] = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

    def __init__(self, block: MlflowLog, identity: Identity) -> None:
        for name, value in MLFLOW_DEFAULTS.items():
            os.environ.setdefault(name, value)
        with importing_libraries("runtime.loggers: mlflow"):
            from lightning.pytorch.loggers import MLFlowLogger

        self._logger = MLFlowLogger(
            experiment_name=block.experiment,
            run_name=identity.name,
            tracking_uri=block.uri or os.environ["MLFLOW_TRACKING_URI"],
            run_id=identity.known,
        )
        run = self._logger.run_id  # asks the server
        if run is None:
            raise RuntimeError("the server names no run")
        self._run: str = run
        identity.remember(run)
        if identity.known is None:
            self._logger.log_hyperparams(dict(identity.constants))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._logger.log_metrics(values, step)

    def finish(self, status: Status) -> None:
        self._logger.experiment.set_terminated(self._run, self.STATUS[status])


@final
class WandbSink:
    """A run of Weights & Biases. What the library would collect by itself is off: what is printed, code, git, the
    machine's state."""

    def __init__(self, block: WandbLog, folder: Path, identity: Identity) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with importing_libraries("runtime.loggers: wandb"):
            import wandb
            from lightning.pytorch.loggers import WandbLogger

        identifier = identity.known or secrets.token_hex(8)
        settings = wandb.Settings(
            console="off",
            silent=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            login_timeout=10,
        )
        self._logger = WandbLogger(
            name=identity.name,
            save_dir=folder,
            id=identifier,
            project=block.project,
            offline=not block.online,
            resume="allow",
            settings=settings,
        )
        self._run: Any = self._logger.experiment
        identity.remember(identifier)
        self._run.config.update(dict(identity.constants), allow_val_change=True)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._logger.log_metrics(values, step)

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


def close_to_others(folder: Path) -> None:
    """Takes all rights of others from a folder and what is in it."""
    with suppress(OSError):
        folder.chmod(0o700)
        for path in folder.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)


MAX_WAITING = 1_000
"""Points that wait for a slow sink."""
MAX_SECONDS = 10.0
"""Largest number of seconds that the end of a run waits for it."""
Task = Callable[[Sink], None]


@final
class BackgroundSink:
    """See the module."""

    def __init__(self, name: str, open_sink: Callable[[], Sink]) -> None:
        self._name = name
        self._open = open_sink
        self._tasks: Queue[Task | None] = Queue(MAX_WAITING)
        self._broken = False
        self._thread = Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Passes the values of a step on."""
        self._put(lambda sink: sink.log(step, values))

    def finish(self, status: Status) -> None:
        """Ends the sink, and waits for it at most `MAX_SECONDS`."""
        self._put(lambda sink: sink.finish(status))
        until = time.monotonic() + MAX_SECONDS
        if not self._broken:
            self._put(None)
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() and not self._broken:
            self._tell("it does not answer")

    def _put(self, task: Task | None) -> None:
        if self._broken:
            return
        try:
            self._tasks.put_nowait(task)
        except Full:
            self._tell("it is too slow")

    def _work(self) -> None:
        try:
            sink = self._open()
            while (task := self._tasks.get()) is not None:
                task(sink)
        except BaseException as error:  # a library of others may raise anything
            self._tell(type(error).__name__)  # its text may quote anything

    def _tell(self, reason: str) -> None:
        if self._broken:
            return
        self._broken = True
        report_progress(f"logger {self._name}: {reason}; the run goes on without it")
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            self._tasks.put(None)
