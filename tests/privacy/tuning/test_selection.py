"""Profile bounds of the best of runs: exact selections enumerated, reference values, and what may never be undercut."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from dprecipe.privacy.hockey_stick import HockeyStick
from dprecipe.privacy.tuning.base import gaussian_curve
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns, PoissonRuns, RunDistribution
from dprecipe.privacy.tuning.selection import best_of_runs, least_epsilon, simple_epsilon

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tuning.json").read_text(encoding="utf-8"))["records"]


def records(group: str):
    result = [record for record in GOLDEN if record["group"] == group]
    assert result
    return pytest.mark.parametrize("record", result, ids=lambda record: record["id"])


def runs_of(inputs) -> RunDistribution:
    if inputs["kind"] == "tnb":
        return NegativeBinomialRuns(*inputs["par"])
    return PoissonRuns(inputs["par"]) if inputs["kind"] == "poisson" else FixedRuns(inputs["par"])


def selected(mu: float, runs: RunDistribution) -> HockeyStick:
    curve = gaussian_curve(mu)
    return best_of_runs(curve, curve, runs)


@records("tuning_profile_full")
def test_the_full_bound_is_that_of_the_reference(record) -> None:
    inputs = record["inputs"]
    epsilon = least_epsilon(selected(inputs["mu"], runs_of(inputs)), inputs["delta"])
    assert record["value"] * (1 - 1e-4) <= epsilon <= record["value"] * 1.002


@records("tuning_profile_simple")
def test_the_closed_form_is_that_of_the_reference(record) -> None:
    inputs, curve = record["inputs"], gaussian_curve(record["inputs"]["mu"])
    result = simple_epsilon((curve, curve), NegativeBinomialRuns(inputs["eta"], inputs["gamma"]), inputs["delta"])
    assert [result.epsilon, result.first, result.second] == pytest.approx(record["value"], rel=2e-6)
    assert result.epsilon >= record["value"][0] * (1 - 1e-9)


@records("tuning_exact_gaussian_score")
def test_no_bound_is_below_a_selection_by_the_output_itself(record) -> None:
    inputs = record["inputs"]
    assert float(selected(inputs["mu"], runs_of(inputs)).at(np.array(inputs["eps"]))) >= record["value"]


@records("tuning_adversarial_score_delta")
def test_the_bound_is_tight_for_the_worst_score(record) -> None:
    inputs = record["inputs"]
    delta = float(selected(inputs["mu"], runs_of(inputs)).at(np.array(inputs["eps"])))
    assert delta >= record["value"] * (1 - 1e-6)
    if inputs["kind"] == "tnb":
        assert delta <= 1.4 * record["value"]  # 0.5 % of ε


def finite_curve(p: np.ndarray, q: np.ndarray) -> HockeyStick:
    """δ(ε) of P against Q, at the losses (between which it is linear in exp(ε)) and beyond."""
    e = np.unique(np.concatenate([np.log(p / q), [-30.0, 30.0]]))
    return HockeyStick(e, np.maximum(p[None, :] - np.exp(e)[:, None] * q[None, :], 0).sum(axis=1))


def exact_delta(p: np.ndarray, q: np.ndarray, runs: RunDistribution, epsilon: float) -> float:
    """Outcomes in increasing score: Pr[A <= y] = f(Q(<= y))."""
    a, b = (np.diff(runs.generate(np.minimum(np.append(0.0, np.cumsum(law)), 1.0))) for law in (p, q))
    return float(np.maximum(a - math.exp(epsilon) * b, 0).sum())


RUNS = [
    NegativeBinomialRuns.with_mean(0.0, 10.0),
    NegativeBinomialRuns(1.0, 0.2),
    NegativeBinomialRuns.with_mean(2.5, 4.0),
    PoissonRuns(3.0),
    FixedRuns(1),
    FixedRuns(5),
]


@pytest.mark.parametrize("runs", RUNS, ids=str)
def test_exact_selections_never_cost_more(runs: RunDistribution) -> None:
    """Random pairs on few outcomes, with every order of scores; and some of them come close."""
    rng, closest = np.random.default_rng(11), 0.0
    for _ in range(12):
        size = int(rng.integers(2, 5))
        p = rng.dirichlet(np.full(size, 0.7)) + 1e-4
        p, q = p / p.sum(), p * np.exp(rng.normal(0, rng.uniform(0.1, 1.5), size))
        q /= q.sum()
        curve, reverse = finite_curve(p, q), finite_curve(q, p)
        bound = best_of_runs(curve, reverse, runs)
        orders = list(itertools.permutations(range(size)))
        for epsilon in (0.0, 0.2, 0.7, 1.5, 3.0):
            exact = max(exact_delta(p[list(order)], q[list(order)], runs, epsilon) for order in orders)
            claimed = float(bound.at(np.array(epsilon)))
            assert exact <= claimed
            if claimed > 1e-9:
                closest = max(closest, exact / claimed)
        for delta in (0.3, 0.03, 0.003) if isinstance(runs, NegativeBinomialRuns) else ():
            simple = simple_epsilon((curve, reverse), runs, delta).epsilon
            assert max(exact_delta(p[list(order)], q[list(order)], runs, simple) for order in orders) <= delta
    assert closest > 0.8


def test_the_best_of_one_costs_what_one_costs() -> None:
    curve = gaussian_curve(0.5)
    best = best_of_runs(curve, curve, FixedRuns(1))
    e = np.linspace(0, 3, 7)
    assert (best.at(e) >= curve.at(e)).all()
    assert best.at(e) == pytest.approx(curve.at(e), rel=1e-3)


def test_more_runs_cost_more_and_more_private_runs_less() -> None:
    by_mean = [least_epsilon(selected(0.3, NegativeBinomialRuns.with_mean(1.0, m)), 1e-5) for m in (2, 5, 20, 100)]
    assert by_mean == sorted(by_mean)
    by_mu = [least_epsilon(selected(mu, PoissonRuns(5.0)), 1e-5) for mu in (0.05, 0.2, 0.5, 1.5)]
    assert by_mu == sorted(by_mu)


@pytest.mark.parametrize("count", [5, 30, 1000])
def test_a_run_that_tells_everything_has_a_bound_all_the_same(count: int) -> None:
    """Every share of Q is one of all of Q': no line falls."""
    assert selected(30.0, FixedRuns(count)).at(np.array([0.0, 1.0])) == pytest.approx([1.0, 1.0])


def test_mass_at_an_infinite_loss_counts_as_often_as_there_are_runs() -> None:
    curve = HockeyStick(np.array([-1.0, 1.0]), np.array([1 - math.exp(-1) + 1e-4, 1e-4]))
    best = best_of_runs(curve, curve, NegativeBinomialRuns(1.0, 0.1))
    assert 1e-3 <= float(best.at(np.array(50.0))) <= 1.001e-3
