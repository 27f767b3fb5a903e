"""The Rényi bound of the best of K runs: for comparison, and for composition if there are no distributions.

Notation: α order, r(α) one run's Rényi curve.

Source: Papernot & Steinke 2022, Theorems 2 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprecipe.privacy import curves
from dprecipe.privacy.accountants import rdp_curve
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.loss import Array
from dprecipe.privacy.tuning.base import base_curves
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns, RunDistribution
from dprecipe.privacy.workload import summarise_charges

ORDERS = tuple(sorted({*curves.DEFAULT_ORDERS, *curves.HIGH_ORDERS}))


def selected_curve(
    base: tuple[Charge, ...], runs: RunDistribution, orders: Sequence[float], neighbouring: Neighbouring
) -> Array:
    """Returns r(α) of the best of K runs with the charges `base`, at orders α > 1; infinite where one run has no curve.

    Truncated negative binomial: r(α) + (1+η) min_β ((1-1/β) r(β) + log(1/γ)/β) + log(E[K])/(α-1). Poisson of rate λ,
    not truncated: p(α) = r(α) + λ δ + log(λ)/(α-1), δ that of one run at ε = log(1 + 1/(α-1)), by its profile.
    Truncated: the release is that of Poisson's if there is a run; having none has the same probability exp(-λ) on both
    data sets; so e^{(α-1) p} = exp(-λ) + (1 - exp(-λ)) e^{(α-1) t}, solved for t(α). Both are made to rise with α: a
    Rényi divergence is at most that of any larger order. A fixed number: composition.

    Guarantees: bounds both directions.
    """
    asked = np.asarray(orders, dtype=np.float64)
    work = summarise_charges(base, neighbouring)
    if not work.bounded:
        return np.full(len(asked), np.inf)
    if isinstance(runs, FixedRuns):
        return runs.count * rdp_curve(work, orders)
    both = np.array(sorted({*ORDERS, *asked.tolist()}))
    one = rdp_curve(work, tuple(both.tolist()))
    if isinstance(runs, NegativeBinomialRuns):
        result = one + np.log(runs.mean) / (both - 1)
        result = result + (1 + runs.shape) * float(np.min((1 - 1 / both) * one - np.log(runs.gamma) / both))
    else:
        at = np.log1p(1 / (both - 1))
        missed = np.maximum(*(curve.at(at) for curve in base_curves(base, neighbouring)))
        logs = (both - 1) * (one + runs.rate * missed) + np.log(max(runs.rate, 1.0))
        result = (logs + np.log1p(-np.exp(-runs.rate - logs)) - np.log(runs.some)) / (both - 1)
    rising = np.minimum.accumulate(result[::-1])[::-1]
    return np.asarray(rising[np.searchsorted(both, asked)])
