"""Bounded range: the guarantee of the exponential mechanism.

A mechanism has range r if, for neighbours, the privacy losses of any two outcomes differ by at most r: they lie in
[t - r, t] for some t between 0 and r. That is much less than being r-DP.

Source: Dong, Durfee & Rogers 2020; Cesar & Rogers 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dprecipe.privacy.curves import Array
from dprecipe.privacy.loss import MAX_BINS, GridError, Loss, from_cells

_SERIES = (1 / 6, -1 / 180, 1 / 2835, -1 / 37800, 1 / 467775)
"""Coefficients of log(sinh(x) / x) in powers of x²."""


def bounded_range_curve(largest: float, orders: Sequence[float]) -> Array:
    """Returns r(α) of a mechanism of range r: at most α r²/8, and at most r.

    With Q(t) the mass of the larger loss, log(Q(t) exp(αt) + (1 - Q(t)) exp(α(t - r))) / (α-1) is largest at a t in
    closed form, where it is H(αr) - H((α-1)r) + (H(αr) - H(r))/(α-1), H(x) = log(sinh(x/2)/(x/2)).

    Guarantees: attained at every order, by a mechanism with two outcomes; up to 1e-9 relative rounding error. Sums of
    this curve hold for mechanisms chosen one after another.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    high_A, low_A = _log_sinh(orders_A * largest), _log_sinh((orders_A - 1) * largest)
    curve_A: Array = high_A - low_A + (high_A - _log_sinh(np.array([largest]))) / (orders_A - 1)
    bound_A: Array = np.minimum(curve_A * (1 + 1e-11), largest)
    return bound_A


def _log_sinh(x_A: Array) -> Array:
    """Returns log(sinh(x/2) / (x/2)) for x > 0."""
    half_A = x_A / 2
    squares_A = np.minimum(half_A, 0.5) ** 2
    small_A = squares_A * np.polynomial.polynomial.polyval(squares_A, _SERIES)
    large_A = half_A + np.log(-np.expm1(-x_A)) - np.log(x_A)
    return np.where(half_A < 0.25, small_A, large_A)


def bounded_range_losses(largest: float, step: float) -> Loss:
    """Returns the pair with δ(ε) = (1 - exp((ε - r)/2))² / (1 - exp(-r)) for |ε| <= r, the largest of all mechanisms of
    range r = `largest`, attained at each ε by one with two outcomes; its own mirror image.

    With y = exp(-l/2), the loss l is above a value with P-mass (1 - exp(-r/2)/y) / (1 - exp(-r)) and Q-mass
    (exp(-r/2) y - exp(-r)) / (1 - exp(-r)).

    Guarantees: dominates every mechanism of range r, so that compositions of it bound mechanisms chosen one after
    another. The pair itself is not of range r, and its Rényi curve is larger than `bounded_range_curve`.

    Raises:
        GridError: more than `MAX_BINS` cells.
    """
    first, last = math.floor(-largest / step), math.ceil(largest / step)
    if last - first > MAX_BINS:
        raise GridError
    edges_N = np.clip(step * np.arange(first, last + 1), -largest, largest)
    widths_N, whole = np.diff(edges_N), -math.expm1(-largest)
    # a mass is the difference of two exponentials: factored as one of them times expm1, it loses no digits
    p_N = np.exp((edges_N[1:] - largest) / 2) * -np.expm1(-widths_N / 2) / whole
    q_N = np.exp((-edges_N[:-1] - largest) / 2) * -np.expm1(-widths_N / 2) / whole
    return from_cells(step, first, p_N, q_N, 0.0, 0.0)
