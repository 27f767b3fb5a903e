"""Choices of λ, of bands and of their power, from public constants alone: those that leave the least noise in the
iterates at one ε.

Each is the best of a fixed grid, so that it can be recomputed elsewhere to the same value. An optimiser's coefficients
would depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dprecipe.privacy.correlation.series import PREFIX_SUMS, LinearDescent, mean_squared_error, rms_error
from dprecipe.privacy.correlation.strategies import Banded, PreviousStep, make_bands

PREVIOUS = (0.0, *(i / 100 for i in range(50, 100)))
POWERS = tuple(i / 50 for i in range(10, 51))
BANDS = (1, 2, 4, 8, 16, 32)
MAX_PART_RATE = 0.5
"""The largest rate within a part: above it hardly any amplification is left."""
LEAST_GAIN = 0.02
"""The share of the noise that bands must save to be worth the memory they take."""


def choose_previous(batches: int, passes: int) -> PreviousStep:
    """Returns the λ that leaves the least noise in the prefix sums, for passes in a fixed order at a given ε.

    Momentum is left out on purpose: with the λ that suits it, single steps are so noisy that models became worse.
    """

    def squared_noise(strategy: PreviousStep) -> float:
        error = 1 + (batches * passes - 1) / 2 * (1 - strategy.previous) ** 2  # the mean of 1 + t (1 - λ)²
        return strategy.sensitivity(batches, passes) ** 2 * error

    return min(map(PreviousStep, PREVIOUS), key=squared_noise)


def choose_power(
    bands: int, steps: int, descent: LinearDescent = PREFIX_SUMS, powers: Sequence[float] = POWERS
) -> float:
    """Returns the one of `powers` with which `bands` bands leave the least noise in the iterates, at a given ε."""
    candidates = [make_bands(bands, power) for power in powers]
    errors_G = mean_squared_error(np.array([each.bands for each in candidates]), (1.0,), steps, descent)
    squares_G = np.array([each.norm for each in candidates]) ** 2 * errors_G
    return powers[int(squares_G.argmin())]


def choose_bands(
    rate: float,
    steps: int,
    counts: Iterable[int],
    multiplier_of: Callable[[float, int], float],
    descent: LinearDescent = PREFIX_SUMS,
    powers: Sequence[float] = POWERS,
) -> Banded:
    """Returns the bands, of one of these `counts`, that leave the least noise in the iterates; one band, which is
    DP-SGD, where others save less than 2 %.

    `rate`: the share of all units in an expected batch. `multiplier_of(q, n)`: the noise multiplier of `n` Poisson
    batches of rate `q` at the budget.
    """
    independent = make_bands(1, 1.0)
    least = multiplier_of(rate, steps) * rms_error(independent, steps, descent) * (1 - LEAST_GAIN)
    best = independent
    for bands in counts:
        if not 1 < bands <= steps or bands * rate > MAX_PART_RATE:
            continue
        strategy = make_bands(bands, choose_power(bands, steps, descent, powers))
        multiplier = strategy.norm * multiplier_of(bands * rate, math.ceil(steps / bands))
        noise = multiplier * rms_error(strategy, steps, descent)
        if noise < least:
            least, best = noise, strategy
    return best
