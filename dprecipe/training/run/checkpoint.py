"""Resumable checkpoints: tensors and numbers, written atomically, read without running anything they hold.

A run writes one at times that bound what a crash loses, since that has been paid for (`SaveSchedule`). Steps that were
charged and are not in the model, since a crash or a lost file has taken them, are counted and reported.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import torch

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import BudgetSpent, RunFailed
from dprecipe.privacy.ledger import Ledger
from dprecipe.progress import report_progress


def save(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` so that a crash leaves the old checkpoint or the new one, never a half.

    Raises:
        RunFailed: the disk refuses; the old checkpoint and the ledger stay as they are.
    """
    try:
        with durable.replacing_file(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        raise RunFailed(
            f"{path}: can't write the checkpoint: {error}",
            "make room on the disk, then continue with --resume",
        ) from None


def load(path: Path) -> dict[str, Any] | None:
    """Returns the state, or `None` where no checkpoint was ever finished. Code in the file is never run.

    Its tensors are on the CPU, wherever they were written: what continues from them puts each where it belongs.

    Raises:
        RunFailed: the file is not a checkpoint of ours.
    """
    if not os.path.lexists(path):
        return None
    try:
        with open(durable.open_regular(path, os.O_RDONLY), "rb") as file:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise RunFailed(
            f"{path}: not a checkpoint: {first_line(error)}", "start the run again in another folder"
        ) from None
    if not isinstance(state, dict):
        raise RunFailed(f"{path}: not a checkpoint", "start the run again in another folder")
    return state


def first_line(error: Exception) -> str:
    """Returns the message of an error about a damaged state, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def of_ledger(state: dict[str, Any] | None, ledger: Ledger | None) -> dict[str, Any] | None:
    """Returns the state, if the ledger holds the line it was saved after. Otherwise it knows of noise that the ledger
    does not.

    Raises:
        RunFailed: the ledger is missing, or older than the checkpoint.
    """
    if state is not None and (ledger is None or state.get("ledger") not in ledger.heads):
        raise RunFailed(
            "the checkpoint is not of this ledger: what it learned would be left out of the certificate",
            "put the run's own ledger back, or start again in another folder",
        )
    return state


def steps_of(state: dict[str, Any] | None) -> int:
    """Returns the number of steps that the model has in this state; `restore` reports an invalid state."""
    steps = 0 if state is None else state.get("steps_done")
    return steps if isinstance(steps, int) else 0


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Explains the errors of a program that takes a state which is not its own.

    Raises:
        RunFailed: the state in `path` is of another program.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise RunFailed(
            f"{path}: not a checkpoint of this program: {first_line(error)}", "start the run again in another folder"
        ) from None


def check_trained(plan: Plan, unit: str, charged: int, trained: int, files: str, accepted: bool) -> None:
    """Refuses an attempt that goes on with a model that lacks more than half of the steps planned, unless that is
    `accepted`: it would be published as a model, and hold next to nothing. Fewer lost steps are no hindrance.

    `unit`: steps or queries. `files`: where those are that the model has.

    Raises:
        BudgetSpent: it lacks more, and that was not accepted.
    """
    missing, planned = charged - trained, plan.length.steps
    if missing <= 0:
        return
    noun = "model" if plan.has_model else "release"
    text = f"{charged:,} of {planned:,} {unit} are charged, and the {noun} has {trained:,} of them"
    if 2 * missing <= planned or accepted:
        report_progress(f"{text}: the certificate says so")
        return
    raise BudgetSpent(
        f"{text}: what can be released is " + ("hardly trained" if plan.has_model else "mostly lost"),
        f"put {files} back, if there is a copy; or publish the {noun} as it is with --resume --accept-lost-steps: card "
        "and certificate say what it lacks (a new run on the same records spends a second budget)",
    )


PARTS = 50
"""A run has this number of parts; a crash loses at most one of them, if writing takes little."""
WRITING_SHARE = 0.02
"""The largest share of the time for checkpoints more frequent than `checkpoint_seconds` asks for."""


@final
class SaveSchedule:
    """After each fiftieth of a run, unless writing would take more than `WRITING_SHARE` of the time; at the latest when
    `max_seconds` have passed since the last."""

    def __init__(self, steps: int, done: int, max_seconds: float) -> None:
        """A run of `steps`; its checkpoint or its start has the first `done` of them."""
        self._steps, self._max_seconds = steps, max_seconds
        self._saved_steps, self._saved = done, time.monotonic()
        self._due: float | None = None
        self._cost = 0.0

    def is_due(self, done: int) -> bool:
        """Returns True if a run that has made `done` steps writes its checkpoint now."""
        elapsed = time.monotonic() - self._saved
        part = (done - self._saved_steps) * PARTS >= self._steps
        due = elapsed >= self._max_seconds or (part and self._cost <= WRITING_SHARE * elapsed)
        if due and self._due is None:
            self._due = time.monotonic()
        return due

    def saved(self, done: int) -> None:
        """Notes that the checkpoint has these steps. What passed since it was due (the weights' way from other
        processes, too) is what the next one is expected to take."""
        now = time.monotonic()
        if self._due is not None:
            self._cost = now - self._due
        self._saved_steps, self._saved, self._due = done, now, None
