"""Clipped sums from one backward pass: layers keep what their gradients are made of, and few gradients of single
records are ever held.

How a model's layers are called is found out once, on made-up records of the same shape, and the sum that comes of it is
held against plain backpropagation there. A model for which it can't be had, or is not equal, is `Unplanned`, and the
reason is told. Nothing of the plan is taken from a record, so that nothing of it can move with one.

Legend: N records, P numbers of all trained parameters.
Source: Z. Bu, Y.-X. Wang, S. Zha, G. Karypis, "Differentially Private Optimization on Small Model at Large Cost"
(book-keeping), ICML 2023.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.layers import terms
from dprecipe.training.engine.taps import Call, Dim, Places, Taps, Unplanned, buffers_apart
from dprecipe.training.engine.terms import OfLayer, Term
from dprecipe.training.engine.ways import KEPT, Store, Way, at_once, candidates, cheapest

Loss = Callable[[Tensor, Tensor], Tensor]
ROUNDING = 1.0 + 2.0**-20
"""Norms are raised by this much: more than double precision rounds the norms of up to 2^30 parameters, and
sums of n records in which K numbers meet at one coordinate, as long as n K < 2^32."""
TOLERANCE = 1e-3
"""Relative error of the check on made-up records: far above single precision's, far below a wrong formula's."""
LOST = 1e-5
"""A gradient that is this much smaller than the largest may be what is left where others cancel: it is not compared."""
TRACED = (3, 5)
"""Records of the two passes that show which dimension grows with them."""


@final
@dataclass(slots=True)
class Plan:
    """How the layers of a model are called, for records of one shape."""

    places: tuple[Places, ...]
    ways: dict[tuple[str, int], str] = field(default_factory=dict)
    """The fastest way for each parameter, and for each number of records up to a power of two."""
    stores: dict[str, Store] = field(default_factory=dict)
    """For each parameter, the memory of the rows that are kept."""


_PLANS: weakref.WeakKeyDictionary[nn.Module, dict[Any, Plan | str]] = weakref.WeakKeyDictionary()


def add_clipped(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, clipping: Clipping, total_P: Tensor
) -> None:
    """Clip each record's gradient and add them all to `total_P`, float64 (and one longer, where records are counted).

    A record with a non-finite gradient adds nothing. Where `Unplanned` is raised, nothing was added at all.

    Guarantees: adding or removing one record moves the sum by at most what `clipping` bounds, given the others'
    gradients; the model, its buffers, hooks and `.grad` are left as they were; memory is that of a backward pass, and
    `KEPT` numbers.

    Raises:
        Unplanned: the model can't be summed in this way.
    """
    plan = plan_of(model, loss, features, labels)
    if total_P.device != features.device:
        raise Unplanned("the device has no double precision")
    if clipping.norm != "l2":
        raise Unplanned("only L2 norms come from one backward pass")
    shares = _shares(model, loss, features, labels, plan)
    groups = [0 if clipping.groups is None else clipping.groups[share.index] for share in shares]
    squares_GN = total_P.new_zeros(len(clipping.thresholds), len(labels))
    for group, share in zip(groups, shares, strict=True):
        squares_GN[group] += share.way.squares()
    norms_GN = squares_GN.sqrt() * ROUNDING
    weights_GN = clipping.weights(norms_GN)
    for group, share in zip(groups, shares, strict=True):
        share.way.add(total_P[share.where], weights_GN[group])
    if clipping.counted is not None:
        total_P[-1:] += clipping.bits(norms_GN)


def plan_of(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Plan:
    """The plan for records like these, of which only shapes and types are looked at; made once.

    Raises:
        Unplanned: there is none.
    """
    modes = tuple(layer.training for layer in model.modules())
    trained = tuple(parameter.requires_grad for parameter in model.parameters())
    key = (loss, modes, trained, features.shape[1:], features.dtype, features.device, labels.shape[1:], labels.dtype)
    plans = _PLANS.setdefault(model, {})
    if key not in plans:
        try:
            plans[key] = _made(model, loss, features, labels)
        except Unplanned as unplanned:
            plans[key] = str(unplanned)
        except Exception as error:  # a model may raise anything; it is then left to the other engine
            plans[key] = f"it raises {type(error).__name__} on made-up records: {error}"
    plan = plans[key]
    if isinstance(plan, str):
        raise Unplanned(plan)
    return plan


def describe(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> dict[str, str]:
    """Parameter to the way its clipped sum is taken, for as many records like these; by rule, where none was timed.

    For a model that can't be planned, every parameter goes the way of gradients of single records, with the reason.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        plan = plan_of(model, loss, features, labels)
        with _left_alone(features.device):
            shares = _shares(model, loss, *made_up(features, labels, len(features)), plan, timed=False)
    except Unplanned as reason:
        return dict.fromkeys(names, f"gradients of single records, for the whole model: {reason}")
    told = {share.name: WORDS[share.chosen] + (ALONE if share.alone else "") for share in shares}
    return {name: told.get(name, "no gradient") for name in names}


WORDS = {
    "rows": "gradients of single records, as they come",
    "kept": "gradients of single records, kept",
    "twice": "gradients of a few records at a time, computed twice",
    "ghost": "norms without gradients of single records",
    "sparse": "rows of a table that were looked up",
}
ALONE = ", of this layer by itself"


@final
@dataclass(frozen=True, slots=True)
class _Share:
    """One parameter: its place among all, and the way to its part of norms and sum."""

    name: str
    index: int
    """Of the parameter, among those that are trained."""
    where: slice
    chosen: str
    way: Way
    alone: bool


def _shares(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: Plan, *, timed: bool = True
) -> list[_Share]:
    """The parameters that the losses reach."""
    calls = _passed(model, loss, features, labels, plan)
    count, device = len(labels), features.device
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    found: dict[str, list[Term]] = {}
    for call in calls:
        made = list(terms(call))
        _hold(made, count, device)
        for name, term in made:
            found.setdefault(names[id(call.parameters[name])], []).append(term)
    calls.clear()
    shares, start, room = [], 0, KEPT
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for index, (name, parameter) in enumerate(trained):
        size = parameter.numel()
        if name in found:
            ways = candidates(found[name], count, size, device, room, plan.stores.setdefault(name, Store()))
            key = (name, count.bit_length())
            chosen = plan.ways.get(key)
            if chosen not in ways:
                chosen = cheapest(ways, torch.ones(count, dtype=torch.float64, device=device), size) if timed else ""
                chosen = chosen or next(iter(ways))
                if timed:
                    plan.ways[key] = chosen
            if chosen == "kept":
                room -= count * size
            alone = any(isinstance(term, OfLayer) for term in found[name])
            shares.append(_Share(name, index, slice(start, start + size), chosen, ways[chosen](), alone))
        start += size
    return shares


def _hold(made: list[tuple[str, Term]], count: int, device: torch.device) -> None:
    """A layer that is differentiated by itself is so once for all its parameters, where there is room to keep them."""
    for _, term in made[:1]:
        if isinstance(term, OfLayer):
            size = sum(parameter.numel() for parameter in term.layer.parameters.values())
            if count * size <= KEPT:
                term.layer.hold(count, at_once(size + term.layer.taken, device))


def _passed(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: Plan) -> list[Call]:
    with torch.enable_grad(), Taps(model, len(labels), plan.places) as taps:
        losses = loss(model(features), labels)
        if losses.shape != labels.shape[:1]:
            raise Unplanned("the loss is not one for each record")
        taps.backward(losses)
        return taps.calls


def _made(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Plan:
    with _left_alone(features.device):
        few, more = (_traced(model, *made_up(features, labels, count), count) for count in TRACED)
        if len(few) != len(more) or any(a.layer is not b.layer for a, b in zip(few, more, strict=True)):
            raise Unplanned("the model calls its layers differently for other records")
        plan = Plan(tuple(_places(a, b) for a, b in zip(few, more, strict=True)))
        _check(model, loss, *made_up(features, labels, TRACED[0]), plan)
    return plan


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


def _check(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: Plan) -> None:
    """Hold norms and a weighted sum against plain backpropagation, with the same draws.

    Raises:
        Unplanned: they are not equal.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    count = len(labels)
    weights_N = 0.5 ** torch.arange(count, dtype=torch.float64, device=features.device)
    state = torch.random.get_rng_state()
    shares = {share.name: share for share in _shares(model, loss, features, labels, plan, timed=False)}
    torch.random.set_rng_state(state)
    with torch.enable_grad(), buffers_apart(model):
        losses = loss(model(features), labels)
    rows: list[tuple[Tensor | None, ...]] = []
    for n in range(count):
        if losses.requires_grad:
            wanted = [p for _, p in parameters]
            rows.append(torch.autograd.grad(losses[n], wanted, retain_graph=True, allow_unused=True))
    expected = {}
    for i, (name, parameter) in enumerate(parameters):
        single = [torch.zeros_like(parameter) if (gradient := row[i]) is None else gradient for row in rows]
        expected[name] = weights_N.new_zeros(count, parameter.numel())
        if single:
            expected[name] += torch.stack(single).view(count, -1)
    largest = max(float(rows_NP.abs().max()) for rows_NP in expected.values())
    for name, rows_NP in expected.items():
        found_N, found_P = weights_N.new_zeros(count), weights_N.new_zeros(rows_NP.shape[1])
        if name in shares:
            found_N = shares[name].way.squares().sqrt()
            shares[name].way.add(found_P, weights_N)
        for found, right in ((found_N, rows_NP.norm(dim=1)), (found_P, weights_N @ rows_NP)):
            if not float((found - right).abs().max()) <= TOLERANCE * float(right.abs().max()) + LOST * largest:
                raise Unplanned(f"the bookkeeping of {name!r} does not equal plain backpropagation")


def made_up(features: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` records of these shapes and types. Labels are zero, whole numbers zero or one."""
    shape = (count, *features.shape[1:])
    if features.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        made = torch.randn(shape, generator=generator, dtype=torch.float32).to(features)
    else:
        made = (torch.arange(torch.Size(shape).numel()) % 2).view(shape).to(features)
    return made, labels.new_zeros(count, *labels.shape[1:])


@contextmanager
def _left_alone(device: torch.device) -> Iterator[None]:
    """The generators of random numbers are left as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield
