"""Conversions of a Rényi curve: to ε at a δ, and to δ at an ε."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dprecipe.privacy.curves import Array

Conversion = Literal["improved", "classic"]


@dataclass(frozen=True, slots=True)
class Optimum:
    """The best value over the orders, and where it was found.

    `at_first` and `at_last`: the optimum is at that end of the list of orders. The value is still a bound, but a longer
    list may give a better one.
    """

    value: float
    order: float
    at_first: bool
    at_last: bool


def epsilon(orders: Sequence[float], rdp: Array, delta: float, conversion: Conversion = "improved") -> Optimum:
    """Returns the smallest ε >= 0 that the curve gives at δ; infinity when it gives none. 0 < δ < 1.

    Guarantees: every mechanism with this curve is (value, δ)-DP.
    Source: classic: Mironov 2017, Proposition 3. Improved, never larger: Canonne, Kamath & Steinke 2020,
    Proposition 12; Balle et al. 2020, Theorem 21.
    """
    alphas_A = np.asarray(orders, dtype=np.float64)
    if conversion == "classic":
        values_A = rdp - np.log(delta) / (alphas_A - 1)
    else:
        values_A = rdp + np.log1p(-1 / alphas_A) - (np.log(delta) + np.log(alphas_A)) / (alphas_A - 1)
    return _best(alphas_A, values_A, floor=0.0)


def delta(orders: Sequence[float], rdp: Array, epsilon: float, conversion: Conversion = "improved") -> Optimum:
    """Returns the smallest δ <= 1 that the curve gives at ε >= 0.

    Guarantees: every mechanism with this curve is (ε, value)-DP.
    Source: as `epsilon`.
    """
    alphas_A = np.asarray(orders, dtype=np.float64)
    logs_A = (alphas_A - 1) * (rdp - epsilon)
    if conversion == "improved":
        logs_A = logs_A + (alphas_A - 1) * np.log1p(-1 / alphas_A) - np.log(alphas_A)
    best = _best(alphas_A, logs_A, floor=-np.inf)
    return Optimum(float(np.exp(min(best.value, 0.0))), best.order, best.at_first, best.at_last)


def _best(alphas_A: Array, values_A: Array, floor: float) -> Optimum:
    usable_A = np.where(np.isnan(values_A), np.inf, values_A)
    index = int(np.argmin(usable_A))
    return Optimum(max(float(usable_A[index]), floor), float(alphas_A[index]), index == 0, index == len(alphas_A) - 1)
