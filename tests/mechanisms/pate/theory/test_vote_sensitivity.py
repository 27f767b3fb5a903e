"""The table of the two largest counts: golden figures, all histograms of small ensembles, changed teachers."""

import itertools
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.mechanisms.pate.theory import vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "pate.json").read_text(encoding="utf-8"))
TWO = GOLDEN["own_two_stat"]
MNIST = Voting(TWO["N"], TWO["m"], "gaussian", TWO["sigma2"], VoteSelection(TWO["T"], TWO["sigma1"]))


def test_golden_entries():
    table = vote_sensitivity.query_costs(MNIST, TWO["order"])
    local = vote_sensitivity.local_sensitivities(table)
    for entry in TWO["entries"]:
        first, second = np.array([entry["n1"]]), np.array([entry["n2"]])
        assert vote_sensitivity.is_possible(first, second, MNIST)[0]
        assert vote_sensitivity.log_error(first, second, MNIST)[0] == pytest.approx(entry["logq_bound"], rel=1e-10)
        assert table[first[0], second[0]] == pytest.approx(entry["g"], rel=1e-9)
        assert local[first[0], second[0]] == pytest.approx(entry["ls0"], rel=1e-7)


def test_hardly_any_noise():
    """Two teachers' difference here is all there is, and the reference code sees none."""
    record = next(row for row in GOLDEN["reference_pitfalls"] if row["id"] == "ls_vs_core_beta_mismatch_small_sigma")
    table = vote_sensitivity.query_costs(Voting(10, 3, "gaussian", 0.5), 1.5)
    assert vote_sensitivity.local_sensitivities(table)[5, 5] >= record["brute_force_of_core_rdp_gaussian"] * (1 - 1e-9)


SMALL = [
    Voting(teachers, classes, family, multiplier, selection)
    for teachers, classes in ((8, 3), (7, 4), (9, 2))
    for family, multiplier in (("gaussian", 1.5), ("gaussian", 6.0), ("laplace", 1.0))
    for selection in (None, VoteSelection(5.0, 2.0))
]
named = pytest.mark.parametrize("voting", SMALL, ids=lambda v: f"{v.teachers}-{v.classes}-{v.family}-{v.multiplier}")


def histograms(voting):
    every = itertools.product(range(voting.teachers + 1), repeat=voting.classes)
    return [c for c in every if sum(c) == voting.teachers and list(c) == sorted(c, reverse=True)]


def neighbours(counts):
    for i, j in itertools.permutations(range(len(counts)), 2):
        if counts[i]:
            yield tuple(sorted((n - (k == i) + (k == j) for k, n in enumerate(counts)), reverse=True))


@named
def test_the_table_is_the_largest_cost_of_all_histograms_with_a_pair(voting):
    order = 4.0
    table = vote_sensitivity.query_costs(voting, order)
    largest = defaultdict(float)
    for counts in histograms(voting):
        cost = votes.bound_rdp([counts], voting, [order])[0, 0]
        largest[counts[:2]] = max(largest[counts[:2]], cost)
    assert {tuple(pair) for pair in np.argwhere(~np.isnan(table)).tolist()} == set(largest)
    for pair, cost in largest.items():
        assert table[pair] == pytest.approx(cost, rel=1e-9)


@named
def test_sensitivities_cover_all_data_sets_within_a_distance(voting):
    table = vote_sensitivity.query_costs(voting, 4.0)
    local = vote_sensitivity.local_sensitivities(table)
    changes = {
        counts: max(abs(table[counts[:2]] - table[other[:2]]) for other in neighbours(counts))
        for counts in histograms(voting)
    }
    for counts in changes:
        got = vote_sensitivity.at_distances(local, np.array([counts[0]]), np.array([counts[1]]))
        reached = {counts}
        for d in range(voting.teachers + 1):
            assert got[d] >= max(changes[other] for other in reached)
            reached |= {other for one in reached for other in neighbours(one)}
        assert np.all(np.diff(got) >= 0)
        assert got[-1] == np.max(local)


def naive(local, pairs, d):
    return sum(local[max(0, a - d) : a + d + 1, max(0, b - d) : b + d + 1].max() for a, b in pairs)


@pytest.mark.parametrize(("teachers", "classes"), [(40, 5), (33, 2), (7, 12), (1, 2), (2, 3)])
def test_squares_of_all_sizes(teachers, classes):
    """Against maxima written down as such, of a table of nothing but noise."""
    generator = np.random.default_rng(teachers)
    local = generator.random((teachers + 1, teachers // 2 + 1)) ** 8
    counts = generator.multinomial(teachers, [0.6, *[0.4 / (classes - 1)] * (classes - 1)], size=30)
    first, second = vote_sensitivity.two_largest(counts)
    got = vote_sensitivity.at_distances(local, first, second)
    want = [naive(local, list(zip(first, second, strict=True)), d) for d in range(teachers + 1)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


@given(st.randoms(use_true_random=False), st.sampled_from(SMALL), st.floats(0.01, 2))
@settings(max_examples=150, deadline=None)
def test_one_teacher_changes_no_more_than_is_claimed(random, voting, beta):
    """A teacher votes anew on every query: the sum moves by LS(0) at most, the logarithm of smooth sensitivity by β."""
    queries = 5
    ballots = np.array([random.choices(range(voting.classes), k=queries) for _ in range(voting.teachers)])
    ballots[: random.randrange(voting.teachers)] = random.randrange(voting.classes)
    other = ballots.copy()
    other[random.randrange(voting.teachers)] = random.choices(range(voting.classes), k=queries)
    table = vote_sensitivity.query_costs(voting, 3.0)
    local = vote_sensitivity.local_sensitivities(table)
    sums, smooths, sensitivities = [], [], []
    for data in (ballots, other):
        counts = np.stack([np.bincount(column, minlength=voting.classes) for column in data.T])
        pairs = vote_sensitivity.two_largest(counts)
        ls = vote_sensitivity.at_distances(local, *pairs)
        sums.append(table[pairs].sum())
        sensitivities.append(ls)
        smooths.append(vote_sensitivity.log_smooth(ls, beta))
        assert sums[-1] >= votes.bound_rdp(counts, voting, [3.0]).sum() * (1 - 1e-12)
        assert smooths[-1] >= math.log(max(ls[0], vote_sensitivity.SMALLEST))
    assert abs(sums[0] - sums[1]) <= min(sensitivities[0][0], sensitivities[1][0]) * (1 + 1e-12)
    assert abs(smooths[0] - smooths[1]) <= beta * (1 + 1e-12)
    assert np.all(sensitivities[0][:-1] <= sensitivities[1][1:] * (1 + 1e-12))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(1e-4, 3), st.floats(1e-4, 3))
def test_smooth_sensitivity_does_not_grow_with_beta(values, one, other):
    sensitivities = np.maximum.accumulate(values)
    low, high = sorted((one, other))
    assert vote_sensitivity.log_smooth(sensitivities, high) <= vote_sensitivity.log_smooth(sensitivities, low)


def test_a_constant_cost_has_the_smallest_sensitivity():
    assert vote_sensitivity.log_smooth(np.zeros(5), 0.1) == math.log(vote_sensitivity.SMALLEST)


def test_a_table_beyond_all_measure_is_refused():
    with pytest.raises(ValueError, match="the most is"):
        vote_sensitivity.query_costs(Voting(10**6, 10, "gaussian", 100.0), 2.0)


def test_thousands_of_teachers():
    """Cells of the table worked out by hand, and squares of it against the naive ones."""
    voting = Voting(2000, 150, "gaussian", 60.0, VoteSelection(1200, 500.0))
    table = vote_sensitivity.query_costs(voting, 20.0)
    local = vote_sensitivity.local_sensitivities(table)
    for counts in ([1700, 200, 100, *[0] * 147], [800, 700, 500, *[0] * 147], [1000, 100, *[100] * 9, *[0] * 139]):
        assert table[counts[0], counts[1]] == pytest.approx(votes.bound_rdp([counts], voting, [20.0])[0, 0], rel=1e-9)
    pairs = [(1700, 200), (800, 700), (1000, 100), (2000, 0)]
    got = vote_sensitivity.at_distances(local, *np.array(pairs).T)
    for d in (0, 1, 2, 3, 17, 64, 65, 500, 1999):
        assert got[d] == pytest.approx(naive(local, pairs, d), rel=1e-12)
