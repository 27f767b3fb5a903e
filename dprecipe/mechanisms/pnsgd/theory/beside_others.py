"""A last-iterate release beside others, such as paid steps of preprocessing: its dominating pair and its Rényi curve.

Let A be what was released before (constants of preprocessing), and B_y the last iterate of the run that starts from
A = y: every record is mapped by constants y, and the run descends on the results. Then (A, B_A) costs no more than the
product of A's dominating pairs with the pair below:

1. Constants map each record by itself, so neighbours that differ in one record stay such neighbours for every y, under
   `replace_one` as under `zero_out_one`: a null record has the gradient 0 before and after it.
2. What the bounds need is the same for every y: L, Δ, β and ρ follow from the norm to which features are clipped after
   all paid steps, from the declared range of the target and from the declared shape; D, the schedule and the noise are
   constants of the recipe. So δ(ε) of B_y is at most that of the event, for every y and every ε.
3. The bounds hold in both directions, so one table has them all: δ at -ε is 1 - exp(-ε) + exp(-ε) δ(ε). A
   hockey-stick curve is convex in exp(ε): the greatest convex function below upper bounds of it at some ε is the curve
   of a pair (P, Q), which dominates B_y for every y (`privacy.hockey_stick.pair_losses`). That holds for a mean over
   the random order or stop as it does for the worst position, and for whichever bound is the smallest at each ε.
4. Dominating pairs multiply where later mechanisms are chosen by earlier results: Zhu, Dong & Wang 2022, Theorem 10.

By Rényi curves likewise: D_α((A, B_A)) <= D_α(A) + max over y of D_α(B_y) (Mironov 2017, Proposition 1). The curve of a
mean over cases is log Σ w exp((α-1) D_α) / (α-1): that of the release with the case made public.

| edge case | result |
|---|---|
| a record that is never used | no loss |
| the run before the constants, or constants drawn again in the run | not covered: neither can happen in a recipe |
| two runs, because a final state was lost | two factors of the product |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import last_iterate
from dprecipe.mechanisms.pnsgd.theory.cases import all_cases, laplace_curves
from dprecipe.privacy.hockey_stick import LARGEST, MIN_DELTA, HockeyStick, pair_losses, tabulate_curve
from dprecipe.privacy.loss import Array, LossPair

_KNOTS = 400
_DENSER = 1.5
"""Exponent that makes knots denser where most of the losses are: they follow this power of the losses' share of the
table."""


def dominating_losses(event: ProjectedDescent, step: float, tail: float) -> LossPair:
    """Returns the losses of a pair that dominates the run in both directions, on the grid of `step`; at most `tail`, or
    1e-18, is charged to infinity beyond what the bounds themselves charge.

    Guarantees: see the module.

    Raises:
        GridError: too many points.
    """
    curve = tabulate_run(event)
    return LossPair(pair_losses(curve, curve, step, max(tail, 1e-18)))


@functools.lru_cache(maxsize=64)
def tabulate_run(event: ProjectedDescent) -> HockeyStick:
    """Returns δ at ε >= 0 by the smallest bound, down to where δ is 1e-20."""
    reach = last_iterate.epsilon(event, MIN_DELTA).value
    reach = min(max(reach, 1e-9), LARGEST)
    return tabulate_curve(
        lambda epsilon: last_iterate.delta(event, epsilon, last_iterate.bounds(event)[-1]).value,
        reach * np.linspace(0.0, 1.0, _KNOTS) ** _DENSER,
    )


def renyi_curve(event: ProjectedDescent, orders: Sequence[float]) -> Array:
    """Returns r(α) of the run, (orders,), for orders α > 1: of the worst position, or with the case made public.

    Guarantees: an upper bound of the Rényi divergence at every order, in both directions.
    """
    cases, orders_A = all_cases(event), np.asarray(orders, dtype=np.float64)
    if not len(cases.chain):
        return np.zeros(len(orders_A))
    if event.family == "gaussian":
        curve_FA: Array = np.square(cases.mu)[:, None] * (orders_A / 2)
    else:
        curve_FA = laplace_curves(cases.uses, cases.multiplier, orders_A)[cases.chain]
    if cases.worst:
        return np.asarray(curve_FA.max(axis=0))
    unused = max(0.0, 1.0 - float(cases.weight.sum()))
    logs_FA = (orders_A - 1) * curve_FA + np.log(np.maximum(cases.weight, 1e-300))[:, None]
    logs_A = np.logaddexp(np.logaddexp.reduce(logs_FA, axis=0), np.log(max(unused, 1e-300)))
    return np.asarray(np.maximum(logs_A, 0.0) / (orders_A - 1) * (1 + 1e-11))
