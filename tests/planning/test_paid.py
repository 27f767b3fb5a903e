"""Paid steps in a plan: who gets which noise, and what all of it costs together."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

from dprecipe.cli.plan import spending_lines
from dprecipe.cli.schema import plan_schema
from dprecipe.contract.plan import Plan
from dprecipe.contract.stages import list_paid_steps
from dprecipe.faults import PlanRefused
from dprecipe.planning import rules
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import run_lengths
from dprecipe.recipe.read import read_text
from tests.schemas import validator_of

RECIPE = """\
recipe: dprecipe/v1
name: stages
data:
  train: {source: digits, split: train}
  size: 1438
  preprocess:
    - flatten: {}
    - dp_standardize: {columns: all, bounds: [0, 1], %s}
    - dp_pca: {components: 20, row_norm: 8.0, %s}
model: {kind: logistic_regression}
mechanism:
  kind: %s
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 128}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: 60
  optimizer: {kind: sgd, lr: 0.5}
"""
DPSGD = "dpsgd\n  clip: {norm: 1.0}"
ENCODED = "encoded\n  codebook: {source: gaussian, size: 5}"
NOISE = "mechanism.noise.multiplier"


def plan_of(first: str, second: str, *overrides: str, mechanism: str = DPSGD) -> Plan:
    return make_plan(read_text(RECIPE % (first, second, mechanism), "stages.yaml", overrides))


def ask_library(plan: Plan) -> float:
    """ε of the plan's Gaussian events by an independent library, at the scales that this test works out."""
    rate, training = 128 / 1438, plan.mechanism_plan.events[0]
    ((moments,), (covariance,)) = (stage.charges for stage in plan.stages)
    accountant = PLDAccountant()
    # 64 columns, each moved by (u, u² - 1) of norm 1 at most; noise of one scale on 128 numbers
    scale = moments.event.noise_scale  # type: ignore[attr-defined]
    assert scale == pytest.approx(8 * plan.stages[0].noise_multiplier)
    accountant.compose(GaussianDpEvent(scale / 8))
    accountant.compose(GaussianDpEvent(covariance.event.noise_scale))  # type: ignore[attr-defined]
    step = PoissonSampledDpEvent(rate, GaussianDpEvent(training.event.multipliers[0]))
    accountant.compose(SelfComposedDpEvent(step, training.count))
    return float(accountant.get_epsilon(1e-5))


def test_training_gets_the_noise_that_shares_leave() -> None:
    plan = plan_of("share: 0.1", "share: 0.2")
    assert 0.999 * 3 <= plan.guarantee.epsilon <= 3
    assert ask_library(plan) == pytest.approx(plan.guarantee.epsilon, rel=1e-3)
    assert [(part.kind, part.step) for part in plan.spending] == [
        ("dp_standardize", 1), ("dp_pca", 2), ("training", None),
    ]  # fmt: skip
    for part, share in zip(plan.spending, (0.1, 0.2), strict=False):
        assert 0.999 * share * 3 <= part.epsilon <= share * 3
    own = plan.spending[-1].epsilon
    assert 0.7 * 3 < own < 3  # more than what the shares leave of the sum, as they compose
    alone = make_plan(read_text(RECIPE % ("share: 0.1", "share: 0.2", DPSGD), "a.yaml", ["data.preprocess=[]"]))
    assert alone.solved[NOISE] < plan.solved[NOISE]
    assert alone.stages == alone.spending == ()


def test_one_noise_of_a_step_is_solved_where_that_of_training_is_given() -> None:
    plan = plan_of("noise_multiplier: auto", "noise_multiplier: 9.0", f"{NOISE}=1.5")
    solved = plan.solved["data.preprocess.1.dp_standardize.noise_multiplier"]
    assert plan.stages[0].noise_multiplier == solved
    assert 0.999 * 3 <= plan.guarantee.epsilon <= 3
    assert ask_library(plan) == pytest.approx(plan.guarantee.epsilon, rel=1e-3)


def test_a_share_beside_a_noise_that_is_solved_is_a_share_of_the_budget() -> None:
    plan = plan_of("share: 0.1", "noise_multiplier: auto", f"{NOISE}=1.5")
    assert 0.999 * 0.3 <= plan.spending[0].epsilon <= 0.3
    assert 0.999 * 3 <= plan.guarantee.epsilon <= 3


def test_the_length_and_the_budget_are_solved_for_everything_together() -> None:
    longest = plan_of("share: 0.1", "share: 0.2", f"{NOISE}=2.0", "training.steps=auto")
    events = longest.mechanism_plan.events[0]
    charges = [*longest.stage_charges, *longest.mechanism_plan.events]
    budget = longest.budget
    terms = (budget.delta, budget.neighbouring, budget.accountant)
    assert accountants.epsilon(charges, *terms) <= 3
    assert accountants.epsilon([*charges, *[type(events)(events.event, 1)]], *terms) > 3
    priced = plan_of("noise_multiplier: 20", "noise_multiplier: 9", f"{NOISE}=2.0", "budget.epsilon=auto")
    assert priced.budget.epsilon == priced.guarantee.epsilon
    assert ask_library(priced) == pytest.approx(priced.guarantee.epsilon, rel=1e-3)


@pytest.mark.parametrize("mechanism", [DPSGD, ENCODED], ids=["dpsgd", "encoded"])
def test_the_events_of_a_plan_are_those_of_its_steps_and_then_the_mechanisms(mechanism: str) -> None:
    plan = plan_of("share: 0.1", "share: 0.2", mechanism=mechanism)
    assert plan.events == run_lengths([*plan.stages[0].charges, *plan.stages[1].charges, *plan.mechanism_plan.events])
    assert plan.length.steps == 60
    assert plan.released[-1] == "constants of preprocessing"
    content = json.loads(json.dumps(plan.to_json()))
    validator_of(plan_schema).validate(content)
    assert [stage["events"] for stage in content["stages"]] == [
        [{"count": 1, "event": 0}], [{"count": 1, "event": 1}],
    ]  # fmt: skip
    assert plan_of("share: 0.1", "share: 0.21", mechanism=mechanism).digest != plan.digest


def test_a_plan_says_who_spends_what() -> None:
    plan = plan_of("share: 0.1", "share: 0.2")
    lines = spending_lines(plan)
    assert len(lines) == 5
    assert all(stage.kind in line for stage, line in zip(plan.stages, lines[1:], strict=False))
    assert f"{plan.guarantee.epsilon:g}" in lines[-1]


def refuse_too_tight() -> Plan:
    return plan_of("noise_multiplier: auto", "noise_multiplier: 9.0", f"{NOISE}=0.5")


def refuse_too_loose() -> Plan:
    return plan_of("noise_multiplier: auto", "noise_multiplier: 9.0", f"{NOISE}=9.0", "budget.epsilon=100000")


def refuse_overspent() -> Plan:
    return plan_of("noise_multiplier: 0.5", "noise_multiplier: 9.0")


@pytest.mark.parametrize(
    ("make", "code"), [(refuse_too_tight, "P106"), (refuse_too_loose, "P126"), (refuse_overspent, "P126")]
)
def test_what_does_not_fit_is_refused(make: Callable[[], Plan], code: str) -> None:
    with pytest.raises(PlanRefused) as refusal:
        make()
    (finding,) = refusal.value.findings
    assert finding.code == code
    assert finding.remedy


def test_one_free_variable_counts_the_noise_of_steps() -> None:
    recipe = read_text(RECIPE % ("noise_multiplier: auto", "share: 0.1", DPSGD), "a.yaml").recipe
    (finding,) = [finding for finding in rules.check(recipe) if finding.is_error]
    assert finding.code == "R302"
    assert "data.preprocess.1.dp_standardize.noise_multiplier" in finding.message


TABLE = """\
recipe: dprecipe/v1
name: table
data:
  train:
    source: csv
    path: people.csv
    columns:
      age: {kind: numeric, min: 0, max: 130}
      gain: {kind: numeric, min: 0, max: 1000000}
      hours: {kind: numeric, min: 0, max: 168}
    label: {column: rich, classes: 2}
  size: 20000
  preprocess:
    - dp_quantiles: {columns: [age, gain, hours], low: 0.1, share: 0.1}
    - dp_standardize: {columns: [age, gain, hours], share: 0.1}
    - dp_pca: {components: 2, row_norm: 3.0, share: 0.1}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 400}
budget: {epsilon: 2.0, delta: 1e-6}
training:
  steps: 200
  optimizer: {kind: sgd, lr: 0.5}
"""


def bounded_range(largest: float, step: float = 1e-4) -> privacy_loss_distribution.PrivacyLossDistribution:
    """Of the exponential mechanism: δ(ε) is the largest over the two-point pairs whose losses are t and t - r."""
    last = math.ceil(largest / step)
    grid = np.arange(-last, last + 1)
    t = np.linspace(0, largest, 2001)[1:-1, None]
    high = -np.expm1(t - largest) / (np.exp(t) - np.exp(t - largest))  # mass of the outcome with loss t, without
    deltas = np.maximum(high * (np.exp(t) - np.exp(step * grid)), 0)
    deltas += np.maximum((1 - high) * (np.exp(t - largest) - np.exp(step * grid)), 0)
    deltas = np.maximum(deltas.max(0), -np.expm1(np.minimum(step * grid, 0.0)))
    deltas[0], deltas[-1] = -np.expm1(-step * last), 0.0
    pmf = create_pmf_pessimistic_connect_dots(step, grid, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def compose_by_library(plan: Plan) -> float:
    """ε of quantiles, moments, matrix and training by dp-accounting's distributions; scales are those of the noise that
    is drawn, over sensitivities that this test works out."""
    low, high = (charge.event for charge in plan.stages[0].charges)
    (moments,), (matrix,) = (stage.charges for stage in plan.stages[1:])
    parts = []
    for quantile, level in ((low, 0.1), (high, 0.98)):
        # adding a unit moves |rank - level · all| by max(level, 1 - level) at most, up or down
        parts.append(bounded_range(2 * max(level, 1 - level) * quantile.rank_weight).self_compose(3))  # type: ignore[attr-defined]
    gaussian = privacy_loss_distribution.from_gaussian_mechanism
    # three columns, each moved by (u, u² - 1) of norm 1 at most; a matrix x xᵀ of norm 1
    parts.append(gaussian(moments.event.noise_scale / math.sqrt(3)))  # type: ignore[attr-defined]
    parts.append(gaussian(matrix.event.noise_scale))  # type: ignore[attr-defined]
    (step,) = plan.mechanism_plan.events
    training = gaussian(step.event.multipliers[0], sampling_prob=400 / 20000).self_compose(step.count)
    return float(functools.reduce(lambda one, other: one.compose(other), parts, training).get_epsilon_for_delta(1e-6))


@pytest.mark.parametrize("shares", [(0.1, 0.1, 0.1), pytest.param((0.02, 0.3, 0.05), marks=pytest.mark.slow)])
def test_one_epsilon_of_three_steps_and_training_is_that_of_an_independent_composition(
    shares: tuple[float, ...],
) -> None:
    keys = ("dp_quantiles", "dp_standardize", "dp_pca")
    overrides = [
        f"data.preprocess.{n}.{key}.share={share}" for n, (key, share) in enumerate(zip(keys, shares, strict=True))
    ]
    plan = make_plan(read_text(TABLE, "table.yaml", overrides))
    assert ask_budget(plan) == plan.guarantee.epsilon
    assert compose_by_library(plan) == pytest.approx(plan.guarantee.epsilon, rel=2e-3)


def ask_budget(plan: Plan) -> float:
    """ε of all events of a plan, checked to be within the budget and each part within its share."""
    budget = plan.budget
    spent = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, budget.accountant)
    assert spent <= plan.guarantee.epsilon <= budget.epsilon
    for part, (_, step) in zip(plan.spending, list_paid_steps(plan.data), strict=False):
        assert part.epsilon <= (step.share or 1.0) * budget.epsilon
    assert plan.guarantee.epsilon <= math.fsum(part.epsilon for part in plan.spending)
    return plan.guarantee.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "zero_out_one"])
def test_whatever_the_shares_all_parts_together_keep_the_budget(relation: str) -> None:
    """Random shares, from a thousandth to nine tenths of ε: planned within it, or refused."""
    rng, planned, refused = np.random.default_rng(5), 0, set()
    for _ in range(20):
        shares = np.exp(rng.uniform(math.log(1e-3), math.log(0.6), 3)).round(4)
        budget = f"budget={{epsilon: {rng.choice([0.3, 2.0, 8.0])}, delta: 1e-6, neighbouring: {relation}}}"
        keys = ("dp_quantiles", "dp_standardize", "dp_pca")
        steps = [f"data.preprocess.{n}.{key}.share={share}" for n, (key, share) in enumerate(zip(keys, shares))]  # noqa: B905
        try:
            plan = make_plan(read_text(TABLE, "table.yaml", [budget, *steps]))
        except PlanRefused as refusal:
            refused |= {finding.code for finding in refusal.findings if finding.is_error}
        else:
            planned += ask_budget(plan) > 0
    assert planned >= 10
    assert refused <= {"P126", "P106"}
