"""Rényi divergences of distributions with finitely many outcomes, without cancellation.

D_α(P‖Q) = log(1 + x) / (α-1), where the excess x = Σ q (r^α - 1 - α(r-1)), r = p/q, is a sum of terms that are not
negative: log-probabilities of a few correct digits give a divergence of nearly as many, however small it is.

Axes: A orders; leading axes are those of the arguments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SERIES_BELOW, _TERMS = 0.05, 9


def from_excess(log_excess: Array, orders_A: Array) -> Array:
    """Returns log(1 + exp(log_excess)) / (α-1), with the orders on the last axis."""
    result: Array = np.logaddexp(0.0, log_excess) / (orders_A - 1)
    return result


def log_term(log_ratio: Array, orders_A: Array) -> Array:
    """Returns log(r^α - 1 - α(r-1)) of the log-ratios, with an axis of orders added: (..., A); -infinity at r = 1.

    Guarantees: relative error of the term below 1e-11 for α >= 1.01, whatever the ratio.
    """
    ratio, orders_A = np.broadcast_arrays(log_ratio[..., None], orders_A)
    steep = orders_A * ratio
    with np.errstate(divide="ignore"):
        result: Array = np.log(np.maximum(np.expm1(np.minimum(steep, 1.0)) - orders_A * _expm1_low(ratio, steep), 0.0))
    small, large = np.abs(steep) < _SERIES_BELOW, steep > 1
    result[small] = _by_series(steep[small], orders_A[small])
    result[large] = _of_large(ratio[large], orders_A[large])
    return result


def _expm1_low(ratio: Array, steep: Array) -> Array:
    return np.expm1(np.where(steep > 1, 0.0, ratio))


def _by_series(steep: Array, orders: Array) -> Array:
    """Returns Σ_{k>=2} (α log r)^k (1 - α^(1-k)) / k!, for small α log r, where a few terms suffice."""
    log_orders, powers, total = np.log(orders), 0.5 * np.ones_like(steep), np.zeros_like(steep)
    for k in range(2, _TERMS + 1):
        total -= powers * np.expm1((1 - k) * log_orders)
        powers *= steep / (k + 1)
    with np.errstate(divide="ignore"):
        result: Array = 2 * np.log(np.abs(steep)) + np.log(total)
    return result


def _of_large(ratio: Array, orders: Array) -> Array:
    """Returns α log r + log(1 - (1 + α(r-1)) / r^α)."""
    log_line = np.log(orders + (1 - orders) * np.exp(-ratio)) - (orders - 1) * ratio
    result: Array = orders * ratio + np.log(-np.expm1(log_line))
    return result
