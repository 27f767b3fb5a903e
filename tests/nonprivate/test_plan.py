"""The plan of a run without privacy, and its checks.

It reads public records alone, has nothing that only a guarantee gives a meaning, and no number that looks like a
guarantee.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.cli.validate import check
from dprecipe.faults import PlanRefused, RecipeError
from dprecipe.nonprivate.plan import PublicPlan, make_plan
from dprecipe.nonprivate.plan import check as check_recipe
from dprecipe.recipe.read import Loaded, LoadedPublic, read, read_any, read_text

RECIPE = """\
recipe: dprecipe/v1
name: public
data:
  train: {source: digits, split: train, access: public}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: mlp, hidden: [32]}
mechanism: {kind: none}
training:
  epochs: 2
  batch_size: 64
  optimizer: {kind: sgd, lr: 0.5}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "public.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def findings(recipe: Path, *overrides: str) -> list[tuple[str, str]]:
    loaded = read_any(recipe, overrides)
    assert isinstance(loaded, LoadedPublic)
    found = check_recipe(loaded.recipe)
    assert all(finding.remedy and finding.is_error for finding in found)
    return [(finding.code, finding.path) for finding in found]


def test_a_recipe_of_public_records_has_no_findings(recipe: Path) -> None:
    assert findings(recipe) == []
    assert findings(recipe, "data.test=null", "training.epochs=null", "training.steps=5") == []
    assert check(recipe)[0] == ()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.train.access=private_internal"], [("P190", "data.train")]),
        (["data.test.access=private_internal"], [("P190", "data.test")]),
        (["data.public={source: digits, split: test}"], [("R309", "data.public")]),
        (["data.preprocess=[{dp_pca: {components: 3}}]"], [("R309", "data.preprocess.0")]),
        (["data.size={max: 2000}"], [("R309", "data.size")]),
        (["training.robustness=0.5"], [("R309", "training.robustness")]),
        (["training.augment={}"], [("R309", "training.augment")]),
        (["training.semi_supervised={kind: vat}"], [("R309", "training.semi_supervised")]),
        (["training.batch_size=null"], [("R304", "training")]),
        (["training.optimizer=null"], [("R304", "training")]),
        (["training.epochs=null"], [("R301", "training")]),
        (["training.steps=3"], [("R301", "training.steps")]),
        (["training.epochs=auto"], [("R306", "training.epochs")]),
        (["model={kind: random_forest}"], [("R305", "model.kind")]),
        (["model={kind: huber_svm}"], [("R280", "model.kind"), ("R254", "model.kind")]),
        (["model={kind: cnn, preset: lenet}"], [("R251", "model.preset")]),
        (["model.train={only: [3]}"], [("R257", "model.train")]),
        (["data.preprocess=[{one_hot: {}}]"], [("R208", "data.preprocess.0.one_hot")]),
    ],
)
def test_what_is_refused(recipe: Path, overrides: list[str], expected: list[tuple[str, str]]) -> None:
    found = findings(recipe, *overrides)
    assert set(expected) <= set(found)
    if "dp_" not in overrides[0]:  # what else a paid step lacks is its own checks' to say
        assert {code for code, _ in found} == {code for code, _ in expected}


def test_private_records_are_refused_by_default_with_a_remedy_that_works(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace(", access: public", ""), encoding="utf-8")
    shown, *_ = check(recipe)
    assert [(finding.code, finding.place.line) for finding in shown if finding.place] == [("P190", 4), ("P190", 5)]
    assert findings(recipe, "data.train.access=public", "data.test=null") == []


@pytest.mark.parametrize(
    "block",
    ["budget: {epsilon: 3.0, delta: 1e-5}", "release: {report: true}", "accept: {}", "runtime: {precision: 32}"],
)
def test_blocks_of_a_guarantee_are_refused_by_name(recipe: Path, block: str) -> None:
    recipe.write_text(f"{RECIPE}{block}\n", encoding="utf-8")
    with pytest.raises(RecipeError) as refused:
        read_any(recipe)
    assert [finding.code for finding in refused.value.findings] == ["R309"]
    assert "nothing is spent" in refused.value.findings[0].message


def test_what_needs_a_guarantee_never_sees_such_a_recipe(recipe: Path) -> None:
    """The reader of plans, certificates and every other command refuses it, also as the text of a certificate."""
    for attempt in (lambda: read(recipe), lambda: read_text(RECIPE)):
        with pytest.raises(RecipeError, match=r"R309 mechanism\.kind: mechanism none protects nobody"):
            attempt()


def test_an_override_can_not_take_the_privacy_of_a_recipe_away(recipe: Path) -> None:
    private = RECIPE.replace(", access: public}\n  test", "}\n  test") + "budget: {epsilon: 3.0, delta: 1e-5}\n"
    mechanism = (
        "{kind: dpsgd, clip: {norm: 1.0}, noise: {family: gaussian, multiplier: auto}, "
        "sampling: {scheme: poisson, batch_size: 64}}"
    )
    recipe.write_text(private.replace("{kind: none}", mechanism), encoding="utf-8")
    assert isinstance(read_any(recipe), Loaded)
    with pytest.raises(RecipeError, match="R309 budget"):
        read_any(recipe, ["mechanism={kind: none}"])


def test_the_word_is_none(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("kind: none", 'kind: "none"'), encoding="utf-8")
    assert findings(recipe) == []
    for kind in ("None", "NONE", "null", "nothing", "[none]"):
        recipe.write_text(RECIPE.replace("kind: none", f"kind: {kind}"), encoding="utf-8")
        with pytest.raises(RecipeError):
            read_any(recipe)


def plan(path: Path, *overrides: str) -> PublicPlan:
    loaded = read_any(path, overrides)
    assert isinstance(loaded, LoadedPublic)
    return make_plan(loaded)


@pytest.mark.parametrize(
    ("overrides", "steps", "batch"),
    [
        ([], 46, 64),  # 23 batches of up to 64 of 1438
        (["training.epochs=0.5"], 12, 64),
        (["training.epochs=null", "training.steps=7"], 7, 64),
        (["training.batch_size=5000"], 2, 1438),
        (["training.batch_size=1438"], 2, 1438),
    ],
)
def test_the_length(recipe: Path, overrides: list[str], steps: int, batch: int) -> None:
    made = plan(recipe, *overrides)
    assert (made.length.steps, made.batch_size) == (steps, batch)


def test_a_plan_is_refused_with_places(recipe: Path) -> None:
    with pytest.raises(PlanRefused) as refused:
        plan(recipe, "data.train.access=private_internal")
    (finding,) = refused.value.findings
    assert (finding.code, finding.place is not None) == ("P190", True)


def test_the_digest_is_of_all_but_the_device(recipe: Path) -> None:
    digest = plan(recipe).digest
    assert plan(recipe, "runtime.device=cpu").digest == digest
    for override in ("runtime.seed=1", "training.epochs=3", "model.hidden=[33]", "data.preprocess=[{flatten: {}}]"):
        assert plan(recipe, override).digest != digest


def test_no_guarantee_is_printed_in_any_form(recipe: Path) -> None:
    shown = CliRunner().invoke(app, ["plan", str(recipe)])
    assert shown.exit_code == 0
    assert "No privacy guarantee" in shown.output
    printed = CliRunner().invoke(app, ["plan", str(recipe), "--format", "json"])
    content = json.loads(printed.output)
    assert content["guarantee"] is None
    assert content["schema"] != "dprecipe.plan/v1"
    for output in (shown.output, printed.output):
        assert not re.search("ε|epsilon|budget|spends", output)
