"""A budget `auto` where votes select the queries: it pays for every answer, and a cap would not have to."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.pate.queries import PateRun

SHARES = (2, 4)
"""Caps are suggested for a half and for a quarter of the queries."""


def suggest_cap(run: PateRun) -> Iterator[Finding]:
    """Says which budgets hold all checks and fewer answers, if the budget is `auto` and no answers are stated.

    Guarantees: under each, the filter holds that many answers of all queries, in any order.
    """
    multiplier, queries = run.multiplier, run.queries
    if not math.isinf(run.cap) or multiplier is None or queries is None or queries < max(SHARES):
        return
    if run.selection_multiplier is None or run.spec.queries.answers is not None:
        return
    whole = run.cost(multiplier, queries, queries)
    parts = [(queries // share, _above(run.cost(multiplier, queries, queries // share))) for share in SHARES]
    caps = ", or to ".join(f"{cap:g} (all checks and {answers:,} answers)" for answers, cap in parts)
    yield Finding(
        "P157",
        f"`auto` pays for an answer to each of the {queries:,} queries, and claims ε = {whole:.4g} however few are "
        "answered",
        f"set budget.epsilon to {caps}: the run stops when no further query fits",
        "budget.epsilon",
        severity=Severity.WARNING,
    )


def _above(epsilon: float) -> float:
    """Returns a number of three digits that is a little larger."""
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return float(f"{(math.floor(epsilon / step) + 1) * step:.12g}")
