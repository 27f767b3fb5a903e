"""Plans of how a model's layers are called, and with which strategies: made once, on synthetic records.

The result is compared with plain backpropagation on the same records. A model without a plan, or with a plan that is
not equal, raises `Unplanned` with the reason. The plan does not depend on any private record.

Legend: N records, P numbers of the parameters of a share.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dprecipe.libraries import ignoring_warnings
from dprecipe.models.modules.draws import freeze_generators
from dprecipe.training.engine.backward import GradientPlan, Loss, channels_last
from dprecipe.training.engine.compilers import read_clock
from dprecipe.training.engine.full_precision import gradient_tolerance, in_full_precision
from dprecipe.training.engine.shares import shares_of
from dprecipe.training.engine.sizes import is_out_of_memory, max_stored_numbers, one_size
from dprecipe.training.engine.strategies import GradientStore, Weights
from dprecipe.training.engine.synthetic import preserve_generators, synthetic_records
from dprecipe.training.engine.taps import Call, Dim, Places, Taps, Unplanned, copy_buffers, layers_of

TRACED = (3, 5)
"""Records of the two passes that show which dimension grows with them."""
TIMED = 16
"""Records of the pass in which strategies are timed."""
MORE = 1.2
"""On a CPU, channels last gain more with more records than are timed: they may take this many times as long."""
MIN_PART = 8
"""At least this many records are taken at a time, whether their rows fit into memory or not."""
_PLANS: weakref.WeakKeyDictionary[nn.Module, dict[Any, GradientPlan | str]] = weakref.WeakKeyDictionary()
_STORES: weakref.WeakKeyDictionary[nn.Module, dict[str, GradientStore]] = weakref.WeakKeyDictionary()


def plan_of(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, expected_records: int = TIMED, sums: int = 0
) -> GradientPlan:
    """Returns the plan for records like these; only their shapes and types are looked at. It is made once.

    `expected_records`: how many will go through the model at once; `sums`: how many are added up in single precision.

    Raises:
        Unplanned: there is none.
        torch.OutOfMemoryError: not even synthetic records fit into memory; nothing is remembered.
    """
    state = [
        (id(layer), layer.training, *[p is not None and p.requires_grad for p in layer._parameters.values()])
        for layer in layers_of(model)
    ]
    key = (loss, *state, features.shape[1:], features.dtype, features.device, labels.shape[1:], labels.dtype)
    plans = _PLANS.setdefault(model, {})
    if key not in plans:
        try:
            plans[key] = _build_plan(model, loss, features, labels, expected_records, sums)
        except Unplanned as unplanned:
            plans[key] = str(unplanned)
        except Exception as error:  # a model may raise anything; it is then left to the other engine
            if is_out_of_memory(error):  # which takes more
                raise
            plans[key] = f"it raises {type(error).__name__} on synthetic records: {error}"
    plan = plans[key]
    if isinstance(plan, str):
        raise Unplanned(plan)
    return plan


def forget_plans(model: nn.Module) -> None:
    """Forgets the plan, so that the next one is made again: for another number of records, or for other memory."""
    _PLANS.pop(model, None)
    _STORES.pop(model, None)


def _build_plan(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, expected_records: int, sums: int
) -> GradientPlan:
    with ignoring_warnings(), preserve_generators(features.device):
        fewer, more = (_traced(model, *synthetic_records(features, labels, count), count) for count in TRACED)
        if len(fewer) != len(more) or any(a.layer is not b.layer for a, b in zip(fewer, more, strict=True)):
            raise Unplanned("the model calls its layers differently for other records")
        stores, storable = _STORES.setdefault(model, {}), max_stored_numbers(features.device)
        plan = GradientPlan(
            tuple(_places(a, b) for a, b in zip(fewer, more, strict=True)), stores=stores, storable=storable
        )
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        # Tiles take more time than rows that are kept. (A GPU takes its time to start products, and has more memory.)
        plan.tiled = one_size(features.device) or MIN_PART * trained > storable
        count = _timing_count(features.device, storable // max(1, trained), expected_records)
        if features.dim() > 3 and any(isinstance(layer, nn.Conv2d) for layer in layers_of(model)):
            plan.channels_last = _faster_last(model, loss, *synthetic_records(features, labels, count), plan)
        with freeze_generators():  # dropout does not draw twice the same
            check_plan(model, loss, *synthetic_records(features, labels, TRACED[0]), plan)
        block_size = min(sums or count, count) if one_size(features.device) else count
        shares = shares_of(model, loss, *synthetic_records(features, labels, count), plan, timed=block_size)
    stored = sum(at.stop - at.start for share in shares if share.chosen in ("kept", "twice") for at in share.slices)
    plan.max_records = _largest_part(plan.storable // max(1, stored), features.device)
    for share in shares:
        for name in share.names[share.chosen == "kept" :]:  # it was tried, or joined to the first
            stores.pop(name, None)
    return plan


def _timing_count(device: torch.device, storable: int, expected_records: int) -> int:
    """Returns the number of records to time the strategies with, at most as many as have their gradients in memory. On
    a GPU it is as many as will go through the model, added up as in a run: a few would measure how long it takes to
    start anything there."""
    return min(expected_records, max(MIN_PART, storable)) if one_size(device) else min(TIMED, max(2, storable))


def _largest_part(storable: int, device: torch.device) -> int:
    """Returns the number of records to take at a time, at most as many as have their rows kept. On a CPU it is a power
    of two: most batches then leave nothing for a part that has to be padded."""
    most = max(MIN_PART, storable)
    return most if one_size(device) else 1 << (most.bit_length() - 1)


def _faster_last(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> bool:
    """Returns True if pass and norms take less time with channels last; also on a CPU where torch has to be
    deterministic."""
    if torch.are_deterministic_algorithms_enabled():
        return features.device.type == "cpu"
    times = {False: math.inf, True: math.inf}
    for last in [*times] * 3:
        start = read_clock(features.device)
        for share in shares_of(model, loss, features, labels, replace(plan, channels_last=last)):
            share.strategy.squares()
        times[last] = min(times[last], read_clock(features.device) - start)
    return times[True] < (MORE if features.device.type == "cpu" else 1.0) * times[False]


def _traced(model: nn.Module, features: Tensor, labels: Tensor, count: int) -> list[Call]:
    with torch.enable_grad(), Taps(model, count) as taps:
        model(features)
        return taps.calls


def _places(fewer: Call, more: Call) -> Places:
    inputs = tuple(_place(a.shape, b.shape) for a, b in zip(fewer.tensors(), more.tensors(), strict=True))
    outputs = tuple(_place(a, b) for a, b in zip(fewer.shapes, more.shapes, strict=True))
    if fewer.kind is nn.Embedding and inputs == (None,):
        return Places(((0, 1),), ((0, 1),), expanded=True)
    return Places(inputs, outputs)


def _place(fewer: torch.Size, more: torch.Size) -> Dim:
    if len(fewer) != len(more):
        raise Unplanned("a layer does not get one row for each record")
    grown = [dim for dim, (a, b) in enumerate(zip(fewer, more, strict=True)) if a != b]
    if not grown:
        return None
    rows, remainder = divmod(fewer[grown[0]], TRACED[0])
    if len(grown) > 1 or remainder or more[grown[0]] != rows * TRACED[1]:
        raise Unplanned("a layer does not get one row for each record")
    return grown[0], rows


TOLERANCE = 1e-3
"""Relative error of the check on synthetic records: far above single precision's, far below a wrong formula's."""
CANCELLATION = 3e-5
"""A gradient that is this much smaller than the largest may be what is left where others cancel: it is not compared."""


@in_full_precision()
def check_plan(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> None:
    """Compares norms and a weighted sum with those of plain backpropagation, with the same draws.

    Raises:
        Unplanned: they are not equal.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    count = len(labels)
    weights_N = 0.5 ** torch.arange(count, dtype=torch.float64, device=features.device)
    with preserve_generators(features.device):
        shares = shares_of(model, loss, features, labels, plan)
    # From the same seed, for whichever generator the layers draw from: a GPU's is not the CPU's.
    with preserve_generators(features.device), torch.enable_grad(), copy_buffers(layers_of(model)):
        # In the same memory order: otherwise, where two values nearly tie, a maximum may pick the other one.
        losses = loss(model(channels_last(features) if plan.channels_last else features), labels)
    rows: list[tuple[Tensor | None, ...]] = []
    for n in range(count):
        if losses.requires_grad:
            tensors = [p for _, p in parameters]
            rows.append(torch.autograd.grad(losses[n], tensors, retain_graph=True, allow_unused=True))
    expected = {}
    for i, (name, parameter) in enumerate(parameters):
        single = [torch.zeros_like(parameter) if (gradient := row[i]) is None else gradient for row in rows]
        expected[name] = weights_N.new_zeros(count, parameter.numel())
        if single:
            expected[name] += torch.stack(single).reshape(count, -1)
    largest = max(float(rows_NP.abs().max()) for rows_NP in expected.values())
    for share in shares:
        reference_NP = torch.cat([expected.pop(name) for name in share.names], 1)
        totals = [weights_N.new_zeros(place.stop - place.start) for place in share.slices]
        norms_N = share.strategy.squares().sqrt()
        share.strategy.add(totals, Weights(weights_N, block_size=count))
        for result, reference in ((norms_N, reference_NP.norm(dim=1)), (torch.cat(totals), weights_N @ reference_NP)):
            if (
                not float((result - reference).abs().max())
                <= gradient_tolerance(model, TOLERANCE) * float(reference.abs().max()) + CANCELLATION * largest
            ):
                raise Unplanned(f"the bookkeeping of {share.names[0]!r} does not equal plain backpropagation")
    for name, reference_NP in expected.items():
        if not float(reference_NP.abs().max()) <= CANCELLATION * largest:
            raise Unplanned(f"the bookkeeping of {name!r} does not equal plain backpropagation")
