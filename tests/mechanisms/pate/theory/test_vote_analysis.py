"""The report on a list of queries: real votes, golden totals, currencies in their order."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from dprecipe.mechanisms.pate.theory import vote_analysis, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.privacy import gdp

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "pate.json").read_text(encoding="utf-8"))
FILE = Path(os.environ.get("DPRECIPE_DATA", "")) / "pate_mnist_votes.npz"
real = pytest.mark.skipif(
    "DPRECIPE_DATA" not in os.environ or not FILE.is_file(), reason="$DPRECIPE_DATA names no folder with the votes"
)
FIRST = np.array(GOLDEN["mnist_cnn6_first100"])
MNIST = Voting(250, 10, "gaussian", 40.0, VoteSelection(200, 150.0))


def votes_of(name, queries=640):
    with np.load(FILE, allow_pickle=False) as archive:
        return archive[f"votes_{name}"][:queries].astype(np.int64)


# ensemble, answers, ε of: the expected cost, Theorem 6, exact GNMax, whatever the data (classic, improved, GDP), GNMax
# on all queries. Figures with three decimals are to all of them, others as printed.
TABLE = [
    ("cnn6", 341, (1.585, 1.330), (1.582, 1.317), (1.125, 0.901), (3.46, 3.02, 2.79), (2.29, 1.96)),
    ("cnn30", 354, (1.452, 1.210), (1.436, 1.186), (1.048, 0.835), (3.53, 3.08, 2.85), (1.99, 1.70)),
    ("lr", 335, (1.672, 1.407), None, None, (None, None, 2.76), (2.47, 2.13)),
]


@real
@pytest.mark.parametrize(("name", "answers", "expected", "bound", "exact", "independent", "everything"), TABLE)
def test_real_mnist(name, answers, expected, bound, exact, independent, everything):
    counts = votes_of(name)
    got = vote_analysis.analyse_votes(counts, MNIST, 1e-5, answers=answers)
    assert got.queries == 640
    assert round(got.expected_answers) == answers
    assert round(got.answers_deviation, 1) == 12.3

    def figures(converted):
        return converted.classic.value, converted.improved.value

    assert figures(got.expected_cost) == pytest.approx(expected, abs=5.1e-4)
    if bound is not None:
        assert figures(got.bound) == pytest.approx(bound, abs=5.1e-4)
        assert figures(got.exact) == pytest.approx(exact, abs=5.1e-4)
    for value, want in zip((*figures(got.independent), got.independent_gdp), independent, strict=True):
        assert want is None or value == pytest.approx(want, abs=5.1e-3)
    plain = vote_analysis.analyse_votes(counts, Voting(250, 10, "gaussian", 40.0), 1e-5, exact=False)
    assert figures(plain.bound) == pytest.approx(everything, abs=5.1e-3)


@real
def test_golden_figures_of_real_votes():
    for record in GOLDEN["real_mnist"]:
        counts = votes_of(record["votes"].removeprefix("votes_"), record["queries"])
        long = [*np.arange(2, 101, 0.5), *np.logspace(2, np.log10(500), 100)]
        for delta in (1e-5, 1e-8):
            plain = Voting(250, 10, "gaussian", record["sigma2"])
            for voting, part, key in ((MNIST, "expected_cost", "confident_expected"), (plain, "bound", "gnmax_all")):
                got = vote_analysis.analyse_votes(counts, voting, delta, exact=False, orders=long)
                want = record[key][f"delta={delta}"]
                converted = getattr(got, part)
                assert [converted.classic.value, converted.classic.order] == pytest.approx(want["classic"], abs=1e-9)
                assert [converted.improved.value, converted.improved.order] == pytest.approx(want["cks"], abs=1e-9)
        assert vote_analysis.analyse_votes(counts, MNIST, 1e-5, exact=False).expected_answers == pytest.approx(
            record["expected_answered"], rel=1e-9
        )


@real
def test_answers_of_the_paper():
    """286 answers: where each ensemble has given as many on average, and what that cost."""
    for name, queries, costs in (("cnn6", 535, (1.437, 1.197)), ("cnn30", 514, (1.259, 1.037))):
        counts = votes_of(name, 2000)
        passed = np.exp(votes.log_pass(counts.max(axis=1), MNIST.selection)[0])
        assert int(np.argmax(passed.cumsum() >= 286)) + 1 == queries
        got = vote_analysis.analyse_votes(counts[:queries], MNIST, 1e-5, exact=False).expected_cost
        assert (got.classic.value, got.improved.value) == pytest.approx(costs, abs=5.1e-4)


@real
def test_golden_sensitivities_of_real_votes():
    record = GOLDEN["own_two_stat"]
    want, order = record["mnist_cnn6_first640"], record["order"]
    pairs = vote_sensitivity.two_largest(votes_of("cnn6"))
    table = vote_sensitivity.query_costs(MNIST, order)
    assert table[pairs].sum() == pytest.approx(want["F"], rel=1e-9)
    ls = vote_sensitivity.at_distances(vote_sensitivity.local_sensitivities(table), *pairs)
    for d, value in want["LS_at"].items():
        assert ls[int(d)] == pytest.approx(value, rel=1e-7)
    for scaled, value in want["smooth"].items():
        got = np.exp(vote_sensitivity.log_smooth(ls, float(scaled) / order))
        assert got == pytest.approx(value, rel=1e-7)


def test_currencies_are_in_their_order():
    reports = []
    got = vote_analysis.analyse_votes(
        FIRST, MNIST, 1e-5, orders=votes.ORDERS[::4], progress=lambda done, total: reports.append((done, total))
    )
    assert reports[-1][0] == reports[-1][1] == len(np.unique(np.sort(FIRST, axis=1), axis=0))
    for one in ("classic", "improved"):
        values = [getattr(getattr(got, part), one).value for part in ("exact", "bound", "independent")]
        assert values == sorted(values)
    for part in (got.exact, got.bound, got.expected_cost, got.independent):
        assert part.improved.value <= part.classic.value
        assert not part.improved.at_first
        assert not part.improved.at_last
    assert got.independent_gdp <= got.independent.improved.value


def test_fewer_answers_cost_less_whatever_the_data():
    few, all_ = (
        vote_analysis.analyse_votes(FIRST, MNIST, 1e-5, answers=answers, exact=False) for answers in (10, None)
    )
    assert few.independent_gdp < all_.independent_gdp
    assert few.independent_gdp == gdp.epsilon(np.sqrt(100 / 150**2 + 2 * 10 / 40**2), 1e-5)
    assert few.independent.improved.value < all_.independent.improved.value
    assert few.bound == all_.bound


def test_laplace_votes_have_no_gaussian_figures():
    got = vote_analysis.analyse_votes(FIRST, Voting(250, 10, "laplace", 20.0), 1e-5)
    assert got.exact is None
    assert got.independent_gdp is None
    assert got.expected_answers == 100
    assert got.answers_deviation == 0
    assert got.expected_cost == got.bound  # nothing is left to chance
    assert got.bound.classic.value < got.independent.classic.value
    with pytest.raises(ValueError, match="no Gaussian"):
        vote_analysis.independent_mu(Voting(250, 10, "laplace", 20.0), 1, 1)


def test_input_is_checked():
    with pytest.raises(ValueError, match="of 240 teachers"):
        vote_analysis.analyse_votes(FIRST, Voting(240, 10, "gaussian", 40.0), 1e-5)
    for answers, delta in ((101, 1e-5), (-1, 1e-5), (3, 0.0), (3, float("nan"))):
        with pytest.raises(ValueError, match="expected answers"):
            vote_analysis.analyse_votes(FIRST, MNIST, delta, answers=answers)
    assert vote_analysis.analyse_votes(FIRST[:0], MNIST, 1e-5).expected_answers == 0
