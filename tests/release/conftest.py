"""A finished run without training: a plan, a ledger as the gate writes it, and a release folder beside it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dprecipe.planning.make import plan as make_plan
from dprecipe.planning.model import Plan
from dprecipe.privacy import accountants, second_opinion
from dprecipe.privacy.ledger import Ledger, LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.release import folder
from dprecipe.release.facts import REQUIRED_CHECKS, CheckResult, PublicScore, RunFacts, package_versions

RECIPE = """\
extends: base.yaml
name: tampered
description: A test with <script>alert(1)</script> & "quotes"
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1437
mechanism:
  kind: dpsgd
  clip: {norm: 2.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
training:
  steps: 60
  optimizer: {kind: sgd, lr: 0.5}
"""
BASE = """\
recipe: dprecipe/v1
model: {kind: logistic_regression}
budget: {epsilon: 2.0, delta: 1e-5}
"""
HISTORY = [
    {"step": 20, "epsilon": 0.9, "accuracy": 0.713579, "loss": 0.9},
    {"step": 60, "epsilon": 2.0, "accuracy": 0.9, "loss": 0.4},
]


@dataclass(frozen=True)
class Finished:
    """A run folder with a release in it."""

    path: Path
    plan: Plan
    ledger: Ledger
    facts: RunFacts

    @property
    def release(self) -> Path:
        return self.path / "release"


def plan_of(text: str = RECIPE, overrides: tuple[str, ...] = (), file: str = "/secret/place/recipe.yaml") -> Plan:
    parents = [("base.yaml", BASE)] if text.startswith("extends") else []
    return make_plan(read_text(text, file, overrides, parents))


def facts_of(**changes: object) -> RunFacts:
    mechanism = str(changes.pop("mechanism", "dpsgd"))
    checks = (*(CheckResult(name, f"{name} holds", True) for name in sorted(REQUIRED_CHECKS[mechanism])),)
    fields = {
        "checks": checks,
        "versions": package_versions(),
        "device": "cpu",
        "started": "2026-01-01T10:00:00+00:00",
        "finished": "2026-01-01T10:05:00+00:00",
        "commitment": "ab" * 32,
        "score": PublicScore(0.9, 0.4, 360),
        **changes,
    }
    return RunFacts(**fields)  # type: ignore[arg-type]


def spend(path: Path, plan: Plan, *, crash_after: int = 0) -> Ledger:
    """A ledger of a complete run; with `crash_after`, of one that died with that many events reserved."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if crash_after:
        writer = LedgerWriter(path, plan.digest)
        writer.reserve(plan.events[0].event, crash_after)
        writer.abandon()
    writer = LedgerWriter(path, plan.digest)
    for charge in plan.events:
        left = charge.count
        while left:
            block = min(25, left)
            writer.reserve(charge.event, block)
            writer.settle(charge.event, block)
            left -= block
    writer.close("completed")
    return read(path)


def write_model(path: Path) -> None:
    (path / "model.safetensors").write_bytes(bytes(range(256)))
    (path / "model.json").write_text('{"kind": "logistic_regression"}', encoding="utf-8")


def finish(path: Path, plan: Plan, facts: RunFacts, *, crash_after: int = 0) -> Finished:
    ledger = spend(path / "private" / "ledger.jsonl", plan, crash_after=crash_after)
    folder.publish(path / "release", plan, ledger, facts, HISTORY, write_model)
    return Finished(path, plan, ledger, facts)


@pytest.fixture(scope="session", name="plan_of")
def plan_of_fixture() -> Callable[..., Plan]:
    return plan_of


@pytest.fixture(scope="session", name="facts_of")
def facts_of_fixture() -> Callable[..., RunFacts]:
    return facts_of


@pytest.fixture(scope="session", name="finish")
def finish_fixture() -> Callable[..., Finished]:
    return finish


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Read only: shared by all tests of a session."""
    return finish(tmp_path_factory.mktemp("finished") / "run", plan_of(), facts_of())


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Finished:
    """A run folder of one's own, to be tampered with."""
    shutil.copytree(finished.path, tmp_path / "run")
    return Finished(tmp_path / "run", finished.plan, finished.ledger, finished.facts)


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accountants are pure: asked the same, they answer from memory. They are the real ones."""
    for module, name in ((accountants, "epsilon_answer"), (accountants, "profile"), (second_opinion, "opinion")):
        monkeypatch.setattr(module, name, _remember(getattr(module, name)))


_MEMORY: dict[Any, Any] = {}


def _remember(function: Any) -> Any:
    def asked(*args: Any) -> Any:
        key = (function.__name__, *(tuple(a) if isinstance(a, list | tuple) else a for a in args))
        if key not in _MEMORY:
            _MEMORY[key] = function(*args)
        return _MEMORY[key]

    return asked
