"""The student: a model that learns from public records, and from the labels that were released for some of them.

No function here receives a private record, a vote, or the path to one.

Guarantees: on a CPU, the student is a function of the arguments. None of them is private, so everything here is
post-processing of the events on the ledger. The global random number generator is left as it was found.

Virtual adversarial training: a model's prediction for a record should not change nearby: in a ball around the record,
or around an augmented copy of it. In the ball, the direction that changes the prediction most is found by power
iteration on the divergence. No label is needed. The released function is smoothed, so random layers (dropout) are in
evaluation mode. Source: T. Miyato, S. Maeda, M. Koyama, S. Ishii, "Virtual Adversarial Training: A Regularization
Method for Supervised and Semi-Supervised Learning", IEEE TPAMI 41(8), 2019, algorithm 1 and section 3.3.

Axes: R public records, L labelled ones, K queries, B records of a batch, M classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from dprecipe.contract.plan import Length, Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.preprocess import Floats
from dprecipe.faults import InternalFault, NothingLearned, PlanRefused, RunFailed
from dprecipe.language.training import Training, Vat
from dprecipe.mechanisms.pate.aggregators import Scores
from dprecipe.models.build import build
from dprecipe.models.modules.draws import drawing_from
from dprecipe.models.modules.inspection import detach_trainers, inspect_steps
from dprecipe.progress import Progress
from dprecipe.training.probe.place import name_failure
from dprecipe.training.program.losses import generalised_cross_entropy
from dprecipe.training.program.moves import augmentation_moves
from dprecipe.training.steps.optimise import Average, apply_weight_decay, learning_rate, optimizer_of
from dprecipe.training.steps.step_failures import locate_failures

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
        raise no_labels()
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


def no_labels() -> NothingLearned:
    """Returns the fault of a vote without an answer."""
    return NothingLearned(
        "no query was answered, so there is nothing to learn from",
        "lower mechanism.aggregator.selection.threshold, and start again: what was spent stays spent",
    )


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


TRIED = 4
"""Number of public records on which a module from Python is tried."""


def train_plan_student(
    plan: Plan,
    module: nn.Module | None,
    public: Floats,
    labels_R: NDArray[np.int64],
    device: torch.device,
    stop: Callable[[], bool],
) -> nn.Module | None:
    """Trains the student and returns it in evaluation mode; None if `stop` came first.

    `module` replaces the recipe's model. `labels_R` holds a label, or a number below 0 for a public record that has
    none.

    Guarantees: the student is a function of the arguments; on a CPU, two calls give the same student.

    Raises:
        NothingLearned: no record has a label, or the training diverged to numbers that are not finite.
    """
    labelled = np.flatnonzero(labels_R >= 0)
    if not len(labelled):
        raise no_labels()
    features, labels, seed, result = public[labelled], labels_R[labelled], plan.runtime.seed, describe_data(plan.data)
    if module is None and plan.training.optimizer is None:
        from dprecipe.mechanisms.pate.train.fitted import Fittable, fit_model

        if not isinstance(plan.model, Fittable):
            raise InternalFault("a student that takes steps has no optimizer")
        return fit_model(plan.model, features, labels, result.outputs, seed).to(device)
    # Each call trains it from its initial weights.
    if module is None:
        student = build(plan.model, result.shape, result.outputs, seed, vocabulary=result.vocabulary)
    else:
        student = copy.deepcopy(module)
    bars: list[Progress] = []

    def report(done: int, steps: int) -> None:
        if not bars:
            bars.append(Progress("student", "update", steps))
        (bars[0].end if done == steps else bars[0].show)(done)

    return train_student(student, features, labels, public, plan.training, seed, device, report, stop)


def check_student(plan: Plan, module: nn.Module, public: Floats, device: torch.device) -> None:
    """Checks that a module from Python can be the student; called before anything is spent.

    It must have no steps of its own, and a copy of it makes an update and predictions on public records.

    Raises:
        PlanRefused: it has steps of its own, which would be dropped.
        RunFailed: it raises, or does not predict one number for each class; or the recipe has no optimizer.
    """
    if findings := list(inspect_steps(module)):
        raise PlanRefused(findings)
    detach_trainers(module)
    if plan.training.optimizer is None:
        raise RunFailed(
            "a module from Python learns by gradient steps, and the recipe has no training.optimizer",
            "add training.optimizer, and training.steps or epochs; nothing was spent",
        )
    student, outputs, few = copy.deepcopy(module), describe_data(plan.data).outputs, public[:TRIED]
    one = plan.training.model_copy(update={"steps": 1, "epochs": None})
    with locate_failures(student, "it was tried on public records", "mend the module; nothing was spent"):
        with suppress(NothingLearned):  # one update proves little: a whole run reports it, with its own labels
            train_student(student, few, np.zeros(len(few), np.int64), public, one, plan.runtime.seed, device)
        shape = score_student(student.eval(), few, device, TRIED).shape
    if shape != (len(few), outputs):
        raise RunFailed(
            f"{name_failure(module, '')} does not return one number for each of {outputs} classes",
            "let forward return logits (records, classes); nothing was spent",
        )


def score_student(module: nn.Module, features: Floats, device: torch.device, physical_batch: int) -> Scores:
    """Returns the student's probability for each class, (K, M) float64."""
    with torch.no_grad():
        parts = [
            torch.softmax(module(torch.from_numpy(features[start : start + physical_batch]).to(device)).double(), 1)
            for start in range(0, len(features), physical_batch)
        ]
    expected: Scores = torch.cat(parts).cpu().numpy()
    return expected
