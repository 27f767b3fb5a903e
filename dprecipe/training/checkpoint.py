"""Resumable checkpoints: tensors and numbers, written atomically, read without running anything they hold."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from dprecipe.faults import RunFailed


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` so that a crash leaves the old checkpoint or the new one, never a half.

    Raises:
        RunFailed: the disk refuses; the old checkpoint and the ledger stay as they are.
    """
    fresh = path.with_suffix(".writing")
    try:
        with fresh.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except (OSError, RuntimeError) as error:
        raise RunFailed(
            f"{path}: can't write the checkpoint: {error}",
            "make room on the disk, then continue with --resume",
        ) from None


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The state, or `None` where no checkpoint was ever finished. Code in the file is never run.

    Raises:
        RunFailed: the file is not a checkpoint of ours.
    """
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunFailed(f"{path}: not a checkpoint: {reason}", "start the run anew in another folder") from None
    if not isinstance(state, dict):
        raise RunFailed(f"{path}: not a checkpoint", "start the run anew in another folder")
    return state
