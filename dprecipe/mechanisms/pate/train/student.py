"""The student: a network that learns from public records, and from the labels that were released for some of them.

Guarantees: on a CPU, the student is a function of the arguments. None of them is private, so everything here is
post-processing of the events on the ledger. The global random number generator is left as it was found.

Axes: R public records, L labelled ones, B records of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dprecipe.contract.plan import Length
from dprecipe.faults import NothingLearned
from dprecipe.language.training import Training
from dprecipe.mechanisms.pate.train.vat import unsupervised_loss
from dprecipe.models.modules.draws import drawing_from
from dprecipe.training.program.losses import generalised_cross_entropy
from dprecipe.training.program.moves import augmentation_moves
from dprecipe.training.steps.optimise import Average, apply_weight_decay, learning_rate, optimizer_of

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]

BATCH = 32
"""Number of labelled records in an update if the recipe does not say."""
CHECK_EVERY = 100
"""Number of updates between two checks that the loss is finite."""


def student_length(spec: Training, labelled: int, public: int) -> Length:
    """Returns the length of the student's training.

    An epoch is a pass over the labelled records; in semi-supervised training, over all public records.
    """
    semi = spec.semi_supervised
    size = labelled / (spec.batch_size or BATCH) if semi is None else public / semi.batch_size
    an_epoch = max(1, math.ceil(size))
    steps = spec.steps if isinstance(spec.steps, int) else max(1, round(float(spec.epochs or 1) * an_epoch))
    return Length(steps, an_epoch)


def train_student(
    model: nn.Module,
    features: Floats,
    labels: Labels,
    public: Floats,
    spec: Training,
    seed: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, steps: None,
    stop: Callable[[], bool] = lambda: False,
) -> nn.Module | None:
    """Trains the model; returns it in evaluation mode, with the weights that are released. None if `stop` came first.

    `features` (L, …) and `labels` (L,) are those of the answered queries; only semi-supervised training reads `public`
    (R, …). `progress` is called with the number of updates done and their total.

    Raises:
        NothingLearned: there is no label, or the training diverged to numbers that are not finite.
    """
    if not len(labels):
        raise NothingLearned(
            "no query was answered, so there is nothing to learn from",
            "lower mechanism.aggregator.selection.threshold, and start again: what was spent stays spent",
        )
    with drawing_from(seed, device), flushing_denormals():
        return _trained(model.to(device), features, labels, public, spec, seed, device, progress, stop)


def _trained(
    model: nn.Module,
    features: Floats,
    labels: Labels,
    public: Floats,
    spec: Training,
    seed: int,
    device: torch.device,
    progress: Callable[[int, int], None],
    stop: Callable[[], bool],
) -> nn.Module | None:
    semi, extent = spec.semi_supervised, student_length(spec, len(labels), len(public))
    optimizer, rate = optimizer_of(spec.descent, model), learning_rate(spec.descent, extent)
    average = Average(spec.average, extent.steps)
    generator = torch.Generator(device).manual_seed(seed)
    move = None if spec.augment is None else augmentation_moves(spec.augment, generator)
    labelled = _shuffled(len(labels), spec.batch_size or BATCH, seed, "labelled")
    unlabelled = _shuffled(len(public), 1 if semi is None else semi.batch_size, seed, "unlabelled")
    model.train()
    for step in range(extent.steps):
        if stop():
            return None
        chosen = next(labelled)
        x, y = (torch.from_numpy(array[chosen]).to(device) for array in (features, labels))
        outputs = model(x if move is None else move(x))
        loss = generalised_cross_entropy(outputs, y, spec.robustness).mean()
        if semi is not None:
            x = torch.from_numpy(public[next(unlabelled)]).to(device)
            ramp_factor = min(1.0, (step + 1) / (semi.ramp * extent.steps)) if semi.ramp else 1.0
            loss = loss + ramp_factor * unsupervised_loss(model, x, semi, generator, move)
        if step % CHECK_EVERY == 0 and not bool(torch.isfinite(loss)):
            raise _diverged(step, extent.steps)
        lr = rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        apply_weight_decay(spec.descent, optimizer, lr)
        optimizer.step()
        average.take(step, [p for p in model.parameters() if p.requires_grad])
        progress(step + 1, extent.steps)
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise _diverged(extent.steps, extent.steps)
    if average.value is not None:
        with torch.no_grad():
            nn.utils.vector_to_parameters(average.value, [p for p in model.parameters() if p.requires_grad])
    return model.eval()


def _diverged(step: int, steps: int) -> NothingLearned:
    return NothingLearned(
        f"the student's training diverged to numbers that are not finite, by update {step} of {steps}",
        "lower training.optimizer.lr, and start again: what was spent stays spent",
    )


def _shuffled(count: int, size: int, seed: int, purpose: str) -> Iterator[NDArray[np.int64]]:
    """Yields numbers below `count`, (size,) at a time, from random orders of all of them in a row."""
    generator = np.random.default_rng([seed, *purpose.encode()])
    order = np.empty(0, np.int64)
    while True:
        while len(order) < size:
            order = np.concatenate([order, generator.permutation(count)])
        yield order[:size]
        order = order[size:]


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Treats numbers below 1e-38 as zero: gradients of confident predictions hold many, and CPUs are slow at them."""
    before = float(torch.full((1,), 1e-30) * 1e-10) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
