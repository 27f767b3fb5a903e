"""The plan of a tuned recipe: the budget is for all runs, and all runs are one mechanism."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.planning.make import plan, plan_chosen, plan_trial
from dprecipe.planning.tuning import check_budget
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge
from dprecipe.privacy.stages.events import NoisyCount
from dprecipe.privacy.tuning.events import SelectedBest
from dprecipe.recipe.read import Loaded, read, read_text
from tests.recipe_texts import DIGITS, DPSGD

RECIPE = Path(__file__).parents[2] / "recipes" / "tuned-digits.yaml"
STAGED = f"""\
recipe: dprecipe/v1
name: staged
{DIGITS}  preprocess:
    - flatten: {{}}
    - dp_quantiles: {{columns: all, bounds: [0, 16], noise_multiplier: 400.0}}
    - dp_standardize: {{share: 0.1}}
    - dp_pca: {{components: 20, row_norm: 10.0, noise_multiplier: 12.0}}
    - clip_features: {{norm: 6.0}}
model: {{kind: logistic_regression}}
{DPSGD}training:
  steps: 6
  optimizer: {{kind: sgd, lr: 1.0}}
tuning:
  runs: {{kind: negative_binomial, mean: 4, shape: 0.5}}
  over:
    - {{key: training.optimizer.lr, range: [0.1, 4.0], scale: log}}
    - {{key: data.preprocess.4.clip_features.norm, values: [3.0, 6.0]}}
  score: {{metric: accuracy}}
"""
POINT = {"training.optimizer.lr": 0.75, "mechanism.clip.norm": 0.1, "model.hidden.0": 48}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return read(RECIPE)


@pytest.fixture(scope="module")
def tuned(loaded: Loaded) -> Plan:
    return plan(loaded)


def test_the_budget_is_for_all_runs_and_one_run_costs_less(tuned: Plan) -> None:
    (charge,) = tuned.events
    assert tuned.tuning is not None
    assert (charge.count, charge.event.kind) == (1, "selected_best")
    assert 2.99 < tuned.guarantee.epsilon <= 3
    assert 2.0 < tuned.tuning.epsilon < 2.2
    terms = (1e-5, tuned.budget.neighbouring, "pld")
    assert accountants.epsilon(tuned.mechanism_plan.events, *terms) <= tuned.tuning.epsilon
    assert "chosen hyper-parameters" in tuned.released


def test_a_run_has_the_events_that_were_solved_for_and_its_own_cost_as_its_budget(loaded: Loaded, tuned: Plan) -> None:
    trial = plan_trial(loaded, tuned, POINT)
    assert tuned.tuning is not None
    assert trial.events == tuned.mechanism_plan.events
    assert trial.tuning is None
    assert trial.budget.epsilon == trial.guarantee.epsilon == tuned.tuning.epsilon
    assert trial.training.optimizer is not None
    assert trial.training.optimizer.lr == 0.75
    assert trial.release.sign is None


def test_a_length_that_is_solved_is_that_of_every_run() -> None:
    loaded = read(RECIPE, ("mechanism.noise.multiplier=20.0", "training.steps=auto"))
    tuned = plan(loaded)
    assert tuned.guarantee.epsilon <= 3
    assert plan_trial(loaded, tuned, POINT).events == tuned.mechanism_plan.events
    longer = read(RECIPE, ("mechanism.noise.multiplier=20.0", f"training.steps={tuned.length.steps + 1}"))
    with pytest.raises(PlanRefused, match="P102"):
        plan(longer)


def test_an_open_budget_is_what_the_best_of_the_runs_costs() -> None:
    tuned = plan(read(RECIPE, ("mechanism.noise.multiplier=20.0", "budget.epsilon=auto")))
    assert tuned.tuning is not None
    assert tuned.tuning.epsilon < tuned.guarantee.epsilon == tuned.budget.epsilon < 3


def test_the_plan_after_the_choice_keeps_its_digest_and_is_of_the_run_that_won(loaded: Loaded, tuned: Plan) -> None:
    chosen = plan_chosen(loaded, POINT)
    assert chosen.digest == tuned.digest
    assert chosen.events == tuned.events
    assert chosen.tuning is not None
    assert chosen.tuning.chosen == POINT
    assert chosen.model.hidden == (48,)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [{"training.optimizer.lr": 6.0}, {"model.hidden.0": 64}, {"model.hidden.0": 48.0}, {"training.steps": 80}],
)
def test_no_other_values_can_have_been_chosen(change: dict[str, float], loaded: Loaded) -> None:
    with pytest.raises(PlanRefused, match="P182"):
        plan_chosen(loaded, {**POINT, **change})


@pytest.fixture(scope="module")
def staged() -> tuple[Loaded, Plan]:
    loaded = read_text(STAGED, "staged.yaml")
    return loaded, plan(loaded)


def test_paid_steps_come_once_before_the_runs_and_are_in_the_one_epsilon(staged: tuple[Loaded, Plan]) -> None:
    _, tuned = staged
    *stages, best = tuned.events
    assert tuple(stages) == tuned.stage_charges
    assert (best.event.kind, best.count) == ("selected_best", 1)
    assert best.event.base == tuned.mechanism_plan.events  # type: ignore[attr-defined]
    assert 2.99 < tuned.guarantee.epsilon <= 3
    terms = (1e-5, tuned.budget.neighbouring, "pld")
    assert accountants.epsilon(tuned.events, *terms) <= 3
    assert tuned.guarantee.epsilon < math.fsum(part.epsilon for part in tuned.spending)
    assert accountants.epsilon([best], *terms) <= tuned.spending[-1].epsilon < 3
    document = tuned.to_json()
    assert [document["events"][row["event"]]["kind"] for row in document["stages"][2]["events"]] == ["noisy_covariance"]
    assert document["details"]["phases"][0]["charge"]["event"] == 0


def test_what_paid_steps_cost_is_left_to_no_run(staged: tuple[Loaded, Plan]) -> None:
    _, tuned = staged
    alone = plan(
        read_text(
            STAGED,
            "staged.yaml",
            (
                "data.preprocess=[flatten: {}, clip_features: {norm: 6.0}]",
                "tuning.over=[{key: training.optimizer.lr, values: [1.0]}]",
            ),
        )
    )
    noise = "mechanism.noise.multiplier"
    assert tuned.solved[noise] > 1.003 * alone.solved[noise]


def test_a_run_has_the_noise_of_the_paid_steps_that_was_solved_for_all(staged: tuple[Loaded, Plan]) -> None:
    loaded, tuned = staged
    trial = plan_trial(loaded, tuned, {"training.optimizer.lr": 0.5, "data.preprocess.4.clip_features.norm": 3.0})
    assert trial.stages == tuned.stages
    assert trial.mechanism_plan.events == tuned.mechanism_plan.events
    assert trial.data.preprocess[:4] == tuned.data.preprocess[:4]
    chosen = plan_chosen(loaded, {"training.optimizer.lr": 0.5, "data.preprocess.4.clip_features.norm": 3.0})
    assert (chosen.digest, chosen.events, chosen.stages) == (tuned.digest, tuned.events, tuned.stages)


def test_the_noise_of_a_paid_step_can_be_what_is_solved() -> None:
    text = STAGED.replace("dp_standardize: {share: 0.1}", "dp_standardize: {noise_multiplier: auto}")
    over = ("mechanism.noise.multiplier=2.0", "tuning.over=[{key: training.optimizer.lr, values: [0.5]}]")
    loaded = read_text(text, "staged.yaml", over)
    tuned = plan(loaded)
    assert 2.99 < tuned.guarantee.epsilon <= 3
    assert plan_trial(loaded, tuned, {"training.optimizer.lr": 0.5}).stages == tuned.stages


@pytest.mark.parametrize(
    "key",
    [
        "data.preprocess.2.dp_standardize.share",
        "data.preprocess.3.dp_pca.noise_multiplier",
        "data.preprocess.3.dp_pca.row_norm",
        "data.preprocess.3.dp_pca.components",
    ],
)
def test_no_run_sets_what_a_paid_step_reads_or_costs(key: str) -> None:
    loaded = read_text(STAGED, "staged.yaml", (f"tuning.over.0={{key: {key}, values: [0.05, 0.2]}}",))
    with pytest.raises(PlanRefused, match=r"P180.*once, before the first run"):
        plan(loaded)


def test_a_step_before_a_paid_one_is_the_same_for_all_runs() -> None:
    steps = "data.preprocess=[{clip_features: {norm: 6.0}}, {flatten: {}}, {dp_pca: {components: 8, share: 0.1}}]"
    over = "tuning.over=[{key: data.preprocess.0.clip_features.norm, values: [3.0, 6.0]}]"
    with pytest.raises(PlanRefused, match=r"P180.*decides what they read"):
        plan(read_text(STAGED, "staged.yaml", (steps, over)))


PAID = ("data.test.access=private_internal", "tuning.score.noise_multiplier=12")


def test_a_paid_score_is_part_of_what_one_run_costs_and_of_what_is_solved(tuned: Plan) -> None:
    """The base mechanism is training and then the count; the noise of training makes room for it."""
    paid = plan(read(RECIPE, PAID))
    (charge,) = paid.events
    assert isinstance(charge.event, SelectedBest)
    assert charge.event.base == (*paid.mechanism_plan.events, Charge(NoisyCount(12.0), 1))
    assert 2.99 < paid.guarantee.epsilon <= 3
    name = "mechanism.noise.multiplier"
    assert paid.solved[name] > tuned.solved[name]
    terms = (1e-5, paid.budget.neighbouring, "pld")
    assert paid.tuning is not None
    training, both = (
        accountants.epsilon(charges, *terms) for charges in (paid.mechanism_plan.events, charge.event.base)
    )
    assert training < both <= paid.tuning.epsilon
    assert "number of right answers" in next(a.text for a in paid.assumptions if a.id == "tuning_score")


def test_a_length_is_solved_with_the_score_that_every_run_pays_for() -> None:
    free, paid = (
        plan(read(RECIPE, ("mechanism.noise.multiplier=20.0", "training.steps=auto", *more))) for more in ((), PAID)
    )
    assert paid.length.steps < free.length.steps
    assert paid.guarantee.epsilon <= 3


def test_a_score_whose_noise_leaves_training_nothing_is_refused_with_a_place() -> None:
    with pytest.raises(PlanRefused) as refused:
        plan(read(RECIPE, (PAID[0], "tuning.score.noise_multiplier=0.3")))
    assert refused.value.findings[0].remedy


def test_a_budget_that_leaves_each_run_enough_is_checked_without_solving_for_it(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one run may cost is solved for where it is told: for 20 fixed runs that takes seconds."""
    solved: list[float] = []
    monkeypatch.setattr("dprecipe.privacy.tuning.plan.base_budget", lambda epsilon, *_: solved.append(epsilon))
    many = read(RECIPE, ("tuning.runs={kind: fixed, count: 20}",)).recipe
    assert list(check_budget(many)) == []
    assert not solved
