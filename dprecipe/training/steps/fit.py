"""Runs a mechanism's steps under Lightning's trainer, which only counts them."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import DataLoader

from dprecipe.training.checks.memory_meter import SMALLER_PARTS, explain_out_of_memory
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.steps.step_failures import StepFailed
from dprecipe.training.steps.watch import Stopping


def fit_steps(module: Any, watch: lightning.Callback, device: torch.device, steps: int) -> None:
    """Runs the program under a trainer with fixed arguments: a caller can't pass one that breaks privacy."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        trainer = lightning.Trainer(
            accelerator={"cuda": "gpu"}.get(device.type, device.type),
            devices=1,
            strategy=lightning.strategies.SingleDeviceStrategy(device),  # `Processes` communicate beside it
            max_epochs=1,
            precision="32-true",
            logger=False,
            callbacks=[watch, Stopping(module.request_stop)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        # The trainer only counts steps, one more than planned: the gate's refusal ends the run.
        counter: DataLoader[int] = DataLoader(range(steps + 1), batch_size=None)  # type: ignore[arg-type]
        try:
            with explain_out_of_memory("in a step", SMALLER_PARTS, StepFailed), in_run_precision():
                trainer.fit(module, counter)
        except SystemExit:  # the trainer's reaction to a second Ctrl-C
            raise KeyboardInterrupt from None
        finally:
            move_back(module, device)


def move_back(module: Any, device: torch.device) -> None:
    """Moves the module and the state of its optimisers to the device: the trainer moves them to the CPU when it ends.

    Step counters stay on the CPU, where optimisers read them.
    """
    module.to(device)
    for state in module.configure_optimizers().state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "step":
                state[name] = value.to(device)


class Stopwatch(lightning.Callback):
    """Times the steps after the first, which warms up; ends the program once it has timed enough of them."""

    def __init__(self, least_steps: int = 5, least_seconds: float = 1.0) -> None:
        self._ends: list[float] = []
        self._least_steps, self._least_seconds = least_steps, least_seconds

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        if module.device.type == "cuda":
            torch.cuda.synchronize(module.device)  # otherwise this is only when the step was queued
        self._ends.append(time.monotonic())
        if len(self._ends) >= self._least_steps and self._ends[-1] - self._ends[0] >= self._least_seconds:
            module.request_stop()

    @property
    def seconds_per_step(self) -> float:
        """The median: the first steps are slower than those of a long run, and so are those that are interrupted."""
        return statistics.median([end - start for start, end in pairwise(self._ends)] or [0.0])
