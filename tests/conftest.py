"""Options of the whole suite."""

from __future__ import annotations

import atexit
import gc
import os
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from safetensors.numpy import save_file

from dprecipe.contract.plan import Plan, PolicyRecord
from dprecipe.models import layout
from dprecipe.models.file import describe_file
from dprecipe.noisy_sum.certificate import CLIPPED_CHECKS
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.privacy.ledger import read as read_ledger
from dprecipe.recipe.read import read_text
from dprecipe.release import folder
from dprecipe.release.facts import CheckResult, ReleasedTensor, RunFacts, list_versions
from dprecipe.release.tensors import expected_shapes
from dprecipe.release.untrusted import to_bytes

# How long an example takes says how busy the machine is.
settings.register_profile("dprecipe", deadline=None)
settings.load_profile("dprecipe")

# As the command does: a last search for garbage takes a second after torch.
atexit.register(gc.freeze)

# A disk takes milliseconds for each sync, of which there are thousands, and no test waits for the power to fail: those
# of what must be synced, and when, put something in the place of this, or run in processes of their own.
os.fsync = lambda file: None

UNTIL = os.environ.get("DPRECIPE_LONG_TESTS_UNTIL", "")
"""The second (Unix time) after which no long test begins; empty where all of them run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden outputs; read the diff")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Python's collector looks in vain while tests are imported, and after that again and again through all of that."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffles the files where time is bounded, so that it is not always the same tests that find none."""
    if UNTIL:
        order = random.Random(UNTIL)
        places: dict[str, float] = {}
        items.sort(key=lambda item: places.setdefault(item.nodeid.partition("::")[0], order.random()))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if UNTIL and time.time() > float(UNTIL) and item.get_closest_marker("slow"):
        pytest.skip("no time was left: make test-long runs all")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden outputs are to be rewritten."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def put_release() -> Callable[..., RunFacts]:
    """Publishes what a run of a plan would have, without one; returns the facts of its certificate."""
    return _put_release


@pytest.fixture(scope="session")
def release_of() -> Callable[..., Path]:
    """Publishes what a run of a recipe of `dpsgd` would have, beside its ledger; returns the release."""

    def release_of(text: str, folder: Path, policies: tuple[PolicyRecord, ...] = (), **changes: Any) -> Path:
        plan = replace(make_plan(read_text(text)), policies=policies)
        ledger = LedgerWriter(folder / "ledger.jsonl", plan.digest)
        for charge in plan.events:
            ledger.reserve(charge.event, charge.count)
            ledger.settle(charge.event, charge.count)
        ledger.close("completed")
        checks = tuple(CheckResult(name, "it holds", True) for name in CLIPPED_CHECKS)
        facts = RunFacts(
            checks, list_versions(), "cpu", "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00+00:00", **changes
        )
        _put_release(folder / "release", plan, read_ledger(folder / "ledger.jsonl"), facts)
        return folder / "release"

    return release_of


def _tensors_of(plan: Plan) -> tuple[ReleasedTensor, ...]:
    """What a run of the plan would release; of models that are not known, something."""
    due = expected_shapes(plan)
    if due is None:
        return (ReleasedTensor("weight", (8,), "noisy_steps"),)
    trained = layout.trained_parameters(plan.model, due)
    return tuple(ReleasedTensor(name, due[name], "noisy_steps" if name in trained else "seed") for name in sorted(due))


def _put_release(
    target: Path, plan: Plan, ledger: Ledger, facts: RunFacts, history: Sequence[Mapping[str, float]] = ()
) -> RunFacts:
    tensors = facts.tensors or _tensors_of(plan)
    described: dict[str, Any] = describe_file(plan.model if facts.model == "recipe" else None, plan.data)

    def write(where: Path) -> None:
        save_file({t.name: np.ones(t.shape, np.float32) for t in tensors}, where / "model.safetensors")
        (where / "model.json").write_bytes(to_bytes(described))
        if plan.release.labels:
            (where / "labels.csv").write_text("record,label\n", encoding="utf-8")

    whole = replace(facts, tensors=tensors)
    folder.publish_draft(target, plan, ledger, whole, history, write)
    return whole
