"""Charges in the terms of the cross-check accountant, and their Rényi divergences computed a second time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy import library_sums as sums
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box import recheck
from dprecipe.privacy.box.box import BoxSum
from dprecipe.privacy.curves import DEFAULT_ORDERS
from dprecipe.privacy.events import Charge
from dprecipe.privacy.questions import BoundedRange, GaussianSum, NoisyBox, NoisyCounts, Question, RenyiCurve

Array = NDArray[np.floating[Any]]
_MORE_ORDERS = 60
_ORDER = recheck.MAX_ORDER


@dataclass(frozen=True, slots=True)
class Query:
    """Charges under one relation, in the library's terms. `mu` is the μ of the unsampled Gaussians."""

    relation: Neighbouring
    mu: float
    sampled: tuple[tuple[GaussianSum, int], ...] = ()
    boxes: tuple[tuple[BoxSum, int], ...] = ()
    curves: tuple[tuple[RenyiCurve, int], ...] = ()
    unknown: bool = False
    """True if there is an event whose divergences are not known here."""

    @property
    def steps(self) -> int:
        return sum(count for _, count in (*self.sampled, *self.boxes, *self.curves))


def collect_query(charges: Sequence[Charge], neighbouring: Neighbouring) -> Query:
    work = sums.summarise_by_questions(charges, neighbouring)
    sampled: list[tuple[GaussianSum, int]] = []
    boxes: list[tuple[BoxSum, int]] = []
    curves: list[tuple[RenyiCurve, int]] = []
    unknown = False
    for part in work.parts:
        question: Question = part.event.cross_check()
        match question:
            case GaussianSum():
                sampled.append((question, part.count))
            case NoisyBox(box):
                boxes.append((box, part.count))
            case NoisyCounts("laplace", scale, changed):
                boxes.append((BoxSum(1.0, scale, "laplace", None, ((1.0, changed),)), part.count))
            case BoundedRange(added, replaced):
                largest = replaced if work.neighbouring is Neighbouring.REPLACE_ONE else added
                curve = partial(sums.divergences_of_range, largest)
                curves.append((RenyiCurve(curve, math.inf), part.count))
            case RenyiCurve():
                curves.append((question, part.count))
            case _:
                unknown = True
    return Query(work.neighbouring, work.mu, tuple(sampled), tuple(boxes), tuple(curves), unknown)


def choose_orders(query: Query) -> tuple[float, ...]:
    """Returns the Rényi orders; only those below the maximum order, if a curve has one."""
    if not query.curves:
        return DEFAULT_ORDERS
    largest = min(min(curve.max_order for curve, _ in query.curves), float(_ORDER))
    more = np.linspace(1, largest, _MORE_ORDERS + 1)[1:].tolist()
    return tuple(sorted({*more, *(order for order in DEFAULT_ORDERS if order < largest)}))


def compute_curve(query: Query, at: tuple[float, ...]) -> list[float]:
    """Returns Rényi divergences at these orders: Lemma 4 of Nasr et al. 2020 at whole orders, interpolated between
    them."""
    k_K, orders = np.arange(2, _ORDER + 1), np.array(at)
    log_factorials = np.cumsum(np.log(np.maximum(np.arange(_ORDER + 1), 1)))
    parts: list[tuple[float, Array, int]] = [
        (q.rate, k_K * (k_K - 1) / (2 * q.sigma**2), count) for q, count in query.sampled
    ]
    parts += [(box.sampling_rate, recheck.log_moments(box), count) for box, count in query.boxes]
    total = orders * query.mu**2 / 2
    for q, sums_K, count in parts:
        terms_K = sums_K + np.log(-np.expm1(-sums_K)) + k_K * math.log(q) - log_factorials[k_K]
        scaled = [0.0]
        for order in range(2, _ORDER + 1):
            rest = order - k_K[: order - 1]
            logs = terms_K[: order - 1] + log_factorials[order] - log_factorials[rest]
            logs = logs + rest * math.log1p(-q) if q < 1 else logs[-1:]
            scaled.append(float(np.logaddexp(0.0, np.logaddexp.reduce(logs))))
        total = total + count * np.interp(orders, np.arange(1, _ORDER + 1), scaled) / (orders - 1)
    for curve, count in query.curves:
        total = total + count * curve.divergences(orders)
    return [float(value) for value in total]
