"""A run that one version began, resumed by another."""

from __future__ import annotations

from pathlib import Path

import pytest

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import Interrupted, UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.recipe.read import read_text
from dprecipe.training.publish import provenance
from dprecipe.training.run import attempt, folder
from dprecipe.training.run.gate import Gate
from tests.recipe_texts import SMALL

NEXT, CLOSE, CLOSE_LEDGER = Gate._next, Gate.close, LedgerWriter.close


def plan_of(*overrides: str) -> Plan:
    return make_plan(read_text(SMALL.replace("1437", "1438"), overrides=overrides))


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of version 0.0.7 that was interrupted."""
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "__version__", "0.0.7")
        patch.setattr(Gate, "_next", lambda self: None if self.done > 5 else NEXT(self))
        patch.setattr(Gate, "close", lambda self, interrupted=False: CLOSE(self, True))
        patch.setattr(LedgerWriter, "close", lambda self, reason: CLOSE_LEDGER(self, "interrupted"))
        with pytest.raises(Interrupted):
            run(plan_of(), tmp_path / "run")
    return tmp_path / "run"


def test_the_ledger_says_which_rules_and_which_version_began_an_attempt(begun: Path) -> None:
    (program,) = read(begun / "private" / "ledger.jsonl").programs
    assert (program["rules"], program["version"]) == (provenance.RULES, "0.0.7")


@pytest.mark.slow
def test_another_version_of_the_same_rules_goes_on(begun: Path) -> None:
    done = run(plan_of(), begun, resume=True)
    assert done.stop_reason == "completed"
    assert dprecipe.verify(done.release).claim.epsilon > 0


def test_one_of_other_rules_is_refused_before_anything_is_spent(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "RULES", provenance.RULES + 1)
    with pytest.raises(UsageFault, match="other rules of training") as refused:
        run(plan_of(), begun, resume=True)
    assert "resume it with dprecipe 0.0.7" in refused.value.remedy
    assert read(begun / "private" / "ledger.jsonl").attempts == 1


def test_a_version_whose_plan_is_another_one_is_told_which_version_began(begun: Path) -> None:
    """Its solver may find another value for what the recipe leaves open."""
    with pytest.raises(UsageFault, match="follows another plan") as refused:
        run(plan_of("mechanism.noise.multiplier=40.0"), begun, resume=True)
    assert "by dprecipe 0.0.7" in refused.value.remedy


def test_its_own_version_is_not_named(begun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "__version__", "0.0.7")
    with pytest.raises(UsageFault, match="follows another plan") as refused:
        run(plan_of("mechanism.noise.multiplier=40.0"), begun, resume=True)
    assert "dprecipe 0.0.7" not in refused.value.remedy
