"""A release without training, of a recipe's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.mechanisms.dpsgd.certificate import CHECKS
from dprecipe.mechanisms.plan import PolicyRecord
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.release.facts import CheckResult, RunFacts, list_versions

MOMENT = "2026-01-01T00:00:00+00:00"


@pytest.fixture(scope="session")
def release_of(put_release: Any) -> Callable[..., Path]:
    def release_of(text: str, folder: Path, policies: tuple[PolicyRecord, ...] = (), **changes: Any) -> Path:
        plan = replace(make_plan(read_text(text)), policies=policies)
        ledger = LedgerWriter(folder / "ledger.jsonl", plan.digest)
        for charge in plan.events:
            ledger.reserve(charge.event, charge.count)
            ledger.settle(charge.event, charge.count)
        ledger.close("completed")
        checks = tuple(CheckResult(name, "it holds", True) for name in CHECKS)
        facts = RunFacts(checks, list_versions(), "cpu", MOMENT, MOMENT, **changes)
        put_release(folder / "release", plan, read(folder / "ledger.jsonl"), facts)
        return folder / "release"

    return release_of
