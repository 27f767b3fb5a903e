"""How a model's layers are called, and which strategies are the fastest: found out once, on synthetic records.

What comes of it is held against plain backpropagation there. A model for which it can't be had, or is not equal, is
`Unplanned`, and the reason is told. Nothing of the plan is taken from a record: nothing of it can move with one.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dprecipe.models.modules.resting import rest_generators
from dprecipe.training.engine.backward import GradientPlan, Loss
from dprecipe.training.engine.choice import read_clock
from dprecipe.training.engine.plan_check import check_plan
from dprecipe.training.engine.shares import shares_of
from dprecipe.training.engine.sizes import is_out_of_memory, numbers_kept, one_size
from dprecipe.training.engine.strategies import GradientStore
from dprecipe.training.engine.synthetic import left_alone, made_up
from dprecipe.training.engine.taps import Call, Dim, Places, Taps, Unplanned, layers_of

TRACED = (3, 5)
"""Records of the two passes that show which dimension grows with them."""
TIMED = 16
"""Records of the pass in which strategies are timed."""
MORE = 1.2
"""On a CPU channels last gain more by more records than are timed: they may take so many times as long."""
FEW = 8
"""No fewer records are taken at a time than this, whether their rows have room or not."""
_PLANS: weakref.WeakKeyDictionary[nn.Module, dict[Any, GradientPlan | str]] = weakref.WeakKeyDictionary()
_STORES: weakref.WeakKeyDictionary[nn.Module, dict[str, GradientStore]] = weakref.WeakKeyDictionary()


def plan_of(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, wanted: int = TIMED, sums: int = 0
) -> GradientPlan:
    """The plan for records like these, of which only shapes and types are looked at; made once.

    `wanted`: how many will go through the model at once; `sums`: of how many at a time sums are in single precision.

    Raises:
        Unplanned: there is none.
        torch.OutOfMemoryError: not even synthetic records had room; nothing is remembered.
    """
    state = [
        (id(layer), layer.training, *[p is not None and p.requires_grad for p in layer._parameters.values()])
        for layer in layers_of(model)
    ]
    key = (loss, *state, features.shape[1:], features.dtype, features.device, labels.shape[1:], labels.dtype)
    plans = _PLANS.setdefault(model, {})
    if key not in plans:
        try:
            plans[key] = _made(model, loss, features, labels, wanted, sums)
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


def _made(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, wanted: int, sums: int) -> GradientPlan:
    with left_alone(features.device):
        few, more = (_traced(model, *made_up(features, labels, count), count) for count in TRACED)
        if len(few) != len(more) or any(a.layer is not b.layer for a, b in zip(few, more, strict=True)):
            raise Unplanned("the model calls its layers differently for other records")
        stores, room = _STORES.setdefault(model, {}), numbers_kept(features.device)
        plan = GradientPlan(tuple(_places(a, b) for a, b in zip(few, more, strict=True)), stores=stores, room=room)
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        count = _timed(features.device, room // max(1, trained), wanted)
        if features.dim() > 3 and any(isinstance(layer, nn.Conv2d) for layer in layers_of(model)):
            plan.channels_last = _faster_last(model, loss, *made_up(features, labels, count), plan)
        with rest_generators():  # dropout does not draw twice the same
            check_plan(model, loss, *made_up(features, labels, TRACED[0]), plan)
        together = min(sums or count, count) if one_size(features.device) else count
        shares = shares_of(model, loss, *made_up(features, labels, count), plan, timed=together)
    kept = sum(at.stop - at.start for share in shares if share.chosen in ("kept", "twice") for at in share.wheres[:1])
    plan.most = max(FEW, plan.room // max(1, kept))
    for share in shares:
        if share.chosen != "kept":  # it was tried
            stores.pop(share.names[0], None)
    return plan


def _timed(device: torch.device, held: int, wanted: int) -> int:
    """How many records to time the strategies with, where the gradients of so many can be held. On a GPU as many as
    will go through the model, added up as in a run: a few would measure how long it takes to start anything there."""
    return min(wanted, max(FEW, held)) if one_size(device) else min(TIMED, max(2, held))


def _faster_last(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> bool:
    """Whether pass and norms take less time with channels last; so on a CPU where torch has to be deterministic."""
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


def _places(few: Call, more: Call) -> Places:
    inputs = tuple(_place(a.shape, b.shape) for a, b in zip(few.tensors(), more.tensors(), strict=True))
    outputs = tuple(_place(a, b) for a, b in zip(few.shapes, more.shapes, strict=True))
    if few.kind is nn.Embedding and inputs == (None,):
        return Places(((0, 1),), ((0, 1),), expanded=True)
    return Places(inputs, outputs)


def _place(few: torch.Size, more: torch.Size) -> Dim:
    if len(few) != len(more):
        raise Unplanned("a layer does not get one row for each record")
    grown = [dim for dim, (a, b) in enumerate(zip(few, more, strict=True)) if a != b]
    if not grown:
        return None
    rows, left = divmod(few[grown[0]], TRACED[0])
    if len(grown) > 1 or left or more[grown[0]] != rows * TRACED[1]:
        raise Unplanned("a layer does not get one row for each record")
    return grown[0], rows
