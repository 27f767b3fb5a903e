"""Optimisers and learning rates from a recipe: post-processing of noisy sums, they cost no privacy."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dprecipe.language.training import Adam, EmaAverage, LearningRateSchedule, Sgd, TailAverage
from dprecipe.mechanisms.plan import Length


def optimizer_of(spec: Sgd | Adam, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser; its weight decay is decoupled, so it reads the weights and never touches a gradient."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if isinstance(spec, Adam):
        return torch.optim.AdamW(
            parameters, lr=1.0, betas=(spec.beta1, spec.beta2), eps=spec.eps, weight_decay=spec.weight_decay
        )
    return torch.optim.SGD(parameters, lr=1.0, momentum=spec.momentum, nesterov=spec.nesterov)


def apply_weight_decay(spec: Sgd | Adam, optimizer: torch.optim.Optimizer, lr: float) -> None:
    """SGD's decoupled weight decay, before the step (AdamW does its own)."""
    if isinstance(spec, Sgd) and spec.weight_decay:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(1 - lr * spec.weight_decay)


def learning_rate(spec: Sgd | Adam, length: Length) -> Callable[[int], float]:
    """Step (from 0) to learning rate."""
    lr = spec.lr
    if not isinstance(lr, LearningRateSchedule):
        constant = float(lr)
        return lambda step: constant
    steps = length.steps if lr.epochs is None else math.ceil(lr.epochs * length.steps_per_epoch)
    return lambda step: lr.at(step, steps)


class Average:
    """A running average of iterates. `None` before its first iterate: then the weights themselves are released."""

    def __init__(self, spec: EmaAverage | TailAverage | None, steps: int) -> None:
        self._spec = spec
        self._first = steps - math.ceil(spec.fraction * steps) if isinstance(spec, TailAverage) else 0
        self.value: Tensor | None = None
        self.count = 0

    def take(self, step: int, model: nn.Module) -> None:
        """Add the iterate after `step` (from 0)."""
        if self._spec is None or step < self._first:
            return
        iterate = torch.nn.utils.parameters_to_vector(p for p in model.parameters() if p.requires_grad).detach()
        self.count += 1
        if self.value is None:
            self.value = iterate.clone()
            return
        # An exponential average starts as a plain mean, or the first iterate would weigh too much.
        weight = 1 / self.count
        if isinstance(self._spec, EmaAverage):
            weight = max(weight, 1 - self._spec.decay)
        self.value += weight * (iterate - self.value)
