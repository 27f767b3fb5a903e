"""Candidate strategies of a parameter, by estimated cost, and the fastest of them, by measured time.

Legend: N records, P numbers of the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dprecipe.training.engine.clock import read_clock
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
)
from dprecipe.training.engine.terms import Lookups, OfLayer, Products, Rows, Term, TokenErrors
from dprecipe.training.engine.tiles import TiledProducts, TiledTokens

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

    `like`: a tensor of the rows' dtype and device; `room`: how many of their numbers may be stored; `store`: where;
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
