"""Sanitised costs: golden figures, quadrature of the published pair, and how often the upper bound fails."""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.mechanisms.pate.theory import sanitise, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "pate.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("record", GOLDEN["gnss"], ids=lambda r: f"{r['order']}-{r['lambda_beta']}-{r['sigma_ss']}")
def test_golden_costs_of_noise_by_smooth_sensitivity(record):
    got = sanitise.gnss_rdp([record["order"]], record["beta"], record["sigma_ss"])[0]
    assert got == pytest.approx(record["exact_tight"], rel=1e-9)
    if "mpmath_quadrature_of_worst_pair" in record:
        assert got == pytest.approx(float(record["mpmath_quadrature_of_worst_pair"]), rel=1e-9)
    assert (record["reference_formula"] >= got) == record["reference_is_valid_bound"]


def test_the_published_formula_is_too_small():
    record = next(row for row in GOLDEN["reference_pitfalls"] if row["id"] == "gnss_theorem23")
    got = sanitise.gnss_rdp([16.5], 0.48 / 16.5, 7.753)[0]
    assert got == pytest.approx(record["true_worst_pair"], rel=1e-6)
    assert got > 4 * record["reference_returns"]


def normals(order, shift, scale, other):
    """D_α(N(shift, scale²) ‖ N(0, other²)) by quadrature; infinity where it diverges."""
    with mp.workdps(30):
        a, s, t, m = mp.mpf(order), mp.mpf(scale), mp.mpf(other), mp.mpf(shift)
        # exponent of p^a q^(1-a): -(curve x² - 2 mid x + rest) / 2
        curve = a / s**2 + (1 - a) / t**2
        if curve <= 0:
            return math.inf
        centre, width = a * m / s**2 / curve, 1 / mp.sqrt(curve)

        def ratio(x):
            logp = -((x - m) ** 2) / (2 * s**2) - mp.log(s)
            logq = -(x**2) / (2 * t**2) - mp.log(t)
            return mp.exp(a * logp + (1 - a) * logq) / mp.sqrt(2 * mp.pi)

        step = width / 5
        total = mp.fsum(ratio(centre + i * step) for i in range(-60, 61)) * step
        return float(mp.log(total) / (a - 1))


@given(
    st.floats(1.05, 40),
    st.floats(0.01, 0.98),
    st.floats(0.5, 30),
    st.floats(-1, 1),
    st.floats(-1, 1),
)
def test_no_pair_of_values_and_scales_costs_more(order, share, multiplier, ratio, shift):
    """Scales within exp(±β), values within the smaller; `share` of the largest β that order allows."""
    beta = share * math.log(order / (order - 1)) / 2
    cost = sanitise.gnss_rdp([order], beta, multiplier)[0]
    smaller = min(1.0, math.exp(ratio * beta))
    got = normals(order, shift * smaller / multiplier, math.exp(ratio * beta), 1.0)
    assert got <= cost * (1 + 1e-9) + 1e-12


@given(st.floats(1.05, 40), st.floats(0.01, 0.98), st.floats(0.5, 30))
def test_the_worst_pair_costs_as_much(order, share, multiplier):
    beta = share * math.log(order / (order - 1)) / 2
    cost = sanitise.gnss_rdp([order], beta, multiplier)[0]
    assert normals(order, 1 / multiplier, math.exp(beta), 1.0) == pytest.approx(cost, rel=1e-9)
    assert cost >= order / (2 * multiplier**2)
    assert cost <= sanitise.gnss_rdp([order], beta * 1.01, multiplier)[0]


def test_beyond_some_order_the_cost_is_infinite():
    got = sanitise.gnss_rdp([2.0, 10.0, 11.0, 12.0, 1000.0], 0.05, 5.0)
    assert np.isfinite(got[:2]).all()
    assert np.all(got[2:] == math.inf)
    assert np.all(np.diff(got[:2]) > 0)


CONSTANTS = Sanitiser(12.0, 0.03, 9.0, 12.0, 0.05)


def test_what_is_published_costs_what_is_claimed():
    """F~ and μ~ of all pairs of neighbours of a small ensemble, in both directions, by quadrature."""
    voting = Voting(7, 3, "gaussian", 1.5, VoteSelection(4.0, 2.0))
    table = vote_sensitivity.query_costs(voting, CONSTANTS.order)
    local = vote_sensitivity.local_sensitivities(table)
    cells = np.argwhere(~np.isnan(table))
    value, smooth = {}, {}
    for cell in map(tuple, cells.tolist()):
        ls = vote_sensitivity.at_distances(local, *np.array([cell]).T)
        value[cell], smooth[cell] = table[cell], vote_sensitivity.log_smooth(ls, CONSTANTS.smoothness)
    claimed = CONSTANTS.cost([CONSTANTS.order])[0]
    pairs = 0
    for here in value:
        for there in value:
            if here != there and max(abs(here[0] - there[0]), abs(here[1] - there[1])) <= 1:
                pairs += 1
                scale = math.exp(smooth[there]) * CONSTANTS.value_multiplier
                shift, ratio = (value[here] - value[there]) / scale, math.exp(smooth[here] - smooth[there])
                spread = CONSTANTS.smoothness * CONSTANTS.sensitivity_multiplier
                got = normals(CONSTANTS.order, shift, ratio, 1.0)
                got += normals(CONSTANTS.order, (smooth[here] - smooth[there]) / spread, 1.0, 1.0)
                assert got <= claimed * (1 + 1e-9)
    assert pairs > 10


def test_the_upper_bound_fails_no_more_often_than_it_says():
    """10,000 releases with δ' = 5 %; a fault of this size is missed, or a sound one accused, once in 10^6."""
    generator = np.random.default_rng(7)
    value, log_smooth, trials = 0.6, math.log(0.02), 10_000
    noise = generator.standard_normal((trials, 2))
    published = [sanitise.release_cost(value, log_smooth, CONSTANTS, *row) for row in noise]
    below = sum(p.log_sensitivity < log_smooth for p in published)
    spread = 5 * math.sqrt(trials * 0.05 * 0.95)
    assert abs(below - 0.05 * trials) < spread
    bounds = [sanitise.upper_bound(p, CONSTANTS, 1e-5) for p in published]
    assert sum(b.total < value for b in bounds) <= 2 * 0.05 * trials + spread
    assert sum(b.total < value for b in bounds) > 0  # it is a bound with high probability, not a sure one
    values = np.array([p.value for p in published])
    scale = 0.02 * CONSTANTS.value_multiplier
    assert abs(values.mean() - value) < 5 * scale / math.sqrt(trials)
    assert abs(values.std() / scale - 1) < 5 / math.sqrt(2 * trials)


def test_the_bound_is_of_the_published_numbers_alone():
    published = sanitise.Sanitised(0.25, -3.0)
    bound = sanitise.upper_bound(published, CONSTANTS, 1e-5)
    z = 1.6448536269514722
    assert CONSTANTS.quantile == pytest.approx(z, rel=1e-12)
    assert bound.total == pytest.approx(0.25 + z * 9 * math.exp(-3.0), rel=1e-12)
    assert bound.renyi == pytest.approx(bound.total + CONSTANTS.cost([12.0])[0], rel=1e-12)
    assert bound.epsilon_classic == pytest.approx(bound.renyi + math.log(1e5) / 11, rel=1e-12)
    assert bound.epsilon < bound.epsilon_classic
    assert bound.delta == pytest.approx(1e-5 + 0.1)
    capped = sanitise.upper_bound(published, CONSTANTS, 1e-5, independent=0.3)
    assert capped.total == 0.3
    assert sanitise.upper_bound(sanitise.Sanitised(-9.0, -30.0), CONSTANTS, 1e-5).total == 0.0
    assert sanitise.upper_bound(sanitise.Sanitised(0.0, 1e6), CONSTANTS, 1e-5, independent=2.0).total == 2.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 1.0}, "order"),
        ({"order": math.nan}, "order"),
        ({"smoothness": 0.0}, "smoothness"),
        ({"smoothness": 0.0436}, "smoothness < 0.0435"),
        ({"value_multiplier": -1.0}, "multipliers"),
        ({"sensitivity_multiplier": math.inf}, "multipliers"),
        ({"failure": 0.5}, "failure"),
        ({"failure": math.nan}, "failure"),
    ],
)
def test_constants_are_checked(change, message):
    whole = {
        "order": 12.0,
        "smoothness": 0.03,
        "value_multiplier": 9.0,
        "sensitivity_multiplier": 12.0,
        "failure": 1e-6,
    }
    with pytest.raises(ValueError, match=message):
        Sanitiser(**{**whole, **change})


@pytest.mark.parametrize("delta", [0.0, 1.0, math.nan])
def test_delta_is_checked(delta):
    with pytest.raises(ValueError, match="delta"):
        sanitise.upper_bound(sanitise.Sanitised(0.1, -3.0), CONSTANTS, delta)


def test_orders_of_the_cost_are_those_of_every_other_event():
    orders = votes.ORDERS
    got = CONSTANTS.cost(orders)
    assert got.shape == (len(orders),)
    finite = np.isfinite(got)
    assert finite[0]
    assert not finite[-1]
    assert np.all(np.diff(got[finite]) > 0)
