"""The Rényi divergence of a sanitised cost once more, by integration: what `sanitise` has in closed form.

For the cross-check accountant: nothing of `sanitise` is called.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

_MIN_VARIANCE = 0.02
"""Smallest variance of the integrand over the noise's: orders with less, close to the largest, are left out."""
_STEEPEST = 4.0
"""Largest β that matters: beyond it hardly any Rényi order has a finite cost."""


def max_order(beta: float) -> float:
    """The largest order whose integral is worked out."""
    return 1 + (1 - _MIN_VARIANCE) / math.expm1(2 * min(beta, _STEEPEST))


def renyi_divergences(beta: float, noise_multiplier: float, scale_multiplier: float, orders: Array) -> Array:
    """Rényi divergences of a noisy cost and the logarithm of its scale, (orders,): wide and shifted noise against the
    other's.

    Half of the change is the shift, at most the smaller smooth sensitivity; the other half is that sensitivity itself,
    by a factor of exp(β), either way.
    """
    u_N = np.linspace(-30, 30, 24_001)
    x_N, log_widths_N = np.sinh(u_N), np.log(np.cosh(u_N) * (u_N[1] - u_N[0]))

    def log_density(mean: float, deviation: float) -> Array:
        z_N = (x_N - mean) / deviation
        return -z_N * z_N / 2 - math.log(deviation) - math.log(2 * math.pi) / 2

    def at_orders(log_p_N: Array, log_q_N: Array) -> Array:
        logs = [np.logaddexp.reduce(a * log_p_N + (1 - a) * log_q_N + log_widths_N) / (a - 1) for a in orders]
        return np.maximum(logs, 0.0)

    log_q_N, factor = log_density(0.0, 1.0), math.exp(beta)
    logarithm = at_orders(log_density(1 / scale_multiplier, 1.0), log_q_N)
    shift = 1 / noise_multiplier  # in units of the smaller deviation
    forward = at_orders(log_density(shift, factor), log_q_N)
    backward = at_orders(log_density(shift / factor, 1 / factor), log_q_N)
    return np.maximum(forward, backward) + logarithm
