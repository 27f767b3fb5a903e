"""Runs a mechanism's steps under Lightning's trainer, which only counts them."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from itertools import pairwise
from typing import Any

import torch

from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.steps.module import NoisyModule, count_steps
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.watch import Stopping


def fit_steps(steps: NoisySteps, watch: lightning.Callback, count: int) -> None:
    """Takes steps under a trainer of our own, with fixed arguments: at most `count`."""
    device = steps.device
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
            callbacks=[watch, Stopping(steps.request_stop)],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        try:
            with in_run_precision():
                trainer.fit(NoisyModule(steps), count_steps(count))
        except SystemExit:  # the trainer's reaction to a second Ctrl-C
            raise KeyboardInterrupt from None
        finally:
            move_back(steps)


def move_back(steps: NoisySteps) -> None:
    """Moves the state of the optimiser to the device: a trainer moves it to the CPU when it ends.

    Step counters stay on the CPU, where optimisers read them.
    """
    for state in steps.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and name != "step":
                state[name] = value.to(steps.device)


class Stopwatch(lightning.Callback):
    """Times the steps after the first, which warms up; ends the program once it has timed enough of them."""

    def __init__(self, least_steps: int = 5, least_seconds: float = 1.0) -> None:
        self._ends: list[float] = []
        self._least_steps, self._least_seconds = least_steps, least_seconds

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        steps = module.steps
        if steps.device.type == "cuda":
            torch.cuda.synchronize(steps.device)  # otherwise this is only when the step was queued
        self._ends.append(time.monotonic())
        if len(self._ends) >= self._least_steps and self._ends[-1] - self._ends[0] >= self._least_seconds:
            steps.request_stop()

    @property
    def seconds_per_step(self) -> float:
        """The median: the first steps are slower than those of a long run, and so are those that are interrupted."""
        return statistics.median([end - start for start, end in pairwise(self._ends)] or [0.0])
