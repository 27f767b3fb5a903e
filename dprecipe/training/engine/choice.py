"""Which strategies a parameter may take, by estimated cost, and which of them is the fastest, by time.

Legend: N records, P numbers of the parameter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dprecipe.training.engine.strategies import (
    Ghost,
    GradientStore,
    Small,
    Sparse,
    StoredGradients,
    Strategy,
    Twice,
    Vectors,
    Weights,
)
from dprecipe.training.engine.terms import Lookups, OfLayer, Products, Rows, Term

LIKELY = 4
"""What is estimated to cost this many times as much is not tried."""
LIKELY_ON_GPU = 32
"""The estimates are a CPU's: elsewhere more is tried."""
Making = Callable[[], Strategy]


def list_candidates(
    terms: Sequence[Term], count: int, size: int, like: Tensor, room: int, store: GradientStore
) -> dict[str, Making]:
    """Strategies of one parameter by name, the one to take by rule first, and only those that may be the cheapest.

    `like`: of the dtype and device of the rows; `room`: how many of their numbers may be kept; `store`: where.
    """
    term = terms[0] if len(terms) == 1 else None
    if isinstance(term, Rows) or (isinstance(term, OfLayer) and term.layer.held):
        return {"rows": lambda: Small([term], count)}
    if isinstance(term, Lookups):
        return {"sparse": lambda: Sparse(term)}
    rows: dict[str, Making] = (
        {"kept": lambda: StoredGradients(terms, count, size, like, store)}
        if count * size <= room
        else {"twice": lambda: Twice(terms, count, size, like)}
    )
    if not isinstance(term, Products) or not term.paired:
        return rows
    ghost: dict[str, Making] = {"ghost": lambda: Ghost(term, count)}
    if term.of_vectors:
        return {"vectors": lambda: Vectors(*term.vectors(), bias=False)}
    by_rows = term.positions * size * (1 if "kept" in rows else 2) + 16 * size
    by_ghost = 4 * term.positions**2 * (term.inputs + term.outputs) + 2 * term.positions * size
    likely = ghost | rows if by_ghost < by_rows else rows | ghost
    most = LIKELY if like.device.type == "cpu" else LIKELY_ON_GPU
    return likely if max(by_ghost, by_rows) < most * min(by_ghost, by_rows) else dict([next(iter(likely.items()))])


def choose_cheapest(strategies: dict[str, Making], weights: Weights, size: int) -> str:
    """The name of the strategy that takes the least time, each run thrice; the first where torch has to be
    deterministic."""
    if len(strategies) == 1 or torch.are_deterministic_algorithms_enabled():
        return next(iter(strategies))
    total_P = weights.exact.new_zeros(size)
    times = dict.fromkeys(strategies, float("inf"))
    for name, making in [*strategies.items()] * 3:
        start = read_clock(total_P.device)
        strategy = making()
        strategy.squares()
        strategy.add([total_P], weights)
        times[name] = min(times[name], read_clock(total_P.device) - start)
    return min(times, key=times.__getitem__)


def read_clock(device: torch.device) -> float:
    """Seconds, when all is done that was asked of the device. On a CPU those of this thread: what others do on the
    machine doesn't count."""
    if device.type == "cpu":
        return time.thread_time()
    torch.zeros((), device=device).item()  # waits
    return time.perf_counter()
