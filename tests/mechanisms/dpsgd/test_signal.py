"""Warnings of noise that drowns a linear model (R266) and of steps that overshoot (R267), beside accountants and
simulated runs."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from dprecipe.contract.mechanism import Facts
from dprecipe.mechanisms.dpsgd import account, signal
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.planning import rules
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.recipe.read import read, read_any
from dprecipe.recipe.root import Recipe

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "rules"


def codes(name: str, *overrides: str) -> set[str]:
    """The codes of a golden recipe's warnings about what it learns, after changes."""
    findings = rules.check(read(GOLDEN / f"{name}.yaml", overrides).recipe)
    assert not [finding for finding in findings if finding.is_error]
    return {finding.code for finding in findings} & {"R266", "R267"}


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_the_largest_gaussian_is_the_accountants(epsilon: float, delta: float) -> None:
    mu = signal.solve_gaussian(epsilon, delta)
    spent = accountants.epsilon([Charge(Gaussian(1 / mu), 1)], delta, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert spent == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        ("{scheme: full_batch}", 1),
        ("{scheme: full_batch}", 300),
        ("{scheme: poisson, batch_size: 6}", 1),
        ("{scheme: poisson, batch_size: 6}", 300),
        ("{scheme: poisson, batch_size: 30}", 30),
        ("{scheme: dealt, batch_size: 12}", 50),
    ],
)
def test_no_solved_plan_has_more_signal_than_the_budget_allows(sampling: str, steps: int, relation: str) -> None:
    """The closed form needs no accountant, and never warns of a plan that the plan's own noise would not."""
    for epsilon in (0.3, 3.0):
        changes = (f"mechanism.sampling={sampling}", f"training.steps={steps}", f"budget.epsilon={epsilon}")
        recipe = read(GOLDEN / "r266-small.yaml", (*changes, f"budget.neighbouring={relation}")).recipe
        facts, spec = Facts.of(recipe), recipe.mechanism
        assert isinstance(spec, Dpsgd)
        phases = account.plan(spec, facts).plan.phases
        drawn = math.sqrt(sum(one.steps * (one.divisor / one.noise_multiplier) ** 2 for one in phases))
        assert drawn <= signal._budgeted_signal(facts) * (1 + 5e-3)


def test_each_change_that_is_offered_is_enough() -> None:
    assert codes("r266-both") == {"R266"}
    for change in ("data.size=76", "budget.epsilon=0.39"):
        assert codes("r266-both", "mechanism.noise.multiplier=auto", change) == set()
        assert codes("r266-both", change) == {"R266"}
    assert codes("r266-small", "data.size=75") == {"R266"}
    buckets = "data.preprocess=[{hash: {columns: [town], buckets: %d}}, {clip_features: {norm: 1.0}}]"
    assert codes("r266-small", buckets % 40) == {"R266"}
    assert codes("r266-small", buckets % 39) == set()


def test_what_the_bound_is_not_for_warns_of_nothing() -> None:
    assert codes("r266-small", "mechanism.noise={family: laplace, multiplier: auto}") == set()
    assert codes("r266-small", "model={kind: mlp, hidden: [8]}") == set()
    for change in (
        "training.average={kind: tail, fraction: 0.5}",
        "training.loss={kind: huber}",
        "mechanism.clip.norm=0.1",
        "model.bias=false",
        "data.train.label={range: null, count: {max: 9}}",
        "training.optimizer={kind: adam, lr: 2.5}",
        "training.optimizer.momentum=0.5",
    ):
        assert codes("r267-rate", change) == set(), change
    assert codes("r267-rate", "training.optimizer.lr=3.5", "training.optimizer.momentum=0.5") == {"R267"}
    nesterov = "training.optimizer={kind: sgd, lr: 2.0, momentum: 0.9, nesterov: true}"
    assert codes("r267-rate", nesterov) == {"R267"}


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_recipe_that_learns_is_warned_of(path: Path) -> None:
    loaded = read_any(path)
    if isinstance(loaded.recipe, Recipe):
        findings = rules.check(loaded.recipe, loaded.source.attachments)
        assert not {finding.code for finding in findings} & {"R266", "R267"}


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_steps_overshoot_where_the_warning_says(momentum: float, nesterov: bool) -> None:
    """Clipped descent without noise, on tables whose label is explained to nine tenths: worse than a constant above the
    limit, near the optimum below the rate that the remedy names."""
    generator = np.random.default_rng(0)
    stable = 2 * (1 + momentum) / (1 + (2 * momentum if nesterov else 0))
    for norm, clip in itertools.product((0.5, 2.0), (1.0, 4.0)):
        features = generator.normal(size=(400, 5))
        features *= norm / np.linalg.norm(features, axis=1, keepdims=True)
        score = features @ generator.normal(size=5)
        labels = np.clip(0.2 + 0.4 * score / score.std() + 0.12 * generator.normal(size=400), -1, 1)
        inputs = np.c_[features, np.ones(400)]

        def loss(rate: float, inputs: np.ndarray = inputs, labels: np.ndarray = labels, clip: float = clip) -> float:
            weights, velocity = np.zeros(6), np.zeros(6)
            for _ in range(600):
                errors = inputs @ weights - labels
                norms = np.abs(errors) * np.linalg.norm(inputs, axis=1)
                gradient = (errors * np.minimum(1, clip / np.maximum(norms, 1e-12))) @ inputs / 400
                velocity = momentum * velocity + gradient
                weights = weights - rate * (gradient + momentum * velocity if nesterov else velocity)
            return float(np.mean((inputs @ weights - labels) ** 2) / labels.var())

        above = stable * max(1.1, 0.5 * math.hypot(1, norm) / clip)
        assert loss(above) > 1
        assert loss(stable / (1 + norm**2)) < 0.6
