"""Plans of projected noisy SGD: events that follow from the constants, solved so that the budget just holds them."""

from __future__ import annotations

import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.pnsgd import account
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import last_iterate
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import read, read_text

ROOT = Path(__file__).parents[3]
PAPERS = ROOT / "recipes" / "papers"
TEXT = """
recipe: dprecipe/v1
name: example
data:
  train: {source: npz, path: train.npz, shape: [4], classes: 2}
  size: 1000
  preprocess: [{clip_features: {norm: 1.0}}]
model: {kind: huber_svm, width: 0.5, bias: false}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 2.0}
  learning_rate: 1.0
  noise: {family: gaussian, multiplier: auto}
  batch_size: 20
budget: {epsilon: 2.0, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 5}
"""


def planned(*changes: str, text: str = TEXT) -> Plan:
    """The plan of the recipe with these changes, the last of those to one key."""
    last = {change.partition("=")[0]: change for change in changes}
    return plan(read_text(text, "a.yaml", tuple(last.values())))


def refused(*changes: str) -> Any:
    with pytest.raises(PlanRefused) as refusal:
        planned(*changes)
    (finding,) = refusal.value.findings
    return finding


def event_of(result: Plan) -> ProjectedDescent:
    (charge,) = result.events
    assert isinstance(charge.event, ProjectedDescent)
    assert charge.count == 1
    return charge.event


def test_the_event_is_the_run() -> None:
    result = planned("mechanism.noise.multiplier=0.3", "model.l2=0.1", "data.size=1001", "budget.epsilon=auto")
    event = event_of(result)
    assert (event.size, event.batch, event.batches, event.steps) == (1001, 20, 51, 255)
    assert (event.order, event.stop, event.family, event.neighbouring) == (
        "permuted",
        "last",
        "gaussian",
        "replace_one",
    )
    ((steps, multiplier, contraction, diameter),) = event.stages
    assert steps == result.length.steps == 255
    # L = 1, Δ = 2, ρ = 0.1, β = 1/(2 · 0.5) + 0.1, D = 4, σ = 0.3
    assert multiplier == pytest.approx(0.3 * 20 / 2)
    assert contraction == pytest.approx(max(1 - 0.1, abs(1 - 1.1)))
    assert diameter == pytest.approx(4 / 0.3)
    # on the careful side of the exact numbers
    assert Fraction(multiplier) <= Fraction(0.3) * 20 / 2
    assert Fraction(diameter) >= Fraction(4) / Fraction(0.3)
    assert Fraction(contraction) >= 1 - Fraction(0.1)
    own = result.mechanism_plan
    proven = own.descent.proven
    assert (proven.lipschitz, proven.gradient_sensitivity, proven.diameter) == (1.0, 2.0, 4.0)
    assert (own.event.batches, own.descent.batch_size, proven.parameters, proven.outputs) == (51, 20, 4, 1)
    assert {bound.name for bound in own.bounds} == set(last_iterate.BOUNDS)
    assert own.winner in last_iterate.BOUNDS
    assert min(bound.epsilon for bound in own.bounds) == result.guarantee.epsilon


def test_zero_out_is_half_as_far() -> None:
    fixed = ("mechanism.noise.multiplier=0.3", "budget.epsilon=auto")
    replaced, blanked = planned(*fixed), planned(*fixed, "budget.neighbouring=zero_out_one")
    assert event_of(blanked).stages[0][1] == 2 * event_of(replaced).stages[0][1]
    assert blanked.guarantee.epsilon < replaced.guarantee.epsilon


def test_stages_are_what_the_recipe_says() -> None:
    result = planned(
        "mechanism.learning_rate={schedule: linear, from: 1.0, to: 0.1, epochs: 1}",
        "mechanism.noise=[{family: gaussian, multiplier: 0.5, epochs: 2}, {family: gaussian, multiplier: auto}]",
    )
    (solved,) = result.solved.values()
    rows = event_of(result).stages
    assert sum(stage.steps for stage in result.mechanism_plan.stages) == result.length.steps == 250
    assert len(rows) == len(result.mechanism_plan.stages)
    for (steps, multiplier, _, diameter), stage in zip(rows, result.mechanism_plan.stages, strict=True):
        assert steps == stage.steps
        assert stage.noise_scale / result.mechanism_plan.descent.proven.lipschitz in (0.5, solved)
        assert multiplier == pytest.approx(stage.noise_scale * 20 / 2)
        assert diameter == pytest.approx(4 / (stage.learning_rate * stage.noise_scale))
    assert [phase.multiplier for phase in result.mechanism_plan.noise_phases] == [0.5, solved]


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("mechanism.order=sequential",),
        ("mechanism.stop=random",),
        ("budget.accountant=rdp",),
        ("budget.epsilon=0.3", "model.l2=0.2"),
        ("mechanism.learning_rate={schedule: cosine, from: 1.0, to: 0.1}",),
        ("mechanism.constraint.radius=0.05", "mechanism.batch_size=1", "training.epochs=1"),
    ],
    ids=" ".join,
)
def test_the_noise_is_the_least(changes: tuple[str, ...]) -> None:
    """Never over the budget, at least 99.9 % of it, and with a thousandth less noise over it."""
    result = planned(*changes)
    (multiplier,) = result.solved.values()
    assert float(f"{multiplier:.5e}") == multiplier, "six digits"
    assert 0.999 * result.budget.epsilon <= result.guarantee.epsilon <= result.budget.epsilon
    less = planned(*changes, f"mechanism.noise.multiplier={multiplier * 0.999}", "budget.epsilon=auto")
    assert less.guarantee.epsilon > result.budget.epsilon


@pytest.mark.parametrize(("order", "accountant"), [("sequential", "rdp"), ("permuted", "pld")])
def test_the_length_is_the_longest(order: str, accountant: str) -> None:
    changes = (
        "mechanism.noise.multiplier=0.25",
        "mechanism.constraint.radius=50",
        f"mechanism.order={order}",
        f"budget.accountant={accountant}",
        "mechanism.batch_size=100",
        "budget.epsilon=1.5",
    )
    result = planned(*changes, "training.steps=auto", "training.epochs=null")
    steps = result.solved["training.steps"]
    assert steps == result.length.steps
    assert result.guarantee.epsilon <= 1.5
    again = planned(*changes, f"training.steps={steps + 1}", "training.epochs=null", "budget.epsilon=auto")
    assert again.guarantee.epsilon > 1.5 * (1 - 2e-6)
    passes = planned(*changes, "training.epochs=auto").solved["training.epochs"]
    assert passes == steps / 10


def test_a_budget_that_no_length_exhausts_says_so() -> None:
    finding = refused("mechanism.noise.multiplier=2.0", "training.epochs=auto")
    assert (finding.code, finding.path) == ("P107", "training.epochs")
    assert "levels off" in finding.message


def test_a_budget_that_is_met_without_noise_is_refused() -> None:
    assert refused("budget.epsilon=5000").code == "P107"


def test_a_budget_that_no_noise_keeps_is_refused() -> None:
    """The last phase spends more."""
    finding = refused(
        "mechanism.noise=[{family: gaussian, multiplier: auto, steps: 200}, {family: gaussian, multiplier: 0.01}]",
        "mechanism.order=sequential",
        "mechanism.batch_size=1",
        "training.epochs=null",
        "training.steps=201",
    )
    assert finding.code == "P106"


def test_one_use_without_anything_after_it_is_a_gaussian_mechanism() -> None:
    """Full batch, one step: σ b / Δ is all there is."""
    result = planned("mechanism.batch_size=1000", "training.epochs=1")
    (multiplier,) = result.solved.values()
    mu = 2 / (1000 * multiplier)
    assert gdp.epsilon(mu, 1e-5) == pytest.approx(2.0, rel=1e-4)
    assert result.mechanism_plan.winner == "no_amplification"
    assert [finding.code for finding in result.warnings] == ["P173"]


def test_figure_2_of_the_paper() -> None:
    """Part of its numbers: theta(2L/σ) in the last place, and Theorem 4 before it, at ε = 1."""
    event = event_of(plan(read(PAPERS / "asoodeh2020-figure2.yaml")))
    assert event.stages == ((40, 1.0, 1.0, 1.0),)
    assert last_iterate.delta_at(event, 40, 1.0, "contraction").value == pytest.approx(0.1269, abs=5e-5)
    assert last_iterate.delta_at(event, 39, 1.0, "contraction").value == pytest.approx(1.61e-2, rel=5e-3)
    assert last_iterate.delta_at(event, 20, 1.0, "iteration").value == pytest.approx(1.65e-7, rel=5e-3)


def test_figure_3_with_its_constants_exchanged() -> None:
    result = plan(read(PAPERS / "asoodeh2020-figure3-feasible.yaml"))
    ((_, multiplier, contraction, diameter),) = event_of(result).stages
    assert multiplier == 0.5
    assert contraction == pytest.approx(0.79)
    assert diameter == pytest.approx(1 / 0.7)
    assert (
        result.mechanism_plan.descent.proven.smoothness,
        result.mechanism_plan.descent.proven.strong_convexity,
    ) == (0.4, 0.3)


def test_laplace_noise_on_one_number() -> None:
    text = TEXT.replace("{source: npz, path: train.npz, shape: [4], classes: 2}",
                        "{source: npz, path: train.npz, shape: [1], range: [0, 50]}")  # fmt: skip
    text = text.replace("{kind: huber_svm, width: 0.5, bias: false}", "{kind: location, threshold: 0.5}")
    result = planned("mechanism.noise.family=laplace", "mechanism.noise.multiplier=auto",
                   "mechanism.constraint={kind: box, bound: 1.0}", text=text)  # fmt: skip
    assert event_of(result).family == "laplace"
    assert {bound.name for bound in result.mechanism_plan.bounds} == {"no_amplification", "contraction", "nonlinear"}
    (stage,) = result.mechanism_plan.stages
    assert result.mechanism_plan.deviation(stage) == pytest.approx(math.sqrt(2) * stage.noise_scale)
    assert result.mechanism_plan.feature_norm is None
    assert result.mechanism_plan.descent.proven.parameters == 1


def test_a_free_variable_too_many() -> None:
    spec = read_text(TEXT, "a.yaml", ("budget.epsilon=auto",)).recipe
    with pytest.raises(PlanRefused) as refusal:
        account.plan(spec.mechanism, Facts.of(spec))
    assert refusal.value.findings[0].code == "R302"


def test_the_plan_costs_what_the_accountant_says() -> None:
    result = planned()
    answer = accountants.epsilon_answer(result.events, 1e-5, Neighbouring.REPLACE_ONE, "pld")
    assert result.guarantee.epsilon >= answer.value
    assert answer.accountant == result.mechanism_plan.winner


def test_checking_a_recipe_with_something_to_solve_loads_no_arithmetic(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(TEXT, encoding="utf-8")
    code = (
        "import sys; from dprecipe.planning import rules; from dprecipe.recipe.read import read; "
        f"assert rules.check(read({str(tmp_path / 'a.yaml')!r}).recipe) == []; "
        "assert not {'numpy', 'scipy', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
