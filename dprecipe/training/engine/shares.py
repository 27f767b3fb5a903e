"""Each parameter of a model, once, with the strategy for its share of norms and sum.

Its candidate strategies are ordered by estimated cost, and the fastest of them is chosen by measured time.
Legend: N records, P numbers of the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor, nn

from dprecipe.training.engine.backward import CallTerms, GradientPlan, Loss, find_terms
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compilers import read_clock
from dprecipe.training.engine.joined import Joined, is_cheap, is_joinable, standardisation_of
from dprecipe.training.engine.rounding import Reserve
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.engine.strategies import (
    Ghost,
    GradientStore,
    Recomputed,
    Small,
    Sparse,
    StoredGradients,
    Strategy,
    Vectors,
    Weights,
    chunk_size,
)
from dprecipe.training.engine.taps import trained_of
from dprecipe.training.engine.terms import Lookups, OfLayer, Products, Rows, Term, TokenErrors
from dprecipe.training.engine.tiles import TiledProducts, TiledTokens

SMALL = 1024
"""Rows that are already computed and no longer than this are concatenated."""


class GradientSource(Protocol):
    """A source of the pass, or of the whole sum, instead of the eager engine."""

    def find_terms(self, features: Tensor, labels: Tensor) -> CallTerms:
        """Returns terms as `backward.find_terms` does."""

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
        """Adds the clipped sum and returns True, or does nothing and returns False. `fresh`: `total_P` is zero."""


@final
@dataclass(frozen=True, slots=True)
class Share:
    """Some parameters: their places among all, and the strategy for their part of norms and sum."""

    names: tuple[str, ...]
    slices: tuple[slice, ...]
    group: int
    chosen: str
    strategy: Strategy
    isolated: bool = False


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
    """Returns shares of the parameters that the losses depend on. `timed`: time which strategy adds this many the
    fastest."""
    answered = (
        find_terms(model, loss, features, labels, plan) if source is None else source.find_terms(features, labels)
    )
    return shares_of_pass(answered, model, len(labels), features.device, plan, groups=groups, timed=timed)


def shares_of_pass(
    call_terms: CallTerms,
    model: nn.Module,
    count: int,
    device: torch.device,
    plan: GradientPlan,
    *,
    groups: tuple[int, ...] | None = None,
    timed: int = 0,
    join: bool = True,
) -> list[Share]:
    """Returns `shares_of`, from the terms of a pass of `count` records. `join`: where kernels take long to start, rows
    that are kept are joined."""
    by_name = collect_terms(call_terms, count, device, plan.storable)
    places = places_of(model, groups)
    join, storable, like = join and one_size(device), plan.storable, torch.empty((), device=device)
    joined: dict[tuple[int, bool], list[str]] = {}
    terms: dict[str, Products | Rows] = {}
    if join:
        for name, of_name in by_name.items():
            if is_joinable(of_name, like) and is_cheap(of_name[0]):
                terms[name] = of_name[0]
                joined.setdefault((places[name][1], False), []).append(name)
        by_name = {name: of_name for name, of_name in by_name.items() if name not in terms}
    shares = _combine_shares(by_name, places, count)
    for name, of_name in by_name.items():
        place, group = places[name]
        size = place.stop - place.start
        store = plan.stores.setdefault(name, GradientStore())
        strategies = list_candidates(of_name, count, size, like, storable, store, tiled=plan.tiled)
        if timed and len(strategies) > 1:
            weights = Weights(torch.ones(count, dtype=torch.float64, device=device), sound=True, block_size=timed)
            plan.strategies[name] = choose_cheapest(strategies, weights, size)
        chosen = plan.strategies.get(name, "")
        chosen = chosen if chosen in strategies else next(iter(strategies))
        if chosen == "kept":
            storable -= count * size
        if join and chosen == "kept" and is_joinable(of_name, like):
            terms[name] = of_name[0]
            joined.setdefault((group, standardisation_of(of_name[0]) is not None), []).append(name)
            continue
        shares.append(Share((name,), (place,), group, chosen, strategies[chosen](), isinstance(of_name[0], OfLayer)))
    for (group, _), names in joined.items():
        products = {name: term for name in names if isinstance(term := terms[name], Products)}
        rows = {name: term for name in names if isinstance(term := terms[name], Rows)}
        names = [*products, *rows]
        store = plan.stores.setdefault(names[0], GradientStore())
        strategy = Joined([*products.values()], [*rows.values()], count, like, store)
        shares.append(Share(tuple(names), tuple(places[name][0] for name in names), group, "kept", strategy))
    return shares


def collect_terms(call_terms: CallTerms, count: int, device: torch.device, storable: int) -> dict[str, list[Term]]:
    """Collects the terms of each parameter, from a pass of `count` records; `storable`: see `GradientPlan`."""
    by_name: dict[str, list[Term]] = {}
    for terms in call_terms:
        _store_layer_rows(terms, count, device, storable)
        for name, term in terms:
            by_name.setdefault(name, []).append(term)
    return by_name


def places_of(model: nn.Module, groups: tuple[int, ...] | None) -> dict[str, tuple[slice, int]]:
    """Returns the place of each trained parameter in the sum, and its group."""
    result: dict[str, tuple[slice, int]] = {}
    start = 0
    for name, parameter in trained_of(model).items():
        stop = start + parameter.numel()
        result[name] = slice(start, stop), 0 if groups is None else groups[len(result)]
        start = stop
    return result


def _combine_shares(by_name: dict[str, list[Term]], places: dict[str, tuple[slice, int]], count: int) -> list[Share]:
    """Removes from `by_name`, and combines, what is cheaper in one share: products with vectors and their biases, and
    small rows of one group."""
    shares = []
    single = {id(of_name[0]): name for name, of_name in by_name.items() if len(of_name) == 1}
    for name in single.values():
        term = by_name[name][0]
        bias = single.get(id(term.bias)) if isinstance(term, Products) and term.of_vectors else None
        if isinstance(term, Products) and bias is not None and places[bias][1] == places[name][1]:
            strategy = Vectors(*term.vectors(), bias=True)
            place, group = places[name]
            shares.append(Share((name, bias), (place, places[bias][0]), group, "vectors", strategy))
            del by_name[name], by_name[bias]
    small: dict[int, list[str]] = {}
    for name, [term, *more] in by_name.items():
        if not more and isinstance(term, Rows) and term.values.shape[1] <= SMALL:
            small.setdefault(places[name][1], []).append(name)
    for group, names in small.items():
        rows = [term for name in names for term in by_name.pop(name) if isinstance(term, Rows)]
        shares.append(Share(tuple(names), tuple(places[n][0] for n in names), group, "rows", Small(rows, count)))
    return shares


def _store_layer_rows(terms: list[tuple[str, Term]], count: int, device: torch.device, storable: int) -> None:
    """Differentiates a layer by itself once for all its parameters, if the rows fit into memory."""
    for _, term in terms[:1]:
        if isinstance(term, OfLayer):
            size = sum(parameter.numel() for parameter in term.layer.parameters.values())
            if count * size <= storable:
                term.layer.store_rows(count, chunk_size(size + term.layer.row_cost, device))


MAX_COST_RATIO = 4
"""A strategy whose estimated cost is more than this many times the lowest is not tried."""
MAX_COST_RATIO_ON_GPU = 32
"""The same ratio for other devices: the estimates are those of a CPU, so more is tried."""
MIN_TILED = 1 << 16
"""Products of at least this many numbers are added up by tiles."""
StrategyFactory = Callable[[], Strategy]


def list_candidates(
    terms: Sequence[Term],
    count: int,
    size: int,
    like: Tensor,
    storable: int,
    store: GradientStore,
    *,
    tiled: bool = True,
) -> dict[str, StrategyFactory]:
    """Lists strategies of one parameter by name: those that may be the cheapest, with the default first.

    `like`: a tensor of the rows' dtype and device; `storable`: how many of their numbers may be stored; `store`: where;
    `tiled`: large products are added up by tiles, since the rows of all records do not fit into memory.
    """
    term = terms[0] if len(terms) == 1 else None
    if isinstance(term, Rows) or (isinstance(term, OfLayer) and term.layer.is_stored):
        return {"rows": lambda: Small([term], count)}
    heads = [one for one in terms if isinstance(one, TokenErrors)]
    tables = [one for one in terms if isinstance(one, Lookups)]
    if len(heads) == 1 and len(tables) < 2 and len(tables) + 1 == len(terms):
        return {"tokens": lambda: TiledTokens(heads[0], next(iter(tables), None), count)}
    if isinstance(term, Lookups):
        return {"sparse": lambda: Sparse(term)}
    rows: dict[str, StrategyFactory] = (
        {"kept": lambda: StoredGradients(terms, count, size, like, store)}
        if count * size <= storable
        else {"twice": lambda: Recomputed(terms, count, size, like)}
    )
    if not isinstance(term, Products) or not term.paired:
        return rows
    if tiled and not term.of_vectors and term.order is None and size >= MIN_TILED:
        return _list_tiled(term, count, like.device)
    ghost: dict[str, StrategyFactory] = {"ghost": lambda: Ghost(term, count)}
    if term.of_vectors:
        return {"vectors": lambda: Vectors(*term.vectors(), bias=False)}
    by_rows = term.positions * size * (1 if "kept" in rows else 2) + 16 * size
    by_ghost = 4 * term.positions**2 * (term.inputs + term.outputs) + 2 * term.positions * size
    likely = ghost | rows if by_ghost < by_rows else rows | ghost
    max_ratio = MAX_COST_RATIO if like.device.type == "cpu" else MAX_COST_RATIO_ON_GPU
    return likely if max(by_ghost, by_rows) < max_ratio * min(by_ghost, by_rows) else dict([next(iter(likely.items()))])


def _list_tiled(term: Products, count: int, device: torch.device) -> dict[str, StrategyFactory]:
    """Lists norms by pairs of positions and norms from tiles that are computed twice: on a CPU the one with fewer
    operations, on a GPU both, to be timed."""
    pairs: dict[str, StrategyFactory] = {"tiles": lambda: TiledProducts(term, count, by_pairs=True)}
    twice: dict[str, StrategyFactory] = {"tiles_twice": lambda: TiledProducts(term, count, by_pairs=False)}
    likely = (
        pairs | twice if term.positions * (term.inputs + term.outputs) < term.inputs * term.outputs else twice | pairs
    )
    return likely if device.type != "cpu" else dict([next(iter(likely.items()))])


def choose_cheapest(strategies: dict[str, StrategyFactory], weights: Weights, size: int) -> str:
    """Returns the name of the fastest strategy, each timed three times; the first one if torch must be
    deterministic."""
    if len(strategies) == 1 or torch.are_deterministic_algorithms_enabled():
        return next(iter(strategies))
    total_P = weights.exact.new_zeros(size)
    times = dict.fromkeys(strategies, float("inf"))
    for name, factory in [*strategies.items()] * 3:
        start = read_clock(total_P.device)
        strategy = factory()
        strategy.squares()
        strategy.add([total_P], weights)
        times[name] = min(times[name], read_clock(total_P.device) - start)
    return min(times, key=times.__getitem__)
