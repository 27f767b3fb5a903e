"""Optimisers and learning rates from a recipe: post-processing of noisy sums, they cost no privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Length
from dprecipe.language.training import Adam, EmaAverage, Sgd, TailAverage


def optimizer_of(spec: Sgd | Adam, model: nn.Module, *, fused: bool = False) -> torch.optim.Optimizer:
    """Makes the optimiser; its weight decay is decoupled, so it reads the weights and never touches a gradient.
    `fused`: each step is one pass over all weights, which rounds otherwise."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if isinstance(spec, Adam):
        return torch.optim.AdamW(
            parameters,
            lr=1.0,
            betas=(spec.beta1, spec.beta2),
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=fused or None,
        )
    return torch.optim.SGD(parameters, lr=1.0, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused or None)


def apply_weight_decay(spec: Sgd | Adam, optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Applies SGD's decoupled weight decay, before the step (AdamW does its own): a GPU scales all weights by one
    kernel. On a CPU that would round the factor to the weights' own type first, where they are halves."""
    if isinstance(spec, Sgd) and spec.weight_decay:
        factor = 1 - lr * spec.weight_decay
        with torch.no_grad():
            for group in optimizer.param_groups:
                if group["params"][0].device.type == "cpu":
                    for parameter in group["params"]:
                        parameter.mul_(factor)
                else:
                    torch._foreach_mul_(group["params"], factor)


def learning_rate(spec: Sgd | Adam, length: Length) -> Callable[[int], float]:
    """Returns a function from step (from 0) to learning rate."""
    lr = spec.lr
    if isinstance(lr, float):
        return lambda step: lr
    return lambda step: lr.rate(step, length.steps, length.steps_per_epoch)


def cut_like(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Returns a flat vector cut into the shapes of the parameters."""
    sizes = [parameter.numel() for parameter in parameters]
    return [part.view_as(p) for part, p in zip(torch.split(flat, sizes), parameters, strict=True)]


@final
class FlatGradient:
    """The gradients that the optimiser reads: the parameters' `.grad` are parts of one vector, so one copy sets them
    all.

    Consecutive parameters of one type and device share a vector; its memory is that of their gradients.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        """The memory is taken by the first gradient that is set: only then are the parameters where they train."""
        self._parameters = parameters
        self._vectors: list[tuple[slice, Tensor]] = []
        self._parts: list[Tensor] = []
        self._count = 0

    def set(self, gradient_P: Tensor) -> None:
        """Sets `.grad` of every parameter: each number is rounded to the parameter's own type.

        Raises:
            ValueError: the count of numbers is not that of the parameters.
        """
        if not self._parts:
            self._allocate()
        if len(gradient_P) != self._count:
            raise ValueError(f"a gradient of {len(gradient_P)} numbers for {self._count} parameters")
        for place, vector in self._vectors:
            vector.copy_(gradient_P[place])
        for parameter, part in zip(self._parameters, self._parts, strict=True):
            if parameter.grad is not part:
                parameter.grad = part

    def _allocate(self) -> None:
        start = 0
        for (kind, device), group in groupby(self._parameters, lambda parameter: (parameter.dtype, parameter.device)):
            parameters = list(group)
            stop = start + sum(parameter.numel() for parameter in parameters)
            vector = torch.empty(stop - start, dtype=kind, device=device)
            self._vectors.append((slice(start, stop), vector))
            self._parts += cut_like(vector, parameters)
            start = stop
        self._count = start


class Average:
    """A running average of iterates. `None` before its first iterate: then the weights themselves are released."""

    def __init__(self, spec: EmaAverage | TailAverage | None, steps: int) -> None:
        self._spec = spec
        self._first = steps - math.ceil(spec.fraction * steps) if isinstance(spec, TailAverage) else 0
        self.value: Tensor | None = None
        self.count = 0

    @torch.no_grad()
    def take(self, step: int, parameters: Sequence[nn.Parameter]) -> None:
        """Adds the iterate after `step` (from 0).

        The parameters are read where they are, all of them by one kernel of a GPU at a time. It is a difference, a
        product and a sum, and each of them rounds: `lerp` and `addcmul` would round once, and differently.
        """
        if self._spec is None or step < self._first:
            return
        self.count += 1
        if self.value is None:
            self.value = torch.nn.utils.parameters_to_vector(parameters)
            return
        # An exponential average starts as a plain mean, or the first iterate would weigh too much.
        weight = 1 / self.count
        if isinstance(self._spec, EmaAverage):
            weight = max(weight, 1 - self._spec.decay)
        parts = cut_like(self.value, parameters)
        moves = torch._foreach_sub(list(parameters), parts)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(parts, moves)
