"""Exact GNMax against mpmath, against all one-vote moves by another quadrature, and against golden figures."""

import itertools
import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dprecipe.mechanisms.pate.theory import exact_votes, votes
from tests.sweeps import sweep

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "pate.json").read_text(encoding="utf-8"))
NINE = GOLDEN["meta"]["orders9"]
GRID_NOISE = 1e-13  # of the golden figures that are not mpmath's
MARGIN = 2 * exact_votes.MARGIN


def log_probabilities(counts, sigma):
    """log Pr[class j answers] from the nodes and masses that the divergence is computed with."""
    values, index = np.unique(np.asarray(counts, dtype=np.float64), return_inverse=True)
    _, weights_CZ, scale_C = exact_votes._rule(values, np.bincount(index), sigma)
    return (np.log(weights_CZ.sum(axis=1)) + scale_C)[index]


@pytest.mark.parametrize("record", GOLDEN["own_exact_gnmax"], ids=lambda r: str(r["counts"]))
def test_golden_figures(record):
    counts, sigma, orders = record["counts"], record["sigma"], record["orders"]
    got = exact_votes.exact_gnmax_rdp([counts], sigma, orders)[0]
    np.testing.assert_allclose(log_probabilities(counts, sigma), record["logprobs"], rtol=1e-10)
    np.testing.assert_allclose(got, record["exact_rdp_sup_over_one_vote_moves"], rtol=1e-9, atol=GRID_NOISE)
    np.testing.assert_allclose(votes.gnmax_rdp(votes.log_error([counts], "gaussian", sigma), sigma, orders)[0],
                               record["theorem6"], rtol=1e-9)  # fmt: skip
    assert np.all(got <= np.array(record["ind"]))
    if "mpmath" in record:
        want = np.array([float(value) for value in record["mpmath"]])
        assert np.all(got >= want)
        np.testing.assert_allclose(got, want, rtol=MARGIN)


@pytest.mark.parametrize("record", GOLDEN["own_confident_per_query"], ids=lambda r: r["hist"])
def test_golden_figures_at_more_orders(record):
    counts = GOLDEN["histograms"][record["hist"]]
    got = exact_votes.exact_gnmax_rdp([counts], record["sigma2"], NINE)[0]
    np.testing.assert_allclose(got, record["own_exact_gnmax"], rtol=1e-9, atol=GRID_NOISE)


def oracle_probabilities(counts, sigma):
    """With 40 digits, by sums over nodes so close that halving their distance changes nothing."""
    times = {n: counts.count(n) for n in counts}
    s, step = mp.mpf(sigma), mp.mpf(1) / 6
    low, high = (min(counts) + max(counts)) / (2 * s) - 12, max(counts) / s + 12
    totals = dict.fromkeys(times, mp.mpf(0))
    for i in range(int((high - low) / step)):
        z = low + i * step
        below = {n: mp.ncdf(z - n / s) for n in times}
        product = mp.fprod(value ** times[n] for n, value in below.items())
        for n in times:
            totals[n] += mp.npdf(z - n / s) * product / below[n]
    return [totals[n] * step for n in counts]


def oracle(counts, sigma, orders):
    with mp.workdps(40):
        here = oracle_probabilities(counts, sigma)
        assert abs(mp.fsum(here) - 1) < mp.mpf("1e-28")
        best = [mp.mpf(0)] * len(orders)
        for i, j in itertools.permutations(range(len(counts)), 2):
            if counts[i]:
                there = oracle_probabilities([n - (k == i) + (k == j) for k, n in enumerate(counts)], sigma)
                for index, order in enumerate(orders):
                    a = mp.mpf(order)
                    moment = mp.fsum(p**a * q ** (1 - a) for p, q in zip(here, there, strict=True))
                    best[index] = max(best[index], mp.log(moment) / (a - 1))
        return np.minimum([float(value) for value in best], np.array(orders) / sigma**2)


@pytest.mark.parametrize(
    ("counts", "sigma"),
    sweep(
        [([240, 6, 4], 40.0), ([6, 5, 3], 300.0), ([30, 10], 2.0), ([9, 1, 0], 0.7), ([250, 0, 0], 40.0)],
        (0, 2, 4),
        several=True,
    ),
    ids=str,
)
def test_against_40_digits(counts, sigma):
    orders = np.array([1.01, 2.0, 8.0])
    want = oracle(counts, sigma, orders)
    got = exact_votes.exact_gnmax_rdp([counts], sigma, orders)[0]
    assert np.all(got >= want)
    excess = np.expm1((orders - 1) * want)
    with_rounding = np.log1p((np.sqrt(excess) + 2 * orders * exact_votes.ROUNDING) ** 2) / (orders - 1)
    assert np.all(got <= with_rounding * (1 + MARGIN))


def test_probabilities_of_many_classes_against_40_digits():
    for counts, sigma in [([7] * 150, 3.0), ([4700, 100, *[2] * 100], 100.0), ([60, 20, 0], 1.0)]:
        with mp.workdps(40):
            want = [float(mp.log(value)) for value in oracle_probabilities(counts, sigma)]
        np.testing.assert_allclose(log_probabilities(counts, sigma), want, rtol=0, atol=1e-12)


def integrated(counts, sigma):
    """Pr[class j has most], by Simpson's rule in votes."""
    x = np.linspace(min(counts) - 9 * sigma, max(counts) + 9 * sigma, 4001)
    below = stats.norm.cdf(x - np.array(counts)[:, None], scale=sigma)
    at = stats.norm.pdf(x - np.array(counts)[:, None], scale=sigma)
    w = np.full(len(x), 2.0)
    w[1::2], w[0], w[-1] = 4.0, 1.0, 1.0
    others = [np.prod(np.delete(below, j, axis=0), axis=0) for j in range(len(counts))]
    return np.array([np.sum(w * at[j] * others[j]) for j in range(len(counts))]) * (x[1] - x[0]) / 3


@pytest.mark.parametrize("sigma", [0.8, 2.0, 8.0])
@pytest.mark.parametrize(("teachers", "classes"), [(6, 3), (7, 2), (4, 4)])
def test_it_is_the_largest_divergence_over_all_moves(teachers, classes, sigma):
    every = [c for c in itertools.product(range(teachers + 1), repeat=classes) if sum(c) == teachers]
    every = [c for c in every if list(c) == sorted(c)]
    orders = np.array([1.5, 2.0, 4.0, 12.0])
    got = exact_votes.exact_gnmax_rdp(every, sigma, orders.tolist())
    for counts, rdp in zip(every, got, strict=True):
        p = integrated(counts, sigma)
        largest = np.zeros(len(orders))
        for i, j in itertools.permutations(range(classes), 2):
            if counts[i]:
                q = integrated([n - (k == i) + (k == j) for k, n in enumerate(counts)], sigma)
                logs = orders[:, None] * np.log(p) + (1 - orders[:, None]) * np.log(q)
                largest = np.maximum(largest, np.logaddexp.reduce(logs, axis=1) / (orders - 1))
        np.testing.assert_allclose(rdp, np.minimum(largest, orders / sigma**2), rtol=1e-7, atol=1e-12)


@given(st.lists(st.integers(0, 300), min_size=2, max_size=12).filter(any), st.floats(0.5, 300), st.randoms())
@settings(max_examples=60, deadline=None)
def test_it_is_at_most_the_bound_and_does_not_know_names(counts, sigma, random):
    orders = list(votes.ORDERS[::6])
    got = exact_votes.exact_gnmax_rdp([counts, random.sample(counts, len(counts))], sigma, orders)
    assert np.all(got[0] == got[1])
    assert np.all(got[0] >= 0)
    assert np.all(got[0] <= votes.gnmax_rdp(votes.log_error([counts], "gaussian", sigma), sigma, orders)[0])
    assert np.all(np.diff(got[0]) >= -1e-9 * got[0][1:] - 1e-18)


def test_each_histogram_is_done_once_and_progress_is_told():
    reports = []
    counts = [[5, 1, 0], [0, 5, 1], [6, 0, 0], [1, 0, 5]]
    got = exact_votes.exact_gnmax_rdp(counts, 2.0, [2.0, 3.0], lambda done, total: reports.append((done, total)))
    assert reports == [(1, 2), (2, 2)]
    assert np.all(got[0] == got[1])
    assert np.all(got[0] == got[3])
    assert got.shape == (4, 2)


def test_out_of_reach_the_older_bound_serves():
    for counts, sigma in [([10**6, 0], 1.0), ([300, 0], 0.01)]:
        bound = votes.gnmax_rdp(votes.log_error([counts], "gaussian", sigma), sigma, NINE)
        np.testing.assert_array_equal(exact_votes.exact_gnmax_rdp([counts], sigma, NINE), bound)
    high = exact_votes.exact_gnmax_rdp([[20, 5]], 2.0, [2.0, 1e5])[0]
    assert high[0] < 2.0 / 4
    assert high[1] == 1e5 / 4


def test_probabilities_sum_to_one():
    for counts in GOLDEN["histograms"].values():
        total = math.fsum(np.exp(log_probabilities(counts, 20.0)))
        assert total == pytest.approx(1.0, abs=1e-12)
