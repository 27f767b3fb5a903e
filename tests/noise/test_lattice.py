from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dprecipe.noise.entropy import Secrets
from dprecipe.noise.lattice import add_gaussian, lattice_spacing


def draw(total: int | np.ndarray, bits: int, scale: float, count: int = 1, seed: int = 1) -> np.ndarray:
    return add_gaussian(np.full(count, total, np.int64), bits, scale, Secrets(seed).stream("noise", 1))


@pytest.mark.parametrize("scale", [1e-6, 0.3, 1.0, 40.0, 1e4])
def test_results_are_on_the_lattice_of_the_noise_whatever_the_sum(scale: float) -> None:
    bits = 36
    step = max(lattice_spacing(scale), 2.0**-bits)
    for total in (0, 1, 12345678901, -(3 << 50)):
        found = draw(total, bits, scale, 1000) / step
        np.testing.assert_array_equal(found, np.round(found))
    assert scale * 2.0**-21 < lattice_spacing(scale) <= scale * 2.0**-20


def test_a_result_is_one_function_of_the_sum_and_the_noise() -> None:
    """Two sums that differ by a multiple of the lattice give results that differ by exactly it, for the same noise."""
    scale, bits = 3.0, 36
    whole = round(lattice_spacing(scale) * 2**bits)
    first = draw(987654321, bits, scale, 2000)
    second = draw(987654321 + 77 * whole, bits, scale, 2000)
    np.testing.assert_array_equal(second - first, 77 * lattice_spacing(scale))
    rising = [draw(987654321 + extra, bits, scale, 2000) for extra in range(0, whole, whole // 5)]
    assert all((later >= earlier).all() for earlier, later in itertools.pairwise(rising))


def test_noise_is_normal_and_of_its_scale() -> None:
    """Kolmogorov and Smirnov at 1e-6; the seed is fixed, so that it fails for good or never."""
    for seed, (total, scale) in enumerate([(0, 1.0), (5 << 30, 2.5), (-(7 << 20), 0.01)]):
        found = (draw(total, 30, scale, 40_000, seed) - total / 2**30) / scale
        assert stats.kstest(found, "norm").pvalue > 1e-6
        assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 / math.sqrt(40_000)


def test_zero_has_no_sign_and_nothing_takes_nothing() -> None:
    found = draw(0, 4, 1.0, 4000)
    assert (found == 0).any()
    assert not np.signbit(found[found == 0]).any()
    stream = Secrets(1).stream("noise", 1)
    assert add_gaussian(np.zeros((0, 3), np.int64), 4, 1.0, stream).shape == (0, 3)
    np.testing.assert_array_equal(stream.words(3), Secrets(1).stream("noise", 1).words(3))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 2.0**-29, 2.0**40])
def test_scales_without_a_lattice_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale of noise"):
        draw(0, 30, scale)


def test_sums_near_the_end_of_whole_numbers_are_refused() -> None:
    for total in (1 << 61, -(1 << 61), -(1 << 63)):
        with pytest.raises(ValueError, match="too large"):
            draw(total, 30, 1.0)
