"""How often lower bounds lie, on a sound program: by exact enumeration, by simulation, and what the naive way costs.

Simulations draw all trials of an attack at once, with a fixed seed.
"""

import numpy as np
from scipy import stats

from dprecipe.privacy.audit.counts import lower_rates, mu_of_rates, upper_rates

CONFIDENCE = 0.95
THRESHOLDS = np.linspace(-4.5, 5.5, 200)


def test_the_rate_bounds_hold_with_their_confidence_whatever_the_rate():
    """Exactly: the chance of counts whose bound excludes the true rate, over a grid of rates."""
    n = 40
    counts = np.arange(n + 1)
    lower, upper = lower_rates(counts, n, CONFIDENCE), upper_rates(counts, n, CONFIDENCE)
    worst = 0.0
    for rate in np.linspace(0.001, 0.999, 333):
        masses = stats.binom.pmf(counts, n, rate)
        worst = max(worst, masses[lower > rate].sum(), masses[upper < rate].sum())
        assert worst <= (1 - CONFIDENCE) / 2 + 1e-12
    assert worst > 0.02  # it is no looser than it must be


def draw_above(rng, mu, n, repetitions):
    """How many scores of an attack lie above each of 200 thresholds, with the canary and without it."""
    cells = [np.concatenate([[0.0], stats.norm.cdf(THRESHOLDS - shift), [1.0]]) for shift in (mu, 0.0)]
    drawn = [rng.multinomial(n, np.diff(each), size=repetitions) for each in cells]
    return [counts[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:] for counts in drawn]


def test_the_best_of_many_thresholds_is_no_bound_and_a_fixed_one_is():
    """10,000 trials a side and 200 thresholds: the best of them is above the truth in 13 % of all attacks."""
    n, mu, repetitions = 10_000, 1.0, 400
    rng = np.random.default_rng(5)
    above_in, above_out = draw_above(rng, mu, n, repetitions)
    lower, upper = lower_rates(np.arange(n + 1), n, CONFIDENCE), upper_rates(np.arange(n + 1), n, CONFIDENCE)
    best = mu_of_rates(lower[above_in], upper[above_out]).max(axis=1)
    fixed_in, fixed_out = (rng.binomial(n, stats.norm.cdf(x), repetitions) for x in (mu / 2, -mu / 2))
    fixed = mu_of_rates(lower[fixed_in], upper[fixed_out])
    # 5 % give 34 or more of 400 with a probability of 0.2 %
    assert np.count_nonzero(best > mu) > 33
    assert np.count_nonzero(fixed > mu) < 10
    assert np.median(fixed) > 0.9 * mu


def test_thresholds_chosen_on_one_half_and_judged_on_the_other_keep_the_error():
    n, mu, repetitions = 500, 1.67, 400
    rng = np.random.default_rng(6)
    lower, upper = lower_rates(np.arange(n + 1), n, CONFIDENCE), upper_rates(np.arange(n + 1), n, CONFIDENCE)
    first_in, first_out = draw_above(rng, mu, n, repetitions)
    chosen = mu_of_rates(lower[first_in], upper[first_out]).argmax(axis=1)
    above_in, above_out = draw_above(rng, mu, n, repetitions)
    rows = np.arange(repetitions)
    judged = mu_of_rates(lower[above_in[rows, chosen]], upper[above_out[rows, chosen]])
    assert np.count_nonzero(judged > mu) <= 33
