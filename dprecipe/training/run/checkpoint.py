"""Resumable checkpoints: tensors and numbers, written atomically, read without running anything they hold."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.privacy.ledger import Ledger


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
