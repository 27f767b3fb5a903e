"""What no second library could confirm is refused while nothing is spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.cli import plan as command
from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.planning.make import plan
from dprecipe.planning.verifiable import find_unsupported, find_unverifiable
from dprecipe.privacy import cross_check
from dprecipe.privacy.cross_check import LibraryAnswer
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonLaplace
from dprecipe.recipe.read import read

RECIPE = Path(__file__).parents[2] / "recipes" / "tuned-digits.yaml"
ENCODED = EncodedSum(0.1, 1.0, "student_t", 9.0, ((0.5, 8),), False, f"sha256:{'0' * 64}")


def test_an_event_that_the_library_has_no_distribution_of_is_named() -> None:
    recipe = read(RECIPE).recipe
    assert find_unsupported(recipe, [Charge(Gaussian(1.0), 3)]) == []
    for event, kind in ((PoissonLaplace(0.1, 2.0), "poisson_laplace"), (ENCODED, "encoded")):
        (finding,) = find_unsupported(recipe, [Charge(Gaussian(1.0), 3), Charge(event, 2)])
        assert finding.code == "P189"
        assert kind in finding.message
    assert find_unsupported(recipe.model_copy(update={"tuning": None}), [Charge(ENCODED, 1)]) == []


def test_an_answer_above_the_claim_is_refused_by_the_plan_command(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = plan(read(RECIPE))
    answers = {
        "near": LibraryAnswer("dp_accounting.pld", "0", 1.01 * tuned.guarantee.epsilon),
        "above": LibraryAnswer("dp_accounting.pld", "0", 1.04 * tuned.guarantee.epsilon),
        "none": LibraryAnswer("dp_accounting", "0", float("inf")),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(cross_check, "ask_library", lambda *terms, answer=answer: answer)
        assert [finding.code for finding in find_unverifiable(tuned)] == ([] if name == "near" else ["P189"])
    with pytest.raises(PlanRefused, match="no release with the claim"):
        command.plan(RECIPE)


def test_a_recipe_without_tuning_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(cross_check, "ask_library")
    assert find_unverifiable(plan(read(RECIPE, ("tuning=null",)))) == []
