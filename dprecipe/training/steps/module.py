"""Noisy steps as Lightning's trainer takes them: it counts them, and its callbacks see what is covered."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dprecipe.faults import InternalFault, UsageFault
from dprecipe.training.checks.memory_meter import SMALLER_PARTS, explain_out_of_memory
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.outside import StateGuard, in_declared_precision
from dprecipe.training.steps.step_failures import StepFailed

CALL_SECONDS = 0.2
"""Longest time between two calls of our own trainer, which shows progress. Ctrl-C is heard in every step."""


@final
class NoisyModule(lightning.LightningModule):
    """The steps of one attempt, for a trainer.

    The trainer moves nothing and computes no gradient: `training_step` ignores its batch, which is a number, and takes
    steps of its own. A LightningModule is hidden from it: it would attach itself, and `self.log` would show values
    of private records.

    With `guard`, code of somebody else runs between the steps: each call takes one step, the trainer counts it, and no
    step begins on a state that anything but a step has moved.
    """

    def __init__(
        self,
        steps: NoisySteps | None = None,
        check: Callable[[Any], None] = lambda trainer: None,
        open_steps: Callable[[], StateGuard] | None = None,
    ) -> None:
        """`check`: called with the trainer before anything else; raises if this trainer can't be used. `open_steps`:
        opens an attempt of somebody's own trainer, once nothing but the steps is left to come."""
        super().__init__()
        self.automatic_optimization = False
        self._steps = steps
        self._check, self._open = check, open_steps
        self.guard: StateGuard | None = None

    @property
    def steps(self) -> NoisySteps:
        """The steps, once there are any: a module that waits for a trainer gets them when training begins."""
        if self._steps is None:
            raise InternalFault("a trainer asked for steps before training began")
        return self._steps

    def configure_callbacks(self) -> list[lightning.Callback]:
        """Lets the trainer be looked at: the first thing that it asks of a module."""
        self._check(self.trainer)
        return []

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses every checkpoint of a trainer's.

        Raises:
            UsageFault: always.
        """
        raise UsageFault(
            "ckpt_path loads weights that no ledger covers; nothing was spent",
            "leave it out; a run is continued by dprecipe.build(plan, out, resume=True)",
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the recipe's optimiser. A trainer asks for it after it has restored what it would restore."""
        if self._open is not None and self._steps is None:
            self._check(self._trainer)
            self.guard = self._open()
            self._steps = self.guard.steps
            if not any(isinstance(layer, lightning.LightningModule) for layer in self._steps.model.modules()):
                self.model = self._steps.model  # to be summed up and looked at
        return self.steps.optimizer

    def on_train_start(self) -> None:
        self._check(self.trainer)
        self.steps.start()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Takes noisy updates, until the trainer has something to do.

        The trainer's own work between two calls takes a third as long as a step of a small model.

        Raises:
            StepFailed: memory ran out, a module from Python raised, or a weight was moved between two steps.
        """
        steps, guard, until = self.steps, self.guard, time.monotonic() + CALL_SECONDS
        with explain_out_of_memory("in a step", SMALLER_PARTS, StepFailed), in_declared_precision(steps.device):
            if guard is not None:
                guard.check()
            while goes_on := steps.take_step():
                if guard is not None or steps.pause_due() or time.monotonic() >= until:
                    break
            if guard is not None:
                guard.keep()
        if not goes_on:
            self.trainer.should_stop = True
        elif guard is not None:  # the trainer counts steps that its own hooks don't see
            counted = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
            counted.increment_ready()
            counted.increment_completed()

    def state_dict(self, *given: Any, **named: Any) -> dict[str, Any]:  # type: ignore[override]
        """Returns the weights after the last noisy step, for checkpoints of somebody's own: they are covered."""
        if self._steps is None:
            return {}
        return {f"model.{name}": value for name, value in self.steps.released_state().items()}

    def forward(self, features: Tensor) -> Any:
        return self.steps.model(features)


def count_steps(steps: int) -> DataLoader[int]:
    """Returns a loader of numbers, one more than steps are left: the gate's refusal ends the run."""
    return DataLoader(range(steps + 1), batch_size=None)  # type: ignore[arg-type]
