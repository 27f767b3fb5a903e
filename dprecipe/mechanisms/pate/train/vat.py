"""Virtual adversarial training: a model's prediction for a record should not change nearby.

Nearby means in a ball around the record, or around an augmented copy of it. In the ball, the direction that changes the
prediction most is found by power iteration on the divergence. No label is needed. The released function is smoothed, so
random layers (dropout) are in evaluation mode.

Source: T. Miyato, S. Maeda, M. Koyama, S. Ishii, "Virtual Adversarial Training: A Regularization Method for Supervised
and Semi-Supervised Learning", IEEE TPAMI 41(8), 2019, algorithm 1 and section 3.3.

Axes: B records of a batch, M classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from dprecipe.language.training import Vat

Move = Callable[[Tensor], Tensor]


def unsupervised_loss(
    model: nn.Module, features: Tensor, spec: Vat, generator: torch.Generator, move: Move | None = None
) -> Tensor:
    """Returns the mean over records (B, …) of `weight` × divergence + `entropy` × entropy.

    Its gradient reaches the weights.

    The divergence is between the prediction for the record, as a constant, and that for the worst neighbour of the
    record after `move`. `generator` is on the device of the features.
    """
    with _still(model):
        log_p = log_softmax(model(features), 1)
        moved = features if move is None else move(features)
        worst = moved + find_adversarial_shift(model, moved, log_p.detach(), spec, generator)
        divergence = measure_divergence(log_p.detach(), model(worst)).mean()
    return spec.weight * divergence - spec.entropy * (log_p.exp() * log_p).sum(1).mean()


def find_adversarial_shift(
    model: nn.Module, features: Tensor, log_p: Tensor, spec: Vat, generator: torch.Generator
) -> Tensor:
    """Finds the change of each record, of L2 length `radius`, that moves the prediction furthest from `log_p` (B, M).

    Only the gradient with respect to the features is computed: gradients stored for the weights are unchanged.
    """
    direction = _unit(torch.randn(features.shape, generator=generator, device=features.device, dtype=features.dtype))
    for _ in range(spec.power_iterations):
        probe = (spec.xi * direction).requires_grad_()
        with torch.enable_grad():
            divergence = measure_divergence(log_p, model(features.detach() + probe)).sum()
        (steepest,) = torch.autograd.grad(divergence, probe)
        # Where the prediction does not change at all, one direction is as good as another.
        still = (steepest.flatten(1) == 0).all(1).view(-1, *[1] * (features.ndim - 1))
        direction = torch.where(still, direction, _unit(steepest))
    return spec.radius * direction


def measure_divergence(log_p: Tensor, outputs: Tensor) -> Tensor:
    """Returns KL(p ‖ softmax(outputs)) of each record, (B,); both arguments are (B, M)."""
    return (log_p.exp() * (log_p - log_softmax(outputs, 1))).sum(1)


def _unit(x: Tensor) -> Tensor:
    """Scales each record to L2 length 1: by its largest entry first, or the squares of a tiny gradient would vanish."""
    flat = x.flatten(1)
    tiny = torch.finfo(x.dtype).tiny
    flat = flat / flat.abs().amax(1, keepdim=True).clamp_min(tiny)
    scaled: Tensor = flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True).clamp_min(tiny)
    return scaled.view_as(x)


@contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode inside the block, and restores each module's mode after it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
