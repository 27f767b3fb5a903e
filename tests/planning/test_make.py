"""The plan: frozen, the same for the same text, within the budget; any mutation of a recipe is refused or planned."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
from pathlib import Path

import pytest

from dprecipe.cli.schema import plan_schema
from dprecipe.faults import PlanRefused, RecipeError
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read, read_text
from tests.schemas import validator_of

ROOT = Path(__file__).parents[2]
REFUSED = {"asoodeh2020-figure3": "P160"}
"""Recipes that are there to be refused, and with what."""
PUBLIC = {"abadi2016-cifar10-public", "papernot2018-mnist-baseline"}
"""Recipes without privacy: they have no plan of this kind."""
RECIPES = sorted(path for path in (ROOT / "recipes").rglob("*.yaml") if path.stem not in {*REFUSED, *PUBLIC})


@pytest.mark.parametrize(("name", "code"), REFUSED.items())
def test_a_problem_that_cannot_be_is_refused(name: str, code: str) -> None:
    (path,) = (ROOT / "recipes").rglob(f"{name}.yaml")
    with pytest.raises(PlanRefused) as refusal:
        plan(read(path))
    assert [finding.code for finding in refusal.value.findings if finding.is_error] == [code]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_recipe_without_privacy_has_no_plan_with_a_guarantee(name: str) -> None:
    (path,) = (ROOT / "recipes").rglob(f"{name}.yaml")
    with pytest.raises(RecipeError, match=r"R309 mechanism\.kind"):
        read(path)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_each_recipe_is_planned_within_its_budget(path: Path) -> None:
    result = plan(read(path))
    assert 0.999 * result.budget.epsilon <= result.guarantee.epsilon <= result.budget.epsilon
    assert result.guarantee.alternative_epsilon >= result.guarantee.epsilon * (1 - 1e-9)
    validator_of(plan_schema).validate(json.loads(json.dumps(result.to_json())))
    deltas = [delta for _, delta in result.guarantee.profile]
    assert deltas == sorted(deltas, reverse=True)


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 5


def test_invariant_5_the_same_text_gives_the_same_digest_and_runtime_is_outside() -> None:
    path = ROOT / "recipes" / "quickstart.yaml"
    one, again = plan(read(path)), plan(read(path))
    assert one.digest == again.digest
    for override in (
        "runtime.physical_batch=9",
        "runtime.device=cpu",
        "runtime.seed=5",
        "runtime.checkpoint_seconds=1",
    ):
        assert plan(read(path, [override])).digest == one.digest, override
    for override in ("training.steps=36", "mechanism.clip.norm=0.7", "budget.delta=2e-5", "data.preprocess=[]",
                     "training.optimizer.lr=1.0", "budget.neighbouring=replace_one"):  # fmt: skip
        assert plan(read(path, [override])).digest != one.digest, override


def test_a_comment_changes_the_recipe_digest_and_not_the_plan() -> None:
    text = (ROOT / "recipes" / "quickstart.yaml").read_text("utf-8")
    one, two = plan(read_text(text, "a.yaml")), plan(read_text(text + "# a comment\n", "a.yaml"))
    assert one.digest == two.digest
    assert one.source.digest != two.source.digest


def test_t19_planning_reads_no_data() -> None:
    """ε is a function of the recipe: the files it names need not exist."""
    result = plan(read(ROOT / "recipes" / "quickstart.yaml", [
        "data.train={source: idx, images: absent, labels: absent, shape: [8, 8]}"]))  # fmt: skip
    assert result.guarantee.epsilon == plan(read(ROOT / "recipes" / "quickstart.yaml")).guarantee.epsilon


def _fuzz_module() -> object:
    spec = importlib.util.spec_from_file_location("recipe_fuzz", ROOT / "tests" / "recipe" / "test_fuzz.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["recipe_fuzz"] = module
    spec.loader.exec_module(module)
    return module


def another_number(text: str, chance: random.Random) -> str:
    """One number of the text, moved by up to three orders of magnitude or made `auto`: still a well-formed recipe."""
    numbers = list(re.finditer(r"(?<=: )[0-9.]+(?:e-?[0-9]+)?(?=[,}\n ])", text))
    if not numbers:
        return text
    place = chance.choice(numbers)
    value = min(float(place.group()), 1e9) * 10 ** chance.uniform(-3, 3)
    number = chance.choice([f"{value:.3g}", str(max(1, round(value))), "auto"])
    return text[: place.start()] + number + text[place.end() :]


def fuzzed(count: int, seed: int) -> tuple[int, int]:
    """Mutated recipes: how many were planned, how many refused; anything else is an exception."""
    fuzz = _fuzz_module()
    chance = random.Random(seed)
    ours = [path.read_text("utf-8") for path in RECIPES]
    planned = refused = 0
    for _ in range(count):
        text = chance.choice(fuzz.SEEDS if chance.random() < 0.3 else ours)  # type: ignore[attr-defined]
        for _ in range(chance.choice([1, 1, 1, 2])):
            mutate = fuzz.mutate if chance.random() < 0.3 else another_number  # type: ignore[attr-defined]
            text = mutate(text, chance)
        findings, result = (), None
        try:
            result = plan(read_text(text, "fuzzed.yaml"))
        except (RecipeError, PlanRefused) as refusal:
            findings = refusal.findings
        planned, refused = planned + (result is not None), refused + (result is None)
        assert findings if result is None else result.guarantee.epsilon <= result.budget.epsilon
    return planned, refused


@pytest.mark.slow
def test_mutated_recipes_are_refused_or_planned() -> None:
    planned, refused = fuzzed(100, 1)
    assert planned > 8
    assert refused > 25


@pytest.mark.slow
def test_hundreds_of_mutated_recipes_are_refused_or_planned() -> None:
    planned, refused = fuzzed(400, 2)
    assert planned > 30
    assert refused > 100
