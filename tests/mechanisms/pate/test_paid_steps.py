"""Paid steps of preprocessing before a vote: one plan, one ledger, one claim; teachers and student see the same
constants."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid, PlanRefused
from dprecipe.mechanisms.pate.events import FilterRest
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants
from dprecipe.privacy.cross_check import ask_library
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import read
from dprecipe.privacy.stages.events import StageEvent
from dprecipe.recipe.read import read_text
from dprecipe.release.untrusted import to_bytes
from tests.training.run.test_kill import hold_killed

RECIPE = """\
recipe: dprecipe/v1
name: digits
data:
  train: {source: digits, split: train, records: [0, 1000]}
  public: {source: digits, split: train, records: [1000, 1438]}
  test: {source: digits, split: test, access: public}
  size: 1000
  preprocess:
    - flatten: {}
    - dp_standardize: {bounds: [0, 1], share: 0.2}
    - dp_pca: {components: 12, row_norm: 12.0, share: 0.2}
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers:
    count: 25
    model: {kind: logistic_regression}
    training: {steps: 60, batch_size: 16, optimizer: {kind: adam, lr: 0.03}}
  aggregator:
    kind: confident_gnmax
    noise: {family: gaussian, multiplier: 8}
    selection: {threshold: 15, noise: {family: gaussian, multiplier: 16}}
  queries: {max: 60}
budget: {epsilon: 9.0, delta: 1e-5, neighbouring: zero_out_one}
training: {steps: 40, batch_size: 32, optimizer: {kind: adam, lr: 5e-3}}
release: {report: false}
"""
GNMAX = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: auto}}"
LNMAX = "mechanism.aggregator={kind: lnmax, noise: {family: laplace, multiplier: auto}}"
QUANTILES = "data.preprocess=[{flatten: {}}, {dp_quantiles: {columns: all, bounds: [0, 1], share: 0.2}}]"
FIXED = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: %s}}"
DELTA = 1e-5

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def paid() -> Planned:
    return lambda *overrides: make_plan(read_text(RECIPE, "digits.yaml", overrides))


def spent(plan: Plan) -> float:
    budget = plan.budget
    return accountants.epsilon(plan.events, budget.delta, budget.neighbouring, budget.accountant)


def test_the_filter_gets_what_squares_leave(paid: Planned) -> None:
    """Gaussian steps and a Gaussian filter: the limit and the squares of the steps are those of the whole budget."""
    full = ("mechanism.aggregator.noise.multiplier=3", "mechanism.queries.max=400")  # more than the budget holds
    plan, bare = paid(*full), paid("data.preprocess=[{flatten: {}}]", *full)
    limit, whole = (p.as_plan_of(PatePlan).filter_limit for p in (plan, bare))
    assert limit is not None
    assert whole is not None
    relation = plan.budget.neighbouring
    squares = sum(float(c.event.squared_mu(c.count, relation) or 0.0) for c in plan.stage_charges)
    assert limit + squares == pytest.approx(whole, rel=1e-5)
    assert spent(plan) <= plan.guarantee.epsilon <= 9
    assert {part.name for part in plan.spending} == {"preprocess.1.dp_standardize", "preprocess.2.dp_pca", "training"}


@pytest.mark.parametrize(
    "overrides",
    [
        (GNMAX,),
        (LNMAX, "budget.neighbouring=replace_one"),
        (QUANTILES, "mechanism.aggregator.noise.multiplier=3", "mechanism.queries.max=400"),
        pytest.param((FIXED % 9, "mechanism.queries.max=auto"), id="queries"),
        pytest.param(
            (FIXED % 40, "data.preprocess.1.dp_standardize.share=null",
             "data.preprocess.1.dp_standardize.noise_multiplier=auto"), id="price"),
        pytest.param(("budget.accountant=rdp", GNMAX), id="rdp"),
    ],
)  # fmt: skip
def test_every_aggregator_and_free_variable_keeps_the_budget(paid: Planned, overrides: tuple[str, ...]) -> None:
    plan = paid(*overrides)
    assert 0.98 * 9 <= spent(plan) <= plan.guarantee.epsilon <= 9


def test_laplace_votes_cost_one_vote_beside_steps_that_a_replaced_record_moves_twice(paid: Planned) -> None:
    """By dp-accounting's own distributions: Gaussians of the steps, and two counts for each answer."""
    plan = paid(LNMAX, "budget.neighbouring=replace_one", "mechanism.queries.max=10")
    ((moments,), (covariance,)) = (stage.charges for stage in plan.stages)
    (votes,) = plan.mechanism_plan.events
    mu = np.sqrt(64 * 4 / moments.event.noise_scale**2 + 2 / covariance.event.noise_scale**2)  # type: ignore[attr-defined]
    library = privacy_loss_distribution
    whole = library.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-3)
    scale = votes.event.noise_multiplier  # type: ignore[attr-defined]
    one = library.from_laplace_mechanism(scale, value_discretization_interval=1e-3)
    whole = whole.compose(one.self_compose(2 * votes.count))
    assert whole.get_epsilon_for_delta(DELTA) == pytest.approx(plan.guarantee.epsilon, rel=5e-3)
    asked = ask_library(plan.events, DELTA, plan.budget.neighbouring)
    assert asked.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-3)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (("data.preprocess.2.dp_pca.share=null", "data.preprocess.2.dp_pca.noise_multiplier=0.3"), "P126"),
        ((GNMAX, "data.preprocess.2.dp_pca.share=null", "data.preprocess.2.dp_pca.noise_multiplier=0.3"), "P126"),
        (("data.size={max: 1000}",), "P127"),
    ],
)
def test_what_does_not_fit_is_refused(paid: Planned, overrides: tuple[str, ...], code: str) -> None:
    with pytest.raises(PlanRefused) as refused:
        paid(*overrides)
    assert code in {finding.code for finding in refused.value.findings}


def die(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def done(paid: Planned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, killed among its queries and gone on with."""
    plan, out = paid(), tmp_path_factory.mktemp("run") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprecipe.mechanisms.pate.train.run._put", die)
        with pytest.raises(KeyboardInterrupt):
            run(plan, out)
    run(plan, out, resume=True)
    return out


def test_a_run_that_goes_on_draws_no_step_twice_and_verifies(paid: Planned, done: Path) -> None:
    plan, ledger = paid(), read(done / "private" / "ledger.jsonl")
    stages = [charge for charge in ledger.charges if isinstance(charge.event, StageEvent)]
    assert count_events(stages) == count_events(plan.stage_charges) == 2
    assert ledger.attempts == 2
    assert isinstance(ledger.charges[-1].event, FilterRest)
    dprecipe.verify(done / "release")
    stated = json.loads((done / "release" / "certificate.json").read_text("utf-8"))["predicate"]
    assert [stage["kind"] for stage in stated["stages"]] == ["dp_standardize", "dp_pca"]
    assert {"stage_noise", "vote_sensitivity"} <= {check["id"] for check in stated["checks"]}
    assert plan.guarantee.epsilon == pytest.approx(stated["claim"]["epsilon"], rel=1e-5)
    assert stated["mechanism"]["voting"]["filter"] == plan.as_plan_of(PatePlan).filter_limit


def test_teachers_and_student_learn_behind_the_released_constants(done: Path) -> None:
    """12 components reach both: the student's weights, and what it predicts of raw records. How good that is depends on
    secret noise; once in many runs it was below 0.3."""
    from dprecipe.models.load import load

    model = load(done / "release")
    assert next(iter(model.module.parameters())).shape == (10, 12)
    assert json.loads((done / "release" / "metrics.json").read_text("utf-8"))["public_evaluation"]["accuracy"] > 0.1


@pytest.mark.parametrize(("path", "words"), [("stages", "not every paid step"), ("events", "events")])
def test_a_release_that_leaves_out_a_step_does_not_verify(done: Path, tmp_path: Path, path: str, words: str) -> None:
    release = tmp_path / "release"
    shutil.copytree(done / "release", release)
    content = json.loads((release / "certificate.json").read_text("utf-8"))
    if path == "stages":
        content["predicate"]["stages"] = content["predicate"]["stages"][:1]
    else:
        del content["predicate"]["events"]["run_length"][0]
        content["predicate"]["events"]["total"] -= 1
    (release / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match=words):
        dprecipe.verify(release)


def test_a_filtered_run_holds_its_whole_limit_beside_a_step_that_is_drawn_again(paid: Planned, tmp_path: Path) -> None:
    plan = paid("mechanism.aggregator.noise.multiplier=3")  # all that the budget holds is planned
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprecipe.training.run.stages.release_stage", die)
        with pytest.raises(KeyboardInterrupt):
            run(plan, tmp_path / "run")
    done = run(plan, tmp_path / "run", resume=True)
    assert (done.stop_reason, done.has_model) == ("no_model", False)
    dprecipe.verify(done.release)
    assert count_events(read(tmp_path / "run" / "private" / "ledger.jsonl").charges) == 1


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", ["60.0"])
def test_killed_at_random_moments_nothing_is_drawn_that_is_not_charged(tmp_path: Path, epsilon: str) -> None:
    text = RECIPE.replace("epsilon: 9.0", f"epsilon: {epsilon}").replace("share: 0.2", "noise_multiplier: 8")
    drawn, ledger = hold_killed(tmp_path, text, kills=8, seed=2)
    charged = sum(charge.count for charge in ledger.charges if isinstance(charge.event, StageEvent))
    assert drawn["of_stages"] <= charged
    assert drawn["draws"] - drawn["of_stages"] <= count_events(ledger.charges) - charged
