"""p-values: against scipy's own tests, exact sums and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from dprecipe.privacy.audit.results import Correlation, Distance, Equality, Excess, Frequency, Variance
from dprecipe.privacy.audit.verdicts import p_value


@pytest.mark.parametrize(
    ("k", "n", "share"), [(0, 10, 0.3), (10, 10, 0.3), (3, 10, 0.3), (40, 1000, 0.02), (5, 9, 1.0)]
)
def test_frequencies_by_the_exact_tails(k, n, share):
    law = stats.binom(n, share)
    assert p_value(Frequency(successes=k, trials=n, expected=share)) == pytest.approx(
        min(1.0, 2 * min(law.cdf(k), law.sf(k - 1))), rel=1e-9, abs=1e-300
    )


def test_a_success_that_can_not_be_has_no_chance():
    assert p_value(Frequency(successes=1, trials=10, expected=0.0)) == 0
    assert p_value(Frequency(successes=9, trials=10, expected=1.0)) == 0
    assert p_value(Frequency(successes=10, trials=10, expected=1.0)) == 1


def test_variances_by_the_tails_of_chi_square():
    for total in (50.0, 100.0, 180.0):
        law = stats.chi2(100)
        expected = min(1.0, 2 * min(law.cdf(total), law.sf(total)))
        assert p_value(Variance(sum_squares=total, degrees=100)) == pytest.approx(expected, rel=1e-9)
    assert p_value(Variance(sum_squares=0.0, degrees=100)) == 0


@pytest.mark.parametrize("pairs", [1, 3, 200])
def test_correlations_are_bounded_for_normals_and_for_signs(pairs):
    rng = np.random.default_rng(3)
    normal = (rng.standard_normal((5_000, pairs)) * rng.standard_normal((5_000, pairs))).sum(axis=1)
    signs = rng.choice([-1.0, 1.0], (5_000, pairs)).sum(axis=1)
    for total in (1.5 * math.sqrt(pairs), 3 * math.sqrt(pairs)):
        bound = p_value(Correlation(sum_products=total, pairs=pairs))
        assert bound == p_value(Correlation(sum_products=-total, pairs=pairs))
        assert max(np.mean(abs(normal) >= total), np.mean(abs(signs) >= total)) <= bound
    far = p_value(Correlation(sum_products=6 * math.sqrt(pairs), pairs=pairs))
    assert far <= {1: 0.1, 3: 0.01, 200: 1e-6}[pairs]  # and it does tell


def test_distances_by_the_exact_distribution():
    for n, d in ((10, 0.45), (1000, 0.06), (100_000, 0.008)):
        exact = stats.kstwo.sf(d, n)
        assert exact * (1 - 1e-9) <= p_value(Distance(statistic=d, sample=n)) <= exact * 1.02
    assert p_value(Distance(statistic=0.0, sample=10)) == 1


def test_deterministic_tests_have_no_chance():
    assert p_value(Excess(largest=1.0, allowed=1.0)) == 1
    assert p_value(Excess(largest=math.nextafter(1.0, 2), allowed=1.0)) == 0
    assert p_value(Equality(differing=0, compared=3)) == 1
    assert p_value(Equality(differing=1, compared=3)) == 0
