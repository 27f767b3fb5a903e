"""A program under probe: a copy of the module, its loss, and synthetic records to compare.

Legend: B records, P parameters, C classes.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe.data.targets import Target
from dprecipe.models.form import Form
from dprecipe.models.modules.adapted import RecordByRecord
from dprecipe.models.modules.draws import drawing_from, find_shared_draws, freeze_generators, record_draws
from dprecipe.training.engine.clipped_sum import Loss
from dprecipe.training.engine.rounding import KINKS, MAX_DIFFERENCE, MOVED
from dprecipe.training.probe.place import name_failure
from dprecipe.training.program.losses import synthetic_labels

ROUNDING = 1e-5
TOLERANCE = 1e-4
"""Largest relative error: single precision adds up in another order, no more."""
KINK_DRAWS = 16
"""Number of times that a record is moved to find a kink beside it."""
ROUNDINGS = 10
"""Multiple of an entry's measured rounding that is allowed on top."""
RETURN = "mend forward: it returns a row for each record, with as many numbers as the labels ask for"
FINITE = "mend forward: keep its numbers finite, such as by a small constant where it divides or takes a logarithm"
ProbeTest = tuple[str, str, Callable[[], str]]
"""Id, what is expected, and a test that answers in words what it measured, or raises `Failed`."""


class Failed(Exception):
    """A check failed. The message says what was measured; `remedy` says what to do about it."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


def move_rows(features: Tensor, rows: Iterable[int], seed: int) -> Tensor:
    """Returns the records (B, …), some of them changed by about what rounding changes, in a direction that `seed`
    selects."""
    draw, result = torch.Generator().manual_seed(seed), features.clone()
    for row in rows:
        change = torch.randn(features[row].shape, generator=draw).to(features)
        result[row] += MOVED * features[row].abs().max() * change
    return result


@final
@dataclass(frozen=True)
class Case:
    """State that the checks of the probe share. `others` replace records, to see which outputs they influence."""

    module: nn.Module
    loss: Loss
    form: Form
    features: Tensor
    others: Tensor
    labels: Tensor
    other_labels: Tensor
    target: Target
    before: dict[str, Tensor]
    seed: int

    @staticmethod
    def of(
        module: nn.Module, loss: Loss, form: Form, target: Target, records: int, seed: int, device: torch.device
    ) -> Case:
        generator = torch.Generator().manual_seed(seed)
        features = form.draw(records, generator).to(device)
        others = form.draw(records, generator, distant=True).to(device)
        numbers = torch.arange(records, device=device)
        labels, other_labels = synthetic_labels(numbers, target), synthetic_labels(numbers + 1, target)
        before = {name: tensor.detach().clone() for name, tensor in _state_of(module).items()}
        return Case(module, loss, form, features, others, labels, other_labels, target, before, seed)

    def draw_records(self, records: int, *, distant: bool = False) -> tuple[Tensor, Tensor]:
        """Returns `records` further synthetic records, and their labels."""
        generator = torch.Generator().manual_seed(self.seed + 1 + distant)
        features = self.form.draw(records, generator, distant=distant).to(self.features.device)
        return features, synthetic_labels(torch.arange(records, device=self.labels.device), self.target)

    def drawing(self, seed: int = 0) -> AbstractContextManager[None]:
        """Makes layers draw from this seed inside the block."""
        return drawing_from(self.seed + seed, self.features.device)

    @cached_property
    def random(self) -> bool:
        """True if layers draw at all, however seldom that changes an output."""
        with self.drawing():
            return self.single or bool(record_draws(self.module, self.features))

    @property
    def single(self) -> bool:
        """Records go through the module one by one, each with draws of its own."""
        return isinstance(self.module, RecordByRecord) and self.module.single

    @contextmanager
    def freeze_draws(self) -> Iterator[None]:
        """Inside, layers that draw do nothing random, so that a record by itself can be compared with the same record
        in a batch. Python's and numpy's generators start each call from the same seed."""
        if not self.random:
            yield
            return

        def again(*_: object) -> None:
            random.seed(self.seed)
            np.random.seed([self.seed, 0])

        handle = self.module.register_forward_pre_hook(again)
        try:
            with self.drawing(), freeze_generators():
                yield
        finally:
            handle.remove()

    def output(self) -> str:
        outputs = self.outputs(self.features, self.labels)
        # Of a sequence, one for each place that has one before it.
        each = self.form.shape[1] - 1 if self.form.sequences else self.target.outputs
        expected = (len(self.labels), each)
        if outputs.shape != expected:
            raise Failed(f"shape {list(outputs.shape)}, expected {list(expected)}", RETURN)
        if not bool(torch.isfinite(outputs).all()):
            raise Failed("an output is not finite", FINITE)
        again = self.outputs(self.features, self.labels)
        if not float((again - outputs).abs().max()) <= ROUNDING * float(outputs.abs().max()):
            raise Failed(
                "the same records, with the same draws of torch, numpy and random, give other outputs the second "
                f"time{self.first_difference(self.features, self.features, slice(None))}",
                "draw from torch's global generator (no `generator=` of the layer's own), and keep nothing between "
                "calls",
            )
        with self.drawing():
            shared = "" if self.single else find_shared_draws(self.module, (self.features, self.features[:5]))
        if shared:
            raise Failed(
                f"records share draws{self.first_difference(self.features, self.features, slice(None), 1)}: {shared}",
                "draw for each record by itself, with torch, as many numbers more as there are more records",
            )
        note = "; what layers draw they draw for each record by itself" if self.random else ""
        return f"shape {list(outputs.shape)}{note}"

    def loss_per_record(self) -> str:
        losses = self.losses(self.features, self.labels)
        if losses.shape != self.labels.shape:
            raise Failed(f"shape {list(losses.shape)} for {len(self.labels)} records")
        if not bool(torch.isfinite(losses).all()):
            raise Failed("a loss is not finite", FINITE)
        return f"shape {list(losses.shape)}"

    def largest_jumps(self, gradients_of: Callable[[Case], Tensor]) -> Tensor:
        """(B, P): how far a correct computation of these gradients may be off because rounding moves a record over a
        kink; zeros where records are tokens, which nothing moves."""
        expected = gradients_of(self)
        result = torch.zeros_like(expected)
        if self.features.is_floating_point():
            rows = range(len(self.features))
            for number in range(KINK_DRAWS):
                features, others = (move_rows(some, rows, self.seed + number) for some in (self.features, self.others))
                moved = gradients_of(replace(self, features=features, others=others))
                result = torch.maximum(result, (moved - expected).abs())
        return KINKS * result

    def buffers_unmoved(self) -> str:
        self.losses(self.features, self.labels)
        self.module.eval()  # as it is scored: a buffer may move then only
        try:
            self.losses(self.features, self.labels)
        finally:
            self.module.train()
        after = _state_of(self.module)
        moved = [
            name
            for name in sorted(self.before.keys() | after.keys())
            if name not in after or name not in self.before or not _equal(self.before[name], after[name])
        ]
        if moved:
            places = [
                f"{name.rpartition('.')[2]!r} of {name_failure(self.module, name.rpartition('.')[0])}" for name in moved
            ]
            raise Failed(
                f"moved: {', '.join(places)}",
                "keep nothing of a record: build the layer without statistics (nn.GroupNorm, nn.LayerNorm), and write "
                "to no buffer or weight in forward",
            )
        return f"{len(after)} buffers and weights, none moved"

    @cached_property
    def single_gradients(self) -> Tensor:
        """(B, P): the gradient of each record by itself, one after the other, by plain backpropagation.

        Raises:
            Failed: one is not finite.
        """
        return self.gradients_of(self.features, self.labels)

    def gradients_of(self, features: Tensor, labels: Tensor) -> Tensor:
        """(B, P): as `single_gradients`, of these records.

        Raises:
            Failed: one is not finite.
        """
        result = self._looped(self.module, features, labels)
        if not bool(torch.isfinite(result).all()):
            raise Failed("a gradient of a single record is not finite", FINITE)
        return result

    def compare_gradients(self, result: Tensor) -> str:
        """Compares an engine's gradients (B, P) of the records with those of the loop; says how far they are off.

        Raises:
            Failed: farther than rounding.
        """
        expected = self.single_gradients
        if result.shape != expected.shape:
            raise Failed(f"shape {list(result.shape)}, expected {list(expected.shape)}")
        # Each parameter on its own scale, so that a small one can't hide behind a large one.
        floor = 1e-6 * float(expected.abs().max()) + 1e-30
        worst = 0.0
        for name, part in self.slices():
            scale = max(float(expected[:, part].abs().max()), floor)
            difference = (result[:, part] - expected[:, part]).abs() - ROUNDINGS * self.rounding[:, part]
            error = float(difference.clamp_min(0.0).max()) / scale
            if not error <= TOLERANCE:
                allowed = self.jumps[:, part].amax(1, keepdim=True).clamp_max(MAX_DIFFERENCE * scale)
                error = float((difference - allowed).clamp_min(0.0).max()) / scale
            if not error <= TOLERANCE:
                raise Failed(f"relative error {error:.1e} in parameter {name!r}, at most {TOLERANCE:.0e} is rounding")
            worst = max(worst, error)
        return f"largest relative error {worst:.1e}"

    @cached_property
    def jumps(self) -> Tensor:
        """See `largest_jumps`; of the gradients of single records."""
        return self.largest_jumps(lambda case: case.single_gradients)

    @cached_property
    def rounding(self) -> Tensor:
        """(B, P): the difference of single and double precision in the same loop; zero if the module has no double.

        If a gradient is a small difference of large numbers, two correct engines differ by this much.
        """
        try:
            double = self._looped(copy.deepcopy(self.module).double(), self.features.double(), self.labels)
        except Exception:  # of the module, whose code is the user's: it has no double precision
            return torch.zeros_like(self.single_gradients)
        return (self.single_gradients - double).abs().to(self.single_gradients.dtype)

    def _looped(self, module: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        parameters = [p for p in module.parameters() if p.requires_grad]
        rows = []
        for i in range(len(labels)):
            losses = self.loss(module(features[i : i + 1]), labels[i : i + 1])
            grads = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
            parts = [
                (torch.zeros_like(parameter) if grad is None else grad).flatten()
                for parameter, grad in zip(parameters, grads, strict=True)
            ]
            rows.append(torch.cat(parts))
        return torch.stack(rows)

    def slices(self) -> Iterator[tuple[str, slice]]:
        """Lists where each trained parameter lies in a flat gradient."""
        start = 0
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                size = math.prod(parameter.shape)
                yield name, slice(start, start + size)
                start += size

    def outputs(self, features: Tensor, _: Tensor, seed: int = 0) -> Tensor:
        """Returns what the module makes of these records, its layers drawing from this seed."""
        with torch.no_grad(), self.drawing(seed):
            outputs = self.module(features)
        if not isinstance(outputs, Tensor):
            raise Failed(
                f"the module returns a {type(outputs).__name__}, expected a tensor of logits",
                "return the logits alone, or an object that has them as .logits",
            )
        return outputs

    def losses(self, features: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad(), self.drawing():
            losses = self.loss(self.module(features), labels)
        if not isinstance(losses, Tensor):
            raise Failed(f"the loss returns a {type(losses).__name__}, expected a tensor")
        if losses.shape != labels.shape:
            raise Failed(f"the loss has shape {list(losses.shape)} for {len(labels)} records")
        return losses

    def first_difference(self, one: Tensor, other: Tensor, untouched: Tensor | slice, seed: int = 0) -> str:
        """Returns the first layer, in order of execution, whose rows for the untouched records differ; in words."""
        for (name, expected), (_, result) in zip(self._traced(one), self._traced(other, seed), strict=False):
            by_record = expected.shape == result.shape and expected.dim() > 0 and len(expected) == len(self.labels)
            if by_record and expected.numel() and not relative_change(result, expected, untouched) <= ROUNDING:
                return f", first in layer {name!r}"
        return ", outside its layers"

    def _traced(self, features: Tensor, seed: int = 0) -> list[tuple[str, Tensor]]:
        trace: list[tuple[str, Tensor]] = []

        def remember(name: str) -> Callable[[nn.Module, object, object], None]:
            def hook(_: nn.Module, __: object, output: object) -> None:
                first = output[0] if isinstance(output, tuple) and output else output
                if isinstance(first, Tensor):
                    trace.append((name, first.detach().clone()))

            return hook

        hooks = [
            layer.register_forward_hook(remember(f"{name} ({type(layer).__name__})"))
            for name, layer in self.module.named_modules()
            if name
        ]
        try:
            self.outputs(features, self.labels, seed)
        finally:
            for handle in hooks:
                handle.remove()
        return trace


def relative_change(result: Tensor, expected: Tensor, rows: Tensor | slice) -> float:
    """Returns the largest difference in these rows, relative to the largest finite number of all; NaN where a number is
    finite on one side alone. What is not finite on both sides, and alike, does not differ."""
    alike = (result == expected) | (result.isnan() & expected.isnan())
    finite = torch.where(expected.isfinite(), expected, 0.0)
    return float(torch.where(alike, 0.0, result - expected)[rows].abs().max()) / (float(finite.abs().max()) + 1e-30)


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))


def _state_of(module: nn.Module) -> dict[str, Tensor]:
    """Returns buffers, and the weights, which a layer could move by itself (`nn.Embedding` with `max_norm` does)."""
    return {**dict(module.named_buffers()), **dict(module.named_parameters())}
