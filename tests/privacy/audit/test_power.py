"""Power: the smallest fault that an audit of these sizes sees, by another computation and by simulation."""

import numpy as np
import pytest
from scipy import stats

from dprecipe.privacy import gdp
from dprecipe.privacy.audit.any_program import chance_on_curve, gaussian_curve
from dprecipe.privacy.audit.counts import (
    allowed_rate,
    lower_epsilon,
    lower_mu,
    lower_rates,
    mu_of_rates,
    upper_rates,
)
from dprecipe.privacy.audit.power import PROBABILITY, expected_lower, smallest_fault
from dprecipe.privacy.audit.results import AttackTrials, Guesses


def trials(form, n_in, n_out, tp=0, fp=0):
    return AttackTrials(form=form, positives_in=tp, trials_in=n_in, positives_out=fp, trials_out=n_out)


def seen(form, n_in, n_out, rate_in, rate_out, accuses):
    """The chance that an attack with these rates accuses, summed over all counts."""
    total = 0.0
    for fp in range(n_out + 1):
        mass = stats.binom.pmf(fp, n_out, rate_out)
        if mass > 1e-9:
            total += mass * sum(
                stats.binom.pmf(tp, n_in, rate_in)
                for tp in range(n_in + 1)
                if accuses(trials(form, n_in, n_out, tp, fp))
            )
    return total


def test_the_power_of_mu_is_that_of_all_counts():
    claimed = 0.5
    fault = smallest_fault(trials("mu", 30, 20), 0.9, claimed)

    def chance(mu):
        rates = stats.norm.cdf(mu - claimed / 2), stats.norm.cdf(-claimed / 2)
        return seen("mu", 30, 20, *rates, lambda t: lower_mu(t, 0.9) > claimed)

    assert chance(fault) == pytest.approx(PROBABILITY, abs=1e-4)
    assert chance(0.99 * fault) < PROBABILITY


def test_the_power_of_epsilon_is_that_of_randomised_response():
    claimed, delta = 0.5, 1e-3
    fault = smallest_fault(trials("epsilon", 25, 25), 0.9, claimed, delta)

    def chance(epsilon):
        wrong = (1 - delta) / (1 + np.exp(epsilon))
        return seen("epsilon", 25, 25, 1 - wrong, wrong, lambda t: lower_epsilon(t, 0.9, delta) > claimed)

    assert chance(fault) == pytest.approx(PROBABILITY, abs=1e-4)


def test_the_power_of_a_rate_is_beside_the_claim_at_the_counted_rate():
    fault = smallest_fault(trials("rate", 200, 200, 0, 20), 0.95, 0.3)
    needed = next(tp for tp in range(201) if stats.beta.ppf(0.025, tp, 201 - tp) > 0.3)
    assert stats.binom.sf(needed - 1, 200, fault) == pytest.approx(PROBABILITY, abs=1e-4)


def test_more_trials_see_smaller_faults_and_too_few_see_none():
    faults = [smallest_fault(trials("mu", n, n), 0.95, 1.0) for n in (100, 1000, 10_000, 100_000)]
    assert faults == sorted(faults, reverse=True)
    assert 1 < faults[-1] < 1.03
    assert smallest_fault(trials("mu", 3, 3), 0.95, 8.0) is None
    assert (
        smallest_fault(Guesses(canaries=100, named_in=5, named_out=5, correct=0), 0.95, 8.0, 1e-5, gaussian_curve(2))
        is None
    )


def test_the_power_of_one_run_by_simulation():
    """Scores of m canaries are drawn, the highest and the lowest are named, and the bound is asked: 400 runs; the
    theory leaves out that the threshold of the scores varies."""
    m, each, claimed, delta = 1000, 60, 1.0, 1e-5
    guesses = Guesses(canaries=m, named_in=each, named_out=each, correct=0)
    curve = gaussian_curve(gdp.mu_for(claimed, delta))
    fault = smallest_fault(guesses, 0.95, claimed, delta, curve)
    needed = next(
        v for v in range(70, 121) if chance_on_curve(guesses.model_copy(update={"correct": v}), curve[::4]) < 0.05
    )
    rng = np.random.default_rng(9)
    mu = gdp.mu_for(fault, delta)
    inside = rng.random((400, m)) < 0.5
    order = np.argsort(np.where(inside, mu / 2, -mu / 2) + rng.standard_normal((400, m)), axis=1)
    sorted_inside = np.take_along_axis(inside, order, axis=1)
    right = sorted_inside[:, -each:].sum(axis=1) + (~sorted_inside[:, :each]).sum(axis=1)
    assert np.mean(right >= needed) == pytest.approx(PROBABILITY, abs=0.07)  # 3.5 standard deviations


@pytest.mark.parametrize(
    ("steps", "mu", "share"), [(10_000, 1.0, 0.92), (10_000, 0.5, 0.85), (10_000, 0.1, 0.3), (100_000, 0.1, 0.77)]
)
def test_what_a_sound_program_shows_is_the_median_of_what_it_gives(steps, mu, share):
    """Thousands of steps certify most of a large μ, and little of a small one."""
    half = steps // 2
    expected = expected_lower(trials("mu", half, half), 0.95, mu)
    assert expected >= share * mu
    rng = np.random.default_rng(8)
    tp, fp = (rng.binomial(half, stats.norm.cdf(x), 400) for x in (mu / 2, -mu / 2))
    drawn = mu_of_rates(lower_rates(tp, half, 0.95), upper_rates(fp, half, 0.95))
    assert np.median(drawn) == pytest.approx(expected, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "m", "known"), [(1, 1000, 0.3), (3, 1000, 1.67), (8, 1000, 4.75), (8, 10_000, 5.5)]
)
def test_what_one_run_shows_at_the_best_number_of_names(epsilon, m, known):
    """One run never shows more than about half of a large ε."""
    best = max(
        expected_lower(Guesses(canaries=m, named_in=k, named_out=k, correct=0), 0.95, epsilon, 1e-5)
        for k in sorted({max(1, round(m * share)) for share in (0.015, 0.021, 0.043, 0.049, 0.096)})
    )
    assert best == pytest.approx(known, abs=0.12)


def test_a_claimed_curve_leaves_what_its_points_leave():
    curve = [(0.5, 0.01), (1.0, 1e-4)]
    x = 0.05
    each = [min(d + np.exp(e) * x, 1 - np.exp(-e) * (1 - d - x)) for e, d in curve]
    assert allowed_rate(curve, x) == pytest.approx(min(each))
    assert allowed_rate(curve, 1.0) == 1
