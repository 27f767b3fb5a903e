"""A module's own loss on synthetic outputs: it means in a batch what it means for single records, which is how it runs.

`dprecipe.training.program.own_loss` says why it is private. Here a loss is refused that would silently mean something
else by single records (statistics of a batch, pairs), or would not run so; all of it before a record is read.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn, final

import torch
from torch import Tensor, nn

from dprecipe.data.targets import Target
from dprecipe.faults import Fault, RunFailed
from dprecipe.models.modules.draws import drawing_from, record_draws
from dprecipe.models.modules.inspection import find_loss
from dprecipe.progress import report_progress
from dprecipe.training.probe.place import locate_failure
from dprecipe.training.program.losses import LabelledLoss, Loss, synthetic_labels
from dprecipe.training.program.own_loss import OwnLoss

SIZES = (6, 5, 1)
SCALES = (1.0, 30.0)
EQUAL = 1e-4
"""Largest relative difference of two ways to compute a loss in single precision."""
BY_RECORD = (
    'return one loss for each record: reduction="none", and nothing of the batch in it: no mean, count, pair or norm '
    "over records; weights of classes are constants"
)


@final
@dataclass(frozen=True, slots=True)
class _Batch:
    outputs: Tensor
    labels: Tensor


def require_loss(loss: Loss, module: nn.Module, target: Target) -> None:
    """Checks the loss of a module from Python, if it is one of its own; leaves the module and all generators as they
    were.

    Raises:
        RunFailed: it draws, reads features or weights, keeps something between calls, means something else in a batch
            than by single records, or raises; the message names the line where it is known.
    """
    own = loss.loss if isinstance(loss, LabelledLoss) else loss
    if not isinstance(own, OwnLoss):
        return
    device = next(module.parameters()).device
    subject = copy.deepcopy(module).train()
    own, name = replace(own, module=weakref.ref(subject)), find_loss(subject)
    with drawing_from(0, device):
        batches = list(_make_batches(target, device))
        try:
            _check_calls(own, subject, batches[0], name)
            for batch in batches:
                _check_batch(own, batch, name)
            _check_memory(own, batches, name)
        except Fault:
            raise
        except Exception as error:  # of the loss, whose code is the user's
            raise RunFailed(
                f"{name} of the module raises on single records: {locate_failure(error, subject)}",
                "let it take one record at a time under torch.vmap: no draws, no branch on a value (torch.where), no "
                ".item(), no writing to a tensor outside",
            ) from None


def _make_batches(target: Target, device: torch.device) -> Iterator[_Batch]:
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        numbers = torch.arange(size, device=device)
        for scale in SCALES:
            outputs = scale * torch.randn(size, target.outputs, generator=generator).to(device)
            for labels in (numbers, numbers // 2, torch.zeros_like(numbers)):
                yield _Batch(outputs, synthetic_labels(labels, target))


def _check_calls(own: OwnLoss, module: nn.Module, batch: _Batch, name: str) -> None:
    """Checks that a call depends on outputs and labels alone, and draws nothing."""
    logged: list[object] = []
    losses = own.of_batch(batch.outputs, batch.labels, log=lambda *given, **named: logged.append(given or named))
    if logged:
        report_progress(
            f"self.log in {name} goes nowhere: it would show losses of private records; scores are those of data.test"
        )
    if record_draws(lambda outputs: own.of_batch(outputs, batch.labels), batch.outputs):
        _refuse(f"{name} draws random numbers", "draw in forward, where each record's draws are its own")
    if not torch.equal(own.of_batch(batch.outputs, batch.labels).nan_to_num(), losses.nan_to_num()):
        _refuse_memory(name)
    if losses.requires_grad:
        _refuse(
            f"{name} reaches weights past the outputs",
            "let it use the outputs of self(x) alone; weight_decay of the optimiser shrinks weights",
        )
    if not bool(torch.isfinite(losses).all()):
        _refuse(
            f"the loss of {name} is not finite where features are NaN: it looks at features, or is not finite itself",
            "let it use the outputs and the labels alone; what it takes from features belongs into forward",
        )
    others = torch.zeros((len(batch.labels), *own.shape), device=batch.labels.device)
    if not torch.equal(own.of_batch(batch.outputs, batch.labels, others), losses):
        _refuse(
            f"the loss of {name} changes with the features",
            "let it use the outputs and the labels alone; what it takes from features belongs into forward",
        )


def _check_batch(own: OwnLoss, batch: _Batch, name: str) -> None:
    """Checks that the loss of a batch, or its mean, and its gradient are those of single records."""
    together, alone = (batch.outputs.clone().requires_grad_() for _ in range(2))
    losses = own.of_batch(together, batch.labels)
    if losses.shape not in ((), batch.labels.shape):
        _refuse(f"{name} returns shape {list(losses.shape)} for {len(batch.labels)} records", BY_RECORD)
    singles = own(alone, batch.labels)
    expected = singles if losses.dim() else singles.mean()
    if not singles.requires_grad:
        _refuse(f"the loss of {name} does not depend on the outputs", "compute it of self(x), and detach nothing")
    if not _are_near(losses, expected):
        what = "the losses of a batch are" if losses.dim() else "the loss of a batch is"
        other = "those of its records one by one" if losses.dim() else "the mean of its records' own"
        _refuse(f"{what} not {other} ({name}): records share a part of it", BY_RECORD)
    weights = torch.linspace(1.0, 2.0, len(singles), device=singles.device) if losses.dim() else None
    gradients = [
        torch.autograd.grad((value if weights is None else weights * value).sum(), source, allow_unused=True)[0]
        for value, source in ((losses, together), (expected, alone))
    ]
    one, other_gradient = (torch.zeros_like(together) if each is None else each for each in gradients)
    if not _are_near(one, other_gradient):
        _refuse(f"the gradient of {name} is not that of its records one by one: records share a part of it", BY_RECORD)


def _check_memory(own: OwnLoss, batches: list[_Batch], name: str) -> None:
    """Checks that a loss is the same, to the bit, after calls with others."""
    first = own(batches[0].outputs, batches[0].labels)
    for batch in batches[1:]:
        own(batch.outputs, batch.labels)
    again = own(batches[0].outputs, batches[0].labels)
    if not torch.equal(first, again):
        _refuse_memory(name)


def _refuse_memory(name: str) -> NoReturn:
    _refuse(
        f"{name} gives the same records other losses the next time: it keeps something between calls",
        "keep nothing outside of the call, and ask neither the clock nor a generator",
    )


def _are_near(one: Tensor, other: Tensor) -> bool:
    scale = float(other.detach().abs().max()) + 1e-6
    return bool(float((one - other).detach().abs().max()) <= EQUAL * scale)


def _refuse(message: str, remedy: str) -> NoReturn:
    raise RunFailed(f"{message}. Nothing was spent", remedy)
