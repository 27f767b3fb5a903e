"""Costs of noisy votes: golden figures, all histograms of small ensembles by quadrature, and what must hold for any."""

import hashlib
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

from dprecipe.mechanisms.pate.theory import vote_analysis, votes
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.privacy import conversion, gdp

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "pate.json").read_text(encoding="utf-8"))
NINE = GOLDEN["meta"]["orders9"]
LONG = [*np.arange(2, 101, 0.5), *np.logspace(2, math.log10(500), 100)]
DELTAS = (1e-5, 1e-8)


def check_rdp(statistic_Q, selection, orders):
    """Of the selection alone: the answer costs nothing."""
    return votes.selected_rdp(statistic_Q, selection, np.zeros((len(statistic_Q), 1)), orders)


def records(section):
    rows = GOLDEN[section]
    assert rows
    return [pytest.param(row, id=str(row.get("id", index))) for index, row in enumerate(rows)]


def histogram(record):
    return np.array([GOLDEN["histograms"][record["hist"]]])


def close(got, want, rel=1e-9):
    np.testing.assert_allclose(got, want, rtol=rel, atol=1e-300)


# Golden figures of one query


@pytest.mark.parametrize("record", records("gnmax_single"))
def test_gnmax(record):
    log_q = votes.log_error(histogram(record), "gaussian", record["sigma"])
    close(log_q, [float(record["logq_mpmath"])], rel=1e-10)
    close(votes.gnmax_rdp(log_q, record["sigma"], NINE)[0], [float(value) for value in record["rdp_dep_mpmath"]])
    close(votes.independent_answer(Voting(250, 10, "gaussian", record["sigma"]), NINE), record["rdp_ind"])


@pytest.mark.parametrize("record", records("rdp_gaussian_grid"))
def test_theorem_6(record):
    close(votes.gnmax_rdp(np.array([record["logq"]]), record["sigma"], NINE)[0], record["rdp"])


@pytest.mark.parametrize("record", records("lnmax_single"))
def test_lnmax(record):
    scale = record["laplace_scale_b"]
    log_q = votes.log_error(histogram(record), "laplace", scale)
    close(log_q, [record["logq"]], rel=1e-10)
    close(votes.lnmax_rdp(log_q, scale, NINE)[0], record["rdp"])
    # the moments of 2017, l D_(l+1), computed there without logarithms: digits are lost where they are small
    moments = votes.lnmax_rdp(log_q, scale, range(2, 10))[0] * np.arange(1, 9)
    np.testing.assert_allclose(moments, record["logmgf_2017_l1to8"], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("record", records("threshold_single"))
def test_selection(record):
    selection = VoteSelection(record["T"], record["sigma1"])
    close(votes.log_pass([record["max"]], selection)[0], [record["log_pr_answered"]], rel=1e-10)
    got = check_rdp([record["max"]], selection, NINE)[0]
    close(got, record["own_exact_bernoulli"])
    close(votes.independent_check(selection, NINE), record["rdp_ind"])
    sound = record.get("own_rdp_with_logcdf", record["rdp_dep"])  # the reference's own bound, where it is one
    assert np.all(got <= np.array(sound) * (1 + 1e-12))


@pytest.mark.parametrize("record", records("own_confident_per_query"))
def test_selection_and_answer_together(record):
    counts = histogram(record)
    selection = VoteSelection(record["T"], record["sigma1"])
    voting = Voting(250, 10, "gaussian", record["sigma2"], selection)
    close(np.exp(votes.log_pass(counts.max(axis=1), selection)[0]), [record["pr_answered"]])
    close(check_rdp(counts.max(axis=1), selection, NINE)[0], record["own_exact_threshold"])
    close(votes.answer_rdp(counts, voting, NINE)[0], record["ref_step2"])
    close(votes.expected_cost(counts, voting, NINE), record["ref_expected_cost"])
    bound = votes.bound_rdp(counts, voting, NINE)[0]
    close(bound, record["own_rigorous_mixture_thm6"])
    assert np.all(bound <= np.array(record["sup_step1_plus_step2"]) * (1 + 1e-12))
    exact = votes.bound_rdp(counts, voting, NINE, answer_QA=np.array([record["own_exact_gnmax"]]))[0]
    close(exact, record["own_rigorous_mixture_exact"])


# Golden figures of sequences


def uniforms(seed, count):
    return (np.random.PCG64(seed).random_raw(count) >> np.uint64(11)) * 2.0**-53


def drawn(record):
    """The votes of a sequence by the recipe of the golden file, and each query's intended class."""
    queries, teachers, classes = record["Q"], record["N"], record["m"]
    table = uniforms(record["seed"], queries * (2 + teachers)).reshape(queries, 2 + teachers)
    agreement = (record["lo"] + (record["hi"] - record["lo"]) * table[:, :1])[:, 0]
    top = np.floor(table[:, 1] * classes).astype(int)
    draws, c = table[:, 2:], agreement[:, None]
    rest = np.maximum((draws - c) / (1 - c), 0.0)
    other = np.minimum(np.floor((classes - 1) * rest * rest * rest).astype(int), classes - 2)
    voted = np.where(draws < c, top[:, None], (top[:, None] + 1 + other) % classes)
    counts = np.zeros((queries, classes), np.int32)
    np.add.at(counts, (np.arange(queries)[:, None], voted), 1)
    digest = hashlib.sha256(np.ascontiguousarray(counts, "<i4").tobytes()).hexdigest()
    assert digest == record["votes_sha256_int32_le_C"]
    return counts, top


def assert_epsilons(want, rdp, orders=LONG):
    for delta in DELTAS:
        for name, kind in (("classic", "classic"), ("cks", "improved")):
            value, order = want[f"delta={delta}"][name]
            got = conversion.epsilon(orders, rdp, delta, kind)
            assert got.value == pytest.approx(value, abs=1e-9)
            assert got.order == pytest.approx(order, rel=1e-9)


@pytest.mark.parametrize("record", records("sequences"))
def test_sequences_of_gnmax(record):
    counts, _ = drawn(record)
    want = record["mechs"]["gnmax"]
    voting = Voting(record["N"], record["m"], "gaussian", want["sigma"])
    close(votes.log_error(counts, "gaussian", want["sigma"]).sum(), want["sum_logq"], rel=1e-10)
    close(votes.bound_rdp(counts, voting, NINE).sum(axis=0), want["rdp9"])
    assert_epsilons(want["eps_grid9"], votes.bound_rdp(counts, voting, NINE).sum(axis=0), NINE)
    assert_epsilons(want["eps_long"], votes.bound_rdp(counts, voting, LONG).sum(axis=0))
    independent = vote_analysis.independent_rdp(voting, len(counts), len(counts), LONG)
    assert_epsilons(want["eps_long_ind"], independent)
    for delta in DELTAS:
        mu = vote_analysis.independent_mu(voting, len(counts), len(counts))
        assert gdp.epsilon(mu, delta) == pytest.approx(want["own_gdp_ind"][f"delta={delta}"], abs=1e-9)


@pytest.mark.parametrize("record", records("sequences"))
def test_sequences_of_confident_gnmax(record):
    counts, _ = drawn(record)
    want = record["mechs"]["confident"]
    selection = VoteSelection(want["T"], want["sigma1"])
    voting = Voting(record["N"], record["m"], "gaussian", want["sigma2"], selection)
    pass_Q = np.exp(votes.log_pass(counts.max(axis=1), selection)[0])
    assert pass_Q.sum() == pytest.approx(want["expected_answered"], rel=1e-9)
    close(
        votes.expected_cost(counts, voting, NINE),
        np.array(want["rdp9_step1"]) + np.array(want["rdp9_step2_expected"]),
    )
    assert_epsilons(want["eps_long_expected"], votes.expected_cost(counts, voting, LONG))
    answered = uniforms(record["seed"] + 1000, len(counts)) < pass_Q
    assert hashlib.sha256(answered.astype(np.uint8).tobytes()).hexdigest() == want["answered_mask_sha256_uint8"]
    close(votes.answer_rdp(counts[answered], voting, NINE).sum(axis=0), want["rdp9_step2_realised"])
    # the golden totals charge the selections as Theorem 6 does; ours are exact
    checks = votes.expected_cost(counts, voting, LONG) - pass_Q @ votes.answer_rdp(counts, voting, LONG)
    assert_epsilons(want["eps_long_realised"], checks + votes.answer_rdp(counts[answered], voting, LONG).sum(axis=0))
    independent = vote_analysis.independent_rdp(voting, len(counts), want["answered"], LONG)
    assert_epsilons(want["eps_long_ind"], independent)
    for delta in DELTAS:
        mu = vote_analysis.independent_mu(voting, len(counts), want["answered"])
        assert gdp.epsilon(mu, delta) == pytest.approx(want["own_gdp_ind"][f"delta={delta}"], abs=1e-9)


@pytest.mark.parametrize("record", records("sequences"))
def test_sequences_of_interactive_gnmax(record):
    counts, top = drawn(record)
    want = record["mechs"]["interactive_step1"]
    queries, teachers, classes = record["Q"], record["N"], record["m"]
    draws = uniforms(record["seed"] + 2000, 2 * queries).reshape(queries, 2)
    sure = 0.1 + 0.85 * draws[:, 0]
    predicted = np.where(draws[:, 1] < 0.7, top, (top + 1) % classes)
    scores = np.repeat(((1 - sure) / (classes - 1))[:, None], classes, axis=1)
    scores[np.arange(queries), predicted] = sure
    statistic = (counts - teachers * scores).max(axis=1)
    selection = VoteSelection(want["T"], want["sigma1"])
    voting = Voting(teachers, classes, "gaussian", want["sigma2"], selection)
    pass_Q = np.exp(votes.log_pass(statistic, selection)[0])
    assert pass_Q.sum() == pytest.approx(want["expected_answered_unrounded"], rel=1e-9)
    rounded = np.floor(statistic + 0.5)  # as the golden costs are; the mechanism itself does not round
    want_nine = np.array(want["rdp9_step1"]) + np.array(want["rdp9_step2_expected"])
    close(votes.expected_cost(counts, voting, NINE, statistic_Q=rounded), want_nine)
    assert_epsilons(
        want["eps_long_expected"],
        votes.expected_cost(counts, voting, LONG, statistic_Q=rounded),
    )
    both = check_rdp(statistic, selection, NINE) + votes.answer_rdp(counts, voting, NINE)
    assert np.all(votes.bound_rdp(counts, voting, NINE, statistic_Q=statistic) <= both * (1 + 1e-12))


@pytest.mark.parametrize("record", records("sequences"))
def test_sequences_of_lnmax(record):
    counts, _ = drawn(record)
    want = record["mechs"]["lnmax_core"]
    voting = Voting(record["N"], record["m"], "laplace", want["b"])
    close(votes.bound_rdp(counts, voting, NINE).sum(axis=0), want["rdp9"])
    assert_epsilons(want["eps_long"], votes.bound_rdp(counts, voting, LONG).sum(axis=0))
    if "lnmax_2017" in record["mechs"]:
        old = record["mechs"]["lnmax_2017"]
        rdp = votes.bound_rdp(counts, Voting(record["N"], record["m"], "laplace", 1 / old["gamma"]), range(2, 10)).sum(
            axis=0
        )
        close(rdp * np.arange(1, 9), old["total_logmgf_l1to8"])
        for delta in DELTAS:
            got = conversion.epsilon(range(2, 10), rdp, delta, "classic").value
            assert got == pytest.approx(old["eps"][f"delta={delta}"], abs=1e-9)


@pytest.mark.parametrize("record", records("conversion"))
def test_conversions(record):
    for delta, want in record["eps"].items():
        for name, kind in (("classic", "classic"), ("cks", "improved")):
            got = conversion.epsilon(NINE, np.array(record["rdp"]), float(delta.removeprefix("delta=")), kind)
            assert [got.value, got.order] == pytest.approx(want[name], abs=1e-9)


# What the published reference code gets wrong


def pitfall(name):
    return next(row for row in GOLDEN["reference_pitfalls"] if row["id"] == name)


def test_integer_orders_are_orders():
    got = votes.lnmax_rdp(np.array([-0.1]), 2 / 0.1, [2, 4, 8])[0]
    close(got, pitfall("int_orders_rdp_pure_eps")["correct"])


def test_a_selection_that_surely_passes_is_not_free():
    got = check_rdp([250], VoteSelection(0, 1.0), [256.0])[0, 0]
    assert got >= pitfall("threshold_underflow")["lower_bound_on_truth"] * (1 - 1e-9)


def test_theorem_3_of_2017_only_under_its_condition():
    got = votes.lnmax_rdp(np.array([math.log(0.45694242136999524)]), 2.0, [2.0])[0, 0]
    assert got == min(0.5 * 1 * 2, 1)


def test_the_statistic_is_not_rounded():
    """Rounding half to even takes 0.5 and 1.5, one vote apart, to 0 and 2."""
    assert [round(0.5), round(1.5)] == pitfall("round_half_even")["reference_returns"]
    got = votes.log_pass([0.5, 1.5], VoteSelection(1.0, 2.0))[0]
    np.testing.assert_allclose(got, stats.norm.logcdf([-0.25, 0.25]), rtol=1e-14)


# All histograms of small ensembles


def integrated(counts, family, multiplier):
    """Pr[class j has most], by Gauss-Legendre between the counts and far beyond them."""
    distribution = stats.norm(scale=multiplier) if family == "gaussian" else stats.laplace(scale=multiplier)
    reach = (10 if family == "gaussian" else 45) * multiplier
    ends = sorted({min(counts) - reach, *map(float, counts), max(counts) + reach})
    nodes, weights = np.polynomial.legendre.leggauss(24)
    edges = np.unique(
        np.concatenate(
            [np.linspace(a, b, 2 + math.ceil((b - a) / multiplier)) for a, b in itertools.pairwise(ends)],
        )
    )
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    x = (middle[:, None] + half[:, None] * nodes).ravel()
    w = (half[:, None] * weights).ravel()
    below, at = distribution.cdf(x - np.array(counts)[:, None]), distribution.pdf(x - np.array(counts)[:, None])
    others = [np.prod(np.delete(below, j, axis=0), axis=0) for j in range(len(counts))]
    return np.array([np.sum(w * at[j] * others[j]) for j in range(len(counts))])


def outcomes(counts, voting, memory={}):  # noqa: B006
    """Probabilities of all outcomes: the classes, and no answer."""
    key = tuple(counts), voting
    if key not in memory:
        classes = integrated(counts, voting.family, voting.multiplier)
        assert classes.sum() == pytest.approx(1, abs=1e-12)
        if voting.selection is None:
            memory[key] = classes
        else:
            above = (max(counts) - voting.selection.threshold) / voting.selection.multiplier
            memory[key] = np.append(stats.norm.cdf(above) * classes, stats.norm.cdf(-above))
    return memory[key]


def histograms(teachers, classes):
    """All of them, up to the names of the classes."""
    every = itertools.product(range(teachers, -1, -1), repeat=classes)
    return [c for c in every if sum(c) == teachers and sorted(c, reverse=True) == list(c)]


def moved(counts):
    for i, j in itertools.permutations(range(len(counts)), 2):
        if counts[i]:
            yield tuple(n - (k == i) + (k == j) for k, n in enumerate(counts))


def renyi(p, q, order):
    return np.logaddexp.reduce(order * np.log(p) + (1 - order) * np.log(q)) / (order - 1)


SMALL = [(6, 3), (7, 2), (4, 4)]
ORDERS = [1.5, 2.0, 4.0, 12.0, 40.0]
CASES = [
    Voting(teachers, classes, family, multiplier, selection)
    for teachers, classes in SMALL
    for family, multipliers in (("gaussian", (0.8, 2.0, 8.0)), ("laplace", (0.4, 1.0, 6.0)))
    for multiplier in multipliers
    for selection in (None, VoteSelection(4.0, 0.7), VoteSelection(2.0, 4.0))
]


@pytest.mark.parametrize("voting", CASES, ids=lambda v: f"{v.teachers}-{v.classes}-{v.family}-{v.multiplier}")
def test_no_pair_of_neighbours_exceeds_the_claims(voting):
    """Data-independent bounds in both directions, data-dependent ones with this data set first."""
    everywhere = votes.independent_answer(voting, ORDERS)
    if voting.selection is not None:
        everywhere = everywhere + votes.independent_check(voting.selection, ORDERS)
    every = histograms(voting.teachers, voting.classes)
    here = dict(zip(every, votes.bound_rdp(every, voting, ORDERS), strict=True))
    errors = dict(zip(every, votes.log_error(every, voting.family, voting.multiplier), strict=True))
    pairs = 0
    for counts in every:
        p = integrated(counts, voting.family, voting.multiplier)
        assert np.delete(p, np.argmax(counts)).sum() <= math.exp(errors[counts]) * (1 + 1e-9) + 1e-15
        for other in moved(counts):
            pairs += 1
            for index, order in enumerate(ORDERS):
                exact = renyi(outcomes(counts, voting), outcomes(other, voting), order)
                assert exact <= everywhere[index] * (1 + 1e-9) + 1e-12
                assert exact <= here[counts][index] * (1 + 1e-9) + 1e-12
    assert pairs >= 7


def test_the_bound_is_one_sided():
    """The reverse divergence does exceed it: whoever claims symmetry is wrong."""
    voting = Voting(6, 3, "gaussian", 0.8)
    counts, other = (6, 0, 0), (5, 1, 0)
    bound = votes.bound_rdp([counts], voting, [2.0])[0, 0]
    assert renyi(outcomes(counts, voting), outcomes(other, voting), 2.0) <= bound
    assert renyi(outcomes(other, voting), outcomes(counts, voting), 2.0) > 1.5 * bound


def test_selection_against_many_digits():
    for statistic, selection, order in [
        (1000, VoteSelection(3500, 1500.0), 1.5),
        (4000, VoteSelection(1000, 500.0), 2.0),
        (12.25, VoteSelection(10, 3.0), 1.01),
        (250, VoteSelection(0, 5.0), 900.0),
    ]:
        with mp.workdps(600):

            def bit(x, selection=selection):
                return mp.ncdf((mp.mpf(x) - selection.threshold) / selection.multiplier)

            a, p = mp.mpf(order), bit(statistic)
            both = [bit(statistic - 1), bit(statistic + 1)]
            want = max(mp.log(p**a * q ** (1 - a) + (1 - p) ** a * (1 - q) ** (1 - a)) / (a - 1) for q in both)
        assert check_rdp([statistic], selection, [order])[0, 0] == pytest.approx(float(want), rel=1e-11)


# What must hold for any votes


@st.composite
def ensembles(draw):
    classes = draw(st.integers(2, 12))
    counts = draw(st.lists(st.integers(0, 400), min_size=classes, max_size=classes).filter(any))
    family = draw(st.sampled_from(["gaussian", "laplace"]))
    selection = draw(
        st.one_of(st.none(), st.builds(VoteSelection, st.floats(0, 500), st.floats(0.3, 300))),
    )
    return counts, Voting(sum(counts), classes, family, draw(st.floats(0.3, 200)), selection)


MANY = list(votes.ORDERS)


@given(ensembles())
def test_bounds_are_at_most_the_independent_ones_and_grow_with_the_order(ensemble):
    counts, voting = ensemble
    bound = votes.bound_rdp([counts], voting, MANY)[0]
    answer = votes.answer_rdp([counts], voting, MANY)[0]
    assert np.all(bound >= 0)
    assert np.all(np.isfinite(bound))
    assert np.all(answer <= votes.independent_answer(voting, MANY) * (1 + 1e-14))
    limit = answer
    if voting.selection is not None:
        check = check_rdp([max(counts)], voting.selection, MANY)[0]
        assert np.all(check <= votes.independent_check(voting.selection, MANY) * (1 + 1e-10))
        limit = check + answer
    assert np.all(bound <= limit * (1 + 1e-10))
    assert np.all(np.diff(bound) >= -1e-10 * bound[1:] - 1e-300)  # next to 0, doubles have few digits


@given(ensembles(), st.randoms())
def test_names_of_classes_do_not_matter(ensemble, random):
    counts, voting = ensemble
    other = random.sample(counts, len(counts))
    np.testing.assert_allclose(
        votes.bound_rdp([counts], voting, NINE), votes.bound_rdp([other], voting, NINE), rtol=1e-9
    )


@given(ensembles())
def test_a_wider_gap_costs_no_more(ensemble):
    """A vote that moves from another class to the plurality, where the bound is data-dependent."""
    counts, voting = ensemble
    counts = sorted(counts)
    if counts[-2] == 0:
        return
    wider = [*counts[:-2], counts[-2] - 1, counts[-1] + 1]
    before, after = (votes.answer_rdp([c], voting, NINE)[0] for c in (counts, wider))
    assert np.all(after <= before * (1 + 1e-12))


@given(st.floats(0.5, 300), st.floats(-3000, -1e-3), st.floats(1e-3, 3000))
def test_the_bound_grows_with_the_error(sigma, log_q, more):
    """So an upper bound of the error may be used."""
    log_qs = np.array([log_q - more, log_q])
    for rows in (votes.gnmax_rdp(log_qs, sigma, NINE), votes.lnmax_rdp(log_qs, sigma, NINE)):
        assert np.all(rows[0] <= rows[1] * (1 + 1e-12))


@given(ensembles())
@settings(max_examples=50)
def test_conversions_of_a_bound(ensemble):
    counts, voting = ensemble
    rdp = votes.bound_rdp([counts], voting, MANY)[0]
    assert conversion.epsilon(MANY, rdp, 1e-5).value <= conversion.epsilon(MANY, rdp, 1e-5, "classic").value


@pytest.mark.parametrize(("gap", "sigma"), [(10**6, 0.5), (5000, 1.0), (10**6, 1e-3)])
def test_hopeless_underflow_is_not_certainty(gap, sigma):
    log_q = votes.log_error([[gap, 0]], "gaussian", sigma)
    assert np.isfinite(log_q[0])
    bound = votes.gnmax_rdp(log_q, sigma, [2.0, 1e12])[0]
    assert bound[0] == 0.0
    assert bound[1] == 1e12 / sigma**2


# Input


def test_counts_are_checked():
    voting = Voting(5, 3, "gaussian", 1.0)
    np.testing.assert_array_equal(votes.check_counts([[3.0, 2.0, 0.0]], voting), [[3, 2, 0]])
    for counts, message in [
        ([[3, 2]], "3 classes"),
        ([3, 2, 0], "3 classes"),
        ([[3, 2, 0], [3, 1, 0]], "query 1 has 4 votes of 5 teachers"),
        ([[6, -1, 0]], "whole counts >= 0"),
        ([[2.5, 2.5, 0]], "whole counts >= 0"),
        ([[math.nan, 5, 0]], "whole counts >= 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            votes.check_counts(counts, voting)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_scales_are_checked(bad):
    with pytest.raises(ValueError, match="multiplier"):
        Voting(5, 3, "gaussian", bad)
    with pytest.raises(ValueError, match="multiplier"):
        VoteSelection(3.0, bad)
    with pytest.raises(ValueError, match="threshold"):
        VoteSelection(math.nan if bad <= 0 else bad * math.inf, 1.0)
    with pytest.raises(ValueError, match="family"):
        Voting(5, 3, "cauchy", 1.0)
    with pytest.raises(ValueError, match="classes"):
        Voting(5, 1, "gaussian", 1.0)


def test_nothing_asked_costs_nothing():
    voting = Voting(5, 3, "gaussian", 1.0, VoteSelection(3.0, 1.0))
    nothing = np.zeros((0, 3), dtype=int)
    assert votes.bound_rdp(nothing, voting, NINE).shape == (0, 9)
