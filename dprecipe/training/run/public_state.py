"""Progress of a run without privacy: one file beside its folder, so that an interrupted run can go on.

Nothing is spent, so there is no ledger: the file alone says where the run stands. A run that goes on gives the weights
of one that was never interrupted, bit for bit on the same machine with the same versions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from dprecipe.faults import RunFailed, UsageFault
from dprecipe.training.run import checkpoint
from dprecipe.training.steps.optimise import Average

SAVE_SECONDS = 60.0
"""Longest time between two states that are kept."""


@final
class KeptState:
    """The state of a run, in the file `<folder>.interrupted`."""

    def __init__(self, target: Path, identity: str, resume: bool) -> None:
        """`identity`: of plan, records and first weights.

        Raises:
            UsageFault: there is a state, and the run is not to go on from it; or the other way round, or it is of
                another run.
            RunFailed: the file is damaged.
        """
        self.target = target
        self.path = target.with_name(f"{target.name}.interrupted")
        self._identity = identity
        self._saved = time.monotonic()
        self._state = checkpoint.load(self.path)
        if self._state is None and resume:
            raise UsageFault(f"{self.path}: there is no interrupted run", "leave --resume out")
        if self._state is not None and not resume:
            raise UsageFault(
                f"{self.path}: a run to {target} was interrupted",
                "continue it with --resume; or delete the file, or choose another folder with --out",
            )
        if self._state is not None and self._state.get("identity") != identity:
            raise UsageFault(
                f"{self.path}: is of another recipe, of other records or of other first weights",
                "put back what the run began with; or delete the file and leave --resume out",
            )

    def restore(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, device: torch.device
    ) -> int:
        """Brings everything to where the run stood; returns the number of steps that are done, 0 for a run that begins.

        Raises:
            RunFailed: the state is not of this program.
        """
        state = self._state
        if state is None:
            return 0
        try:
            module.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            value, average.count = state["average"], int(state["average_count"])
            average.value = None if value is None else value.to(device)
            torch.set_rng_state(state["draws"][0])
            if device.type == "cuda":
                torch.cuda.set_rng_state(state["draws"][1], device)
            return int(state["step"])
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            reason = checkpoint.first_line(error)
            raise RunFailed(f"{self.path}: not the state of this run: {reason}", "delete it and start again") from None

    @property
    def is_due(self) -> bool:
        """Returns True if it is time to save."""
        return time.monotonic() - self._saved >= SAVE_SECONDS

    def save(
        self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, device: torch.device
    ) -> None:
        """Keeps the state after `step` steps, instead of an earlier one.

        Raises:
            RunFailed: the disk refuses; the earlier state stays.
        """
        draws: Sequence[torch.Tensor] = [torch.get_rng_state()]
        if device.type == "cuda":
            draws = [*draws, torch.cuda.get_rng_state(device)]
        state: dict[str, Any] = {
            "identity": self._identity,
            "step": step,
            "model": module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "average": average.value,
            "average_count": average.count,
            "draws": list(draws),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(self.path, state)
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Removes the state: the run has ended."""
        self.path.unlink(missing_ok=True)
