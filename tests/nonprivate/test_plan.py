"""The plan of a run without privacy: what it will do, and no number that looks like a guarantee."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.faults import PlanRefused
from dprecipe.nonprivate.plan import PublicPlan, make_plan
from dprecipe.recipe.read import LoadedPublic, read_any
from tests.nonprivate.test_rules import RECIPE


def plan(path: Path, *overrides: str) -> PublicPlan:
    loaded = read_any(path, overrides)
    assert isinstance(loaded, LoadedPublic)
    return make_plan(loaded)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "public.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


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
