"""Columns of C and of its inverse, and the noise that correlation leaves in the iterates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike

from dprecipe.privacy.correlation.strategies import Strategy
from dprecipe.privacy.curves import Array


@dataclass(frozen=True, slots=True)
class LinearDescent:
    """Gradient descent with `momentum`, whose weights shrink to the share `decay` in each step. Its learning rate is
    constant: one that falls makes all noise less, and changes no ranking."""

    momentum: float = 0.0
    decay: float = 1.0


PREFIX_SUMS = LinearDescent()
EXACT = 1 << 14
"""Steps whose coefficients are computed one by one. With at most 64 bands, later ones are the same again, after as many
steps as there are bands at the most: a run of millions is planned, and verified, within seconds."""


def column_of(strategy: Strategy, steps: int) -> Array:
    """Returns the first `steps` entries of the first column c of C."""
    return divide_series(strategy.bands, strategy.taps, steps)


def inverse_of(strategy: Strategy, steps: int) -> Array:
    """Returns the first `steps` entries of the first column d of C⁻¹: w_t = Σ d_j z_{t-j}."""
    return divide_series(strategy.taps, strategy.bands, steps)


def divide_series(numerator: ArrayLike, denominator: ArrayLike, steps: int) -> Array:
    """Returns the first coefficients of numerator(x) / denominator(x), given by their coefficients along the last axis;
    the denominator's first is 1."""
    above, below = np.atleast_1d(numerator)[..., :steps], np.atleast_1d(denominator)[..., 1:steps]
    degree = below.shape[-1]
    *shape, _ = np.broadcast_shapes((*above.shape[:-1], 1), (*below.shape[:-1], 1))
    series = np.zeros((*shape, degree + steps))  # as many zeros before the first
    series[..., degree : degree + above.shape[-1]] = above
    if degree and below.any():
        backwards = below[..., ::-1]
        for t in range(steps):
            series[..., degree + t] -= (series[..., t : t + degree] * backwards).sum(-1)
    result: Array = series[..., degree:]
    return result


def squared_errors(bands: ArrayLike, taps: ArrayLike, steps: int, descent: LinearDescent = PREFIX_SUMS) -> Array:
    """Returns the variance of the noise in each coordinate of each iterate, (…, steps), at learning rate 1 and noise
    multiplier 1, for the strategy c(x) = bands(x) / taps(x)."""
    factors = [np.array([1.0, -descent.decay]), np.array([1.0, -descent.momentum])]
    below = reduce(_multiply, factors, np.atleast_1d(np.asarray(bands, dtype=float)))
    result: Array = np.cumsum(divide_series(taps, below, steps) ** 2, axis=-1)
    return result


def mean_squared_error(bands: ArrayLike, taps: ArrayLike, steps: int, descent: LinearDescent = PREFIX_SUMS) -> Array:
    """Returns the mean of `squared_errors` over the steps. What a step adds is taken to repeat after `EXACT` steps."""
    exact, period = min(steps, EXACT), np.atleast_1d(bands).shape[-1]
    errors = squared_errors(bands, taps, exact, descent)
    if exact == steps:
        result: Array = errors.mean(axis=-1)
        return result
    rest, last = steps - exact, errors[..., -1]
    slope = (last - errors[..., -1 - period]) / period
    result = (errors.sum(axis=-1) + rest * last + slope * (rest * (rest + 1) / 2)) / steps
    return result


def rms_error(strategy: Strategy, steps: int, descent: LinearDescent = PREFIX_SUMS) -> float:
    """Returns the root of the mean variance of the noise in the iterates of a run, at noise multiplier 1."""
    return math.sqrt(float(mean_squared_error(strategy.bands, strategy.taps, steps, descent)))


def last_deviation(strategy: Strategy, steps: int) -> float:
    """Returns the standard deviation of the noise of the last step: the norm of `inverse_of`, which is taken to repeat
    after `EXACT` steps."""
    inverse_N, period = inverse_of(strategy, min(steps, EXACT)), len(strategy.bands)
    rest = max(0, steps - EXACT)
    return math.hypot(*inverse_N, math.sqrt(rest / period) * math.hypot(*inverse_N[-period:]))


def _multiply(series: Array, factor: Array) -> Array:
    """Returns the product of power series along the last axis with a factor of two terms."""
    longer = np.pad(series, [(0, 0)] * (series.ndim - 1) + [(0, 1)])
    longer[..., 1:] += factor[1] * series
    return longer
