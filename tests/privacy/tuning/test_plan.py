"""From a total to one run: reference values, the safe side, and time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dprecipe.privacy import accountants, calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.tuning import plan
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tuning.json").read_text(encoding="utf-8"))["records"]
PLANS = [record for record in GOLDEN if record["group"] == "tuning_plan"]
ADD = Neighbouring.ADD_OR_REMOVE_ONE
GEOMETRIC = ("negative_binomial", 10.0, 1.0)


def solve_noise(epsilon: float, *others: Charge) -> float:
    """As a mechanism's account does it."""
    return calibrate.noise_multiplier(
        lambda sigma: [*others, plan.select_best(mnist(sigma), *GEOMETRIC)], epsilon, 1e-5, ADD, "pld"
    )


def mnist(sigma: float) -> tuple[Charge, ...]:
    return (Charge(PoissonGaussian(1024 / 60_000, sigma), 1172),)


@pytest.mark.parametrize(
    "record",
    [record if place % 12 == 0 else pytest.param(record, marks=pytest.mark.slow) for place, record in enumerate(PLANS)],
    ids=lambda record: record["id"],
)
def test_what_one_run_may_cost(record) -> None:
    inputs = record["inputs"]
    runs = NegativeBinomialRuns.with_mean(inputs["eta"], inputs["mean"])
    simple, rdp, grid = record["value"]
    result = {b: plan.base_budget(inputs["total"], 1e-5, runs, b).epsilon for b in ("simple", "rdp", "full")}
    assert result["simple"] == pytest.approx(simple, rel=1e-4)
    assert result["rdp"] == pytest.approx(rdp, rel=2e-3)
    assert result["simple"] < result["full"] < 1.15 * result["simple"]
    composed = plan.base_budget(inputs["total"], 1e-5, FixedRuns(inputs["mean"]), "composition").epsilon
    assert composed == pytest.approx(grid, rel=1e-4)


def test_the_budget_of_a_run_is_on_the_safe_side() -> None:
    runs = NegativeBinomialRuns(1.0, 0.1)
    budget = plan.base_budget(1.0, 1e-5, runs)
    assert accountants.epsilon([Charge(Gaussian(1 / budget.mu), 1)], 1e-5, ADD, "gdp") == pytest.approx(budget.epsilon)
    for factor, fits in ((1.0, True), (1.001, False)):
        tuned = plan.select_best([Charge(Gaussian(1 / (factor * budget.mu)), 1)], *GEOMETRIC)
        profile = plan.SelectedProfile(tuned.event.base, runs, ADD)  # type: ignore[attr-defined]
        assert (profile.epsilon(1e-5).value <= 1.0) is fits
    with pytest.raises(ValueError, match="no bound"):
        plan.base_budget(1.0, 1e-5, runs, "composition")
    with pytest.raises(ValueError, match="expected 0 < epsilon"):
        plan.base_budget(-1.0, 1e-5, runs)


@pytest.mark.parametrize("total", [1.0, 8.0])
def test_noise_is_solved_for_within_the_budget_and_in_time(total: float) -> None:
    begin = time.process_time()
    sigma = solve_noise(total)
    assert time.process_time() - begin < 2
    cost = accountants.epsilon([plan.select_best(mnist(sigma), *GEOMETRIC)], 1e-5, ADD, "pld")
    assert 0.999 * total <= cost <= total


def test_stages_beside_it_leave_less() -> None:
    stage = Charge(Gaussian(8.0), 1)
    sigma = solve_noise(1.0, stage)
    assert sigma > 1.02 * solve_noise(1.0)
    tuned = plan.select_best(mnist(sigma), *GEOMETRIC)
    assert 0.999 <= accountants.epsilon([stage, tuned], 1e-5, ADD, "pld") <= 1.0
    with pytest.raises(calibrate.CalibrationError):
        solve_noise(1.0, Charge(Gaussian(1.0), 1))


def test_a_length_is_solved_for_within_the_budget() -> None:
    def make(steps: int) -> tuple[Charge, ...]:
        return (Charge(Gaussian(20.0), steps),)

    steps = plan.solve_length(make, GEOMETRIC, (1.0, 1e-5), ADD)
    for count, fits in ((steps, True), (steps + 1, False)):
        assert (accountants.epsilon([plan.select_best(make(count), *GEOMETRIC)], 1e-5, ADD, "pld") <= 1.0) is fits
    assert plan.solve_length(make, GEOMETRIC, (1.0, 1e-5), ADD, most=5) == min(5, steps)
    assert plan.solve_length(make, GEOMETRIC, (0.01, 1e-5), ADD) == 0
