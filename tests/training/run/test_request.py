"""A request to run a plan: where it happens, what it refuses, and the policies that no road passes by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from dprecipe.cli.run import run as run_command
from dprecipe.faults import InternalFault, PlanRefused, UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.policy.find import POLICY_FILE
from dprecipe.recipe.read import read
from dprecipe.training.processes.launch import name_launch
from dprecipe.training.run import start
from dprecipe.training.run.request import RunOptions, decide_place, request_run
from tests.recipe_texts import SMALL

POLICY = "policy: dprecipe/v1\nname: hospital\nkeys: {}\nrules:\n  - {name: all, max_epsilon: 0.1}\n"


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.yaml").write_text(SMALL, encoding="utf-8")
    return tmp_path / "recipe.yaml"


@pytest.mark.parametrize(
    ("processes", "environment", "place"),
    [
        (1, {}, "leader"),
        (2, {}, "launcher"),
        (2, {"WORLD_SIZE": "2", "RANK": "0"}, "leader"),
        (2, {"WORLD_SIZE": "2", "RANK": "1"}, "follower"),
    ],
)
def test_a_process_has_one_place(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, processes: int, environment: dict[str, str], place: str
) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plan = make_plan(read(recipe, [f"runtime.processes={processes}"]))
    assert decide_place(plan, recipe.parent / "run") == place


def test_a_policy_is_asked_by_every_request_and_by_a_rehearsal(recipe: Path) -> None:
    (recipe.parent / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    with pytest.raises(PlanRefused):
        request_run(make_plan(read(recipe)), RunOptions(recipe.parent / "run"))
    for rehearse in (False, True):
        with pytest.raises(PlanRefused):
            run_command(recipe, out=recipe.parent / "run", rehearse=rehearse)
    assert not (recipe.parent / "run").exists()


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (RunOptions(model=cast("Any", object())), "Q109"),
        (RunOptions(trainer="python"), "Q109"),
        (RunOptions(train=object()), "Q110"),
        (RunOptions(test=object()), "Q110"),
    ],
)
def test_a_policy_knows_what_python_replaces(recipe: Path, options: RunOptions, code: str) -> None:
    rule = POLICY.replace("max_epsilon: 0.1", "models: [logistic_regression], sources: [digits]")
    (recipe.parent / POLICY_FILE).write_text(rule, encoding="utf-8")
    plan = make_plan(read(recipe))
    assert request_run(plan, RunOptions(recipe.parent / "run")).plan.policies != ()
    with pytest.raises(PlanRefused, match=code):
        request_run(plan, replace(options, out=recipe.parent / "run"))


def test_a_complete_run_that_no_policy_was_asked_about_does_not_go_on(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To make a folder look complete, and then to take its release away, gains nothing."""
    out = recipe.parent / "run"
    (out / "private").mkdir(parents=True)
    (out / "release").mkdir()
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (out / "private" / "launch").write_text(name_launch() or "", encoding="utf-8")
    (recipe.parent / POLICY_FILE).write_text(POLICY, encoding="utf-8")
    request = request_run(make_plan(read(recipe)), RunOptions(out))
    assert request.place == "complete"
    with pytest.raises(UsageFault):
        start.run(request)
    with pytest.raises(InternalFault, match="no policy was asked"):
        start.run(replace(request, resume=False, path=recipe.parent / "another"))
    assert not (recipe.parent / "another").exists()


@pytest.mark.slow
def test_a_rehearsal_needs_no_signing_key_and_a_run_does(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    overrides = ["release.sign={key: absent.pem}"]
    with pytest.raises(UsageFault, match=r"absent\.pem"):
        request_run(make_plan(read(recipe, overrides)), RunOptions(tmp_path / "run"))
    assert run_command(recipe, overrides, rehearse=True) == 0
