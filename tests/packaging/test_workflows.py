"""The workflows: least permissions, pinned actions, commands that the Makefile has, and the promised Pythons."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WRITES = {
    ("release.yml", "attest"): {"id-token", "attestations"},
    ("release.yml", "pypi"): {"id-token"},
    ("release.yml", "github"): {"contents"},
}
"""Jobs that may write, and what."""
PINNED = re.compile(r"uses: (?P<name>[\w-]+/[\w-]+)@(?P<commit>[0-9a-f]{40}) # v\d+\.\d+\.\d+$")


def read(path: Path) -> dict[str, Any]:
    # YAML 1.1 takes the key `on` for true: as text it stays what it is.
    workflow: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    return workflow


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> list[str]:
    return [step["run"] for step in steps(path) if "run" in step]


def test_there_are_workflows_for_changes_versions_and_releases() -> None:
    assert [path.name for path in FILES] == ["ci.yml", "release.yml", "versions.yml"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_job_may_do_only_what_it_needs(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    for name, job in workflow["jobs"].items():
        writes = {what for what, how in job["permissions"].items() if how != "read"}
        assert writes == WRITES.get((path.name, name), set()), name
        assert int(job["timeout-minutes"]) <= 60
        checks_out = any(step.get("uses", "").startswith("actions/checkout") for step in job["steps"])
        assert not (writes and checks_out), f"{name}: what may write runs no code of the repository"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_action_is_pinned_by_its_commit_and_a_checkout_keeps_no_password(path: Path) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text(encoding="utf-8").splitlines()]
    uses = [line for line in lines if line.startswith("uses:")]
    assert len(uses) == sum("uses" in step for step in steps(path)) > 0
    assert [line for line in uses if not PINNED.fullmatch(line)] == []
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] == "false"


def test_an_action_has_one_commit_everywhere() -> None:
    found = {
        match.groups()
        for path in FILES
        for line in path.read_text(encoding="utf-8").splitlines()
        if (match := PINNED.search(line))
    }
    assert len(found) == len({name for name, _ in found}) >= 7


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_text_from_outside_becomes_a_command(path: Path) -> None:
    assert [command for command in commands(path) if "${{" in command] == []
    assert "pull_request_target" not in read(path)["on"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_command_of_make_is_a_target(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    called = {target for command in commands(path) for target in re.findall(r"\bmake ([\w-]+)", command)}
    assert called
    assert called <= targets


def test_changes_are_held_against_what_contributing_names_and_what_ci_runs() -> None:
    (block,) = re.findall(r"This is what CI runs:\n\n```\n(.+?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    named = block.splitlines()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    called = commands(ROOT / ".github" / "workflows" / "ci.yml")
    assert named
    assert [line for line in named if line not in called or line not in script] == []


def test_the_pythons_that_are_promised_are_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    job = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]
    tried = job["strategy"]["matrix"]["python"]
    may_fail = set(re.findall(r"3\.\d+", job["continue-on-error"]))
    assert promised
    assert set(tried) == {*promised, *may_fail}
    assert not may_fail & set(promised)
    assert project["requires-python"] == f">={promised[0]}"
