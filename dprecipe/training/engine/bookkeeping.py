"""Clipped sums from one backward pass: layers keep what their gradients are made of, and few gradients of single
records are ever held.

How a model's layers are called is found out once, on synthetic records of the same shape, and the sum that comes of it
is held against plain backpropagation there. A model for which it can't be had, or is not equal, is `Unplanned`, and the
reason is told. Nothing of the plan is taken from a record, so that nothing of it can move with one.

Legend: N records, P numbers of all trained parameters.
Source: Z. Bu, Y.-X. Wang, S. Zha, G. Karypis, "Differentially Private Optimization on Small Model at Large Cost"
(book-keeping), ICML 2023.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from dprecipe.models.modules.resting import rest_generators
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.layers import layer_terms
from dprecipe.training.engine.reduced import gradient_tolerance
from dprecipe.training.engine.sizes import is_out_of_memory, numbers_kept, one_size
from dprecipe.training.engine.taps import Call, Dim, Places, Taps, Unplanned, buffers_apart, layers_of, trained_of
from dprecipe.training.engine.terms import OfLayer, Products, Rows, Term
from dprecipe.training.engine.ways import (
    GradientStore,
    Reserve,
    Small,
    Vectors,
    Way,
    Weights,
    at_once,
    choose_cheapest,
    list_candidates,
    read_clock,
)

Loss = Callable[[Tensor, Tensor], Tensor]
Found = list[list[tuple[str, Term]]]
"""Of each call of a layer, terms by the full names of its parameters."""
ROUNDING = 1.0 + 2.0**-20
"""Norms are raised by this much: more than double precision rounds the norms of up to 2^30 parameters, and
sums of n records in which K numbers meet at one coordinate, as long as n K < 2^32."""
LARGEST = 2.0**60
"""A longer gradient counts as one that is not finite: its weight would be none in single precision."""
TOLERANCE = 1e-3
"""Relative error of the check on synthetic records: far above single precision's, far below a wrong formula's."""
LOST = 3e-5
"""A gradient that is this much smaller than the largest may be what is left where others cancel: it is not compared."""
TRACED = (3, 5)
"""Records of the two passes that show which dimension grows with them."""
TIMED = 16
"""Records of the pass in which ways are timed."""
MORE = 1.2
"""On a CPU channels last gain more by more records than are timed: they may take so many times as long."""
FEW = 8
"""No fewer records are taken at a time than this, whether their rows have room or not."""
ALIKE = 16
"""Fewer rows are filled up to so many. Products of a few rows are made by other instructions, for each number of them,
which round otherwise: see `compiled.Passes`."""


@final
@dataclass(slots=True)
class GradientPlan:
    """How the layers of a model are called, for records of one shape."""

    places: tuple[Places, ...]
    ways: dict[str, str] = field(default_factory=dict)
    """The fastest way for each parameter for which several may be, found by time on synthetic records."""
    stores: dict[str, GradientStore] = field(default_factory=dict)
    """For each parameter, the memory of the rows that are kept: one, for all plans of a model."""
    room: int = 1 << 25
    """How many numbers of rows may be kept at a time."""
    most: int = 1 << 30
    """How many records to take at a time, so that the rows to keep have room."""
    channels_last: bool = False
    """Images go through the model with their channels last in memory."""


class GradientSource(Protocol):
    """Who makes the pass, or all of the sum, in the place of the eager engine."""

    def found(self, features: Tensor, labels: Tensor) -> Found:
        """As `find_terms`."""

    def add(
        self,
        features: Tensor,
        labels: Tensor,
        clipping: Clipping,
        total_P: Tensor,
        reserve: Reserve,
        *,
        fresh: bool,
    ) -> bool:
        """Add the clipped sum, or do nothing and say so. `fresh`: `total_P` is zero."""


_PLANS: weakref.WeakKeyDictionary[nn.Module, dict[Any, GradientPlan | str]] = weakref.WeakKeyDictionary()
_STORES: weakref.WeakKeyDictionary[nn.Module, dict[str, GradientStore]] = weakref.WeakKeyDictionary()


def add_clipped(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    clipping: Clipping,
    total_P: Tensor,
    reserve: Reserve | None = None,
    source: GradientSource | None = None,
    least: int = ALIKE,
) -> None:
    """Clip each record's gradient and add them all to `total_P`, float64 (and one longer, where records are counted).

    A record with a gradient that is not finite, or longer than 2^60, adds nothing. Where `Unplanned` is raised,
    nothing was added at all.

    `reserve`: of the batch that these records are of, whose first part is added to zero; without one, all sums are in
    double precision.
    `source`: who makes the pass, or the sum, if not this module.
    `least`: fewer rows are filled up to so many, with records of zeros that add nothing.

    Guarantees: adding or removing one record moves the sum by at most what `clipping` bounds (and `SLACK` of it more,
    with a `reserve`), given the others' gradients; the model, its buffers, hooks and `.grad` are left as they were;
    memory is that of a backward pass, and `sizes.numbers_kept`.

    Raises:
        Unplanned: the model can't be summed in this way.
    """
    fresh = reserve is not None and reserve.begin()
    plan = plan_of(model, loss, features, labels)
    if total_P.device != features.device:
        raise Unplanned("the device has no double precision")
    if clipping.norm != "l2":
        raise Unplanned("only L2 norms come from one backward pass")
    if min(clipping.thresholds) < 1 / LARGEST:
        reserve = None  # in single precision, weights of the longest gradients would be rounded to nothing
    given = features, labels, clipping, total_P
    if source is not None and reserve is not None and source.add(*given, reserve, fresh=fresh):
        return
    count, groups = len(labels), clipping.groups
    together = 1 if reserve is None else reserve.together(count)
    if source is not None:
        shares = shares_of(model, loss, features, labels, plan, groups=groups, source=source)
        _add(shares, clipping, count, together, total_P, fresh=fresh)
        return
    size = min(plan.most, math.ceil(least / labels[0].numel()))
    if count <= plan.most:
        some = pad_records(features, size), pad_records(labels, size)
        _add(shares_of(model, loss, *some, plan, groups=groups), clipping, count, together, total_P, fresh=fresh)
        return
    sum_P = torch.zeros_like(total_P)  # all parts or none
    for start in range(0, count, plan.most):
        part = slice(start, min(start + plan.most, count))
        some = pad_records(features[part], size), pad_records(labels[part], size)
        _add(shares_of(model, loss, *some, plan, groups=groups), clipping, part.stop - start, together, sum_P)
    total_P += sum_P


def pad_records(tensor: Tensor, size: int) -> Tensor:
    """(max(N, size), …): with zeros behind the records, where there are fewer."""
    if len(tensor) >= size:
        return tensor
    whole = tensor.new_zeros(size, *tensor.shape[1:])
    whole[: len(tensor)] = tensor
    return whole


def _add(
    shares: list[Share], clipping: Clipping, count: int, together: int, total_P: Tensor, *, fresh: bool = False
) -> None:
    """The first `count` records of the shares."""
    squares_by_share = [share.way.squares() for share in shares]
    if len(shares) == 1 and len(clipping.thresholds) == 1:
        squares_GN = squares_by_share[0][None]
    else:
        rows = len(squares_by_share[0]) if shares else count
        squares_GN = total_P.new_zeros(len(clipping.thresholds), rows)
        for share, squares_N in zip(shares, squares_by_share, strict=True):
            squares_GN[share.group] += squares_N
    weights_GN = weigh_gradients(squares_GN[:, :count], clipping, total_P)
    if squares_GN.shape[1] > count:
        weights_GN = nn.functional.pad(weights_GN, (0, squares_GN.shape[1] - count))
    sound = bool((weights_GN > 0).all())
    by_group = [Weights(weights_N, sound, together, fresh) for weights_N in weights_GN]
    for share in shares:
        share.way.add([total_P[where] for where in share.wheres], by_group[share.group])


def weigh_gradients(squares_GN: Tensor, clipping: Clipping, total_P: Tensor) -> Tensor:
    """(G, N): what each record's gradient is multiplied by, given squared norms; records are counted in `total_P`."""
    norms_GN = squares_GN.sqrt().mul_(ROUNDING)
    norms_GN.masked_fill_(norms_GN > LARGEST, math.inf)
    if clipping.counted is not None:
        total_P[-1:] += clipping.bits(norms_GN)
    return clipping.weights(norms_GN)


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


def describe_plan(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> dict[str, str]:
    """Parameter to the way its clipped sum is taken, for as many records like these.

    For a model that can't be planned, every parameter goes the way of gradients of single records, with the reason.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        plan = plan_of(model, loss, features, labels)
        records = made_up(features, labels, min(len(features), plan.most))
        with left_alone(features.device):
            shares = shares_of(model, loss, *records, plan)
    except Unplanned as reason:
        return dict.fromkeys(names, f"gradients of single records, for the whole model: {reason}")
    text = {name: WORDS[share.chosen] + (ALONE if share.alone else "") for share in shares for name in share.names}
    return {name: text.get(name, "no gradient") for name in names}


WORDS = {
    "rows": "gradients of single records, as they come",
    "kept": "gradients of single records, kept",
    "twice": "gradients of a few records at a time, computed twice",
    "vectors": "norms from those of inputs and of gradients",
    "ghost": "norms without gradients of single records",
    "sparse": "rows of a table that were looked up",
}
ALONE = ", of this layer by itself"
SMALL = 1024
"""Rows that are at hand and no longer than this are put side by side."""


@final
@dataclass(frozen=True, slots=True)
class Share:
    """Some parameters: their places among all, and the way to their part of norms and sum."""

    names: tuple[str, ...]
    wheres: tuple[slice, ...]
    group: int
    chosen: str
    way: Way
    alone: bool = False


def find_terms(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> Found:
    """Terms by the names of the parameters that the losses reach, call by call."""
    names = {id(parameter): name for name, parameter in trained_of(model).items()}
    calls = run_pass(model, loss, features, labels, plan)
    return [[(names[id(call.parameters[name])], term) for name, term in layer_terms(call)] for call in calls]


def shares_of(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    plan: GradientPlan,
    *,
    groups: tuple[int, ...] | None = None,
    timed: int = 0,
    source: GradientSource | None = None,
) -> list[Share]:
    """The parameters that the losses reach, each once. `timed`: find out which way is the fastest to add so many."""
    answered = find_terms(model, loss, features, labels, plan) if source is None else source.found(features, labels)
    return shares_of_pass(answered, model, len(labels), features.device, plan, groups=groups, timed=timed)


def shares_of_pass(
    found: Found,
    model: nn.Module,
    count: int,
    device: torch.device,
    plan: GradientPlan,
    *,
    groups: tuple[int, ...] | None = None,
    timed: int = 0,
) -> list[Share]:
    """As `shares_of`, of what was found in the pass of `count` records."""
    by_name: dict[str, list[Term]] = {}
    for result in found:
        _hold(result, count, device, plan.room)
        for name, term in result:
            by_name.setdefault(name, []).append(term)
    places = _places_of(model, groups)
    shares, room, like = _together(by_name, places, count), plan.room, torch.empty((), device=device)
    for name, of_name in by_name.items():
        where, group = places[name]
        size = where.stop - where.start
        ways = list_candidates(of_name, count, size, like, room, plan.stores.setdefault(name, GradientStore()))
        if timed and len(ways) > 1:
            weights = Weights(torch.ones(count, dtype=torch.float64, device=device), sound=True, together=timed)
            plan.ways[name] = choose_cheapest(ways, weights, size)
        chosen = plan.ways.get(name, "")
        chosen = chosen if chosen in ways else next(iter(ways))
        if chosen == "kept":
            room -= count * size
        shares.append(Share((name,), (where,), group, chosen, ways[chosen](), isinstance(of_name[0], OfLayer)))
    return shares


def _places_of(model: nn.Module, groups: tuple[int, ...] | None) -> dict[str, tuple[slice, int]]:
    """Where each trained parameter lies in the sum, and its group."""
    result: dict[str, tuple[slice, int]] = {}
    start = 0
    for name, parameter in trained_of(model).items():
        stop = start + parameter.numel()
        result[name] = slice(start, stop), 0 if groups is None else groups[len(result)]
        start = stop
    return result


def _together(by_name: dict[str, list[Term]], places: dict[str, tuple[slice, int]], count: int) -> list[Share]:
    """Take out what is cheaper together: products with vectors and their biases, and small rows of one group."""
    shares = []
    single = {id(of_name[0]): name for name, of_name in by_name.items() if len(of_name) == 1}
    for name in single.values():
        term = by_name[name][0]
        bias = single.get(id(term.bias)) if isinstance(term, Products) and term.of_vectors else None
        if isinstance(term, Products) and bias is not None and places[bias][1] == places[name][1]:
            way = Vectors(*term.vectors(), bias=True)
            where, group = places[name]
            shares.append(Share((name, bias), (where, places[bias][0]), group, "vectors", way))
            del by_name[name], by_name[bias]
    small: dict[int, list[str]] = {}
    for name, [term, *more] in by_name.items():
        if not more and isinstance(term, Rows) and term.values.shape[1] <= SMALL:
            small.setdefault(places[name][1], []).append(name)
    for group, names in small.items():
        rows = [term for name in names for term in by_name.pop(name) if isinstance(term, Rows)]
        shares.append(Share(tuple(names), tuple(places[n][0] for n in names), group, "rows", Small(rows, count)))
    return shares


def _hold(made: list[tuple[str, Term]], count: int, device: torch.device, room: int) -> None:
    """A layer that is differentiated by itself is so once for all its parameters, where there is room to keep them."""
    for _, term in made[:1]:
        if isinstance(term, OfLayer):
            size = sum(parameter.numel() for parameter in term.layer.parameters.values())
            if count * size <= room:
                term.layer.hold(count, at_once(size + term.layer.taken, device))


def run_pass(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> list[Call]:
    if plan.channels_last:
        features = channels_last(features)
    with torch.enable_grad(), Taps(model, len(labels), plan.places) as taps:
        losses = loss(model(features), labels)
        if losses.shape != labels.shape[:1]:
            raise Unplanned("the loss is not one for each record")
        taps.backward(losses)
        return taps.calls


def channels_last(images: Tensor) -> Tensor:
    """The same (…, C, H, W), with channels last in memory; layers pass on the order that they find."""
    # Cloned, for images of one channel pass for contiguous either way.
    return images.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)


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
            _check(model, loss, *made_up(features, labels, TRACED[0]), plan)
        together = min(sums or count, count) if one_size(features.device) else count
        shares = shares_of(model, loss, *made_up(features, labels, count), plan, timed=together)
    kept = sum(at.stop - at.start for share in shares if share.chosen in ("kept", "twice") for at in share.wheres[:1])
    plan.most = max(FEW, plan.room // max(1, kept))
    for share in shares:
        if share.chosen != "kept":  # it was tried
            stores.pop(share.names[0], None)
    return plan


def _timed(device: torch.device, held: int, wanted: int) -> int:
    """How many records to time the ways with, where the gradients of so many can be held. On a GPU as many as will go
    through the model, added up as in a run: a few would measure how long it takes to start anything there."""
    return min(wanted, max(FEW, held)) if one_size(device) else min(TIMED, max(2, held))


def _faster_last(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> bool:
    """Whether pass and norms take less time with channels last; so on a CPU where torch has to be deterministic."""
    if torch.are_deterministic_algorithms_enabled():
        return features.device.type == "cpu"
    times = {False: math.inf, True: math.inf}
    for last in [*times] * 3:
        start = read_clock(features.device)
        for share in shares_of(model, loss, features, labels, replace(plan, channels_last=last)):
            share.way.squares()
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


def _check(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> None:
    """Hold norms and a weighted sum against plain backpropagation, with the same draws.

    Raises:
        Unplanned: they are not equal.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    count = len(labels)
    weights_N = 0.5 ** torch.arange(count, dtype=torch.float64, device=features.device)
    with left_alone(features.device):
        shares = shares_of(model, loss, features, labels, plan)
    # From the same seed, of whichever generator layers draw from: that of a GPU is another than the CPU's.
    with left_alone(features.device), torch.enable_grad(), buffers_apart(layers_of(model)):
        # In the same order of memory: else a maximum that is nearly another's may be another's.
        losses = loss(model(channels_last(features) if plan.channels_last else features), labels)
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
            expected[name] += torch.stack(single).reshape(count, -1)
    largest = max(float(rows_NP.abs().max()) for rows_NP in expected.values())
    for share in shares:
        right_NP = torch.cat([expected.pop(name) for name in share.names], 1)
        totals = [weights_N.new_zeros(where.stop - where.start) for where in share.wheres]
        found_N = share.way.squares().sqrt()
        share.way.add(totals, Weights(weights_N, together=count))
        for result, right in ((found_N, right_NP.norm(dim=1)), (torch.cat(totals), weights_N @ right_NP)):
            if (
                not float((result - right).abs().max())
                <= gradient_tolerance(model, TOLERANCE) * float(right.abs().max()) + LOST * largest
            ):
                raise Unplanned(f"the bookkeeping of {share.names[0]!r} does not equal plain backpropagation")
    for name, right_NP in expected.items():
        if not float(right_NP.abs().max()) <= LOST * largest:
            raise Unplanned(f"the bookkeeping of {name!r} does not equal plain backpropagation")


def made_up(features: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` records of these shapes and types. Labels are zero, whole numbers zero or one."""
    shape = (count, *features.shape[1:])
    if features.is_floating_point():
        generator = torch.Generator().manual_seed(0)
        result = torch.randn(shape, generator=generator, dtype=torch.float32).to(features)
    else:
        result = (torch.arange(torch.Size(shape).numel()) % 2).view(shape).to(features)
    return result, labels.new_zeros(count, *labels.shape[1:])


@contextmanager
def left_alone(device: torch.device) -> Iterator[None]:
    """The generators of random numbers are left as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        yield
