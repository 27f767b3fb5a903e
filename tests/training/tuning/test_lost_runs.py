"""A run that fails by itself after it began has ended: to make it anew would select by its noise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import DataFault, Interrupted, RunFailed
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning import order as orders
from dprecipe.training.tuning import trials as module
from dprecipe.training.tuning.draws import DrawnRuns
from dprecipe.training.tuning.order import RunOrder, RunTerms, make_parcel
from dprecipe.training.tuning.parcel import unpack
from dprecipe.training.tuning.pool import TrialPool
from dprecipe.training.tuning.trials import Trials
from dprecipe.training.tuning.winner import choose_winner, list_models

Tuned = Callable[..., Plan]
POINT = {"training.optimizer.lr": 1.0, "mechanism.clip.norm": 0.5}
DRAWN = DrawnRuns((POINT,) * 3, (1, 2, 3))


class Runner:
    """Charges a step, if it is to begin, and ends with a fault."""

    def __init__(self) -> None:
        self.attempts = 0
        self.begins = True
        self.fault: BaseException | None = None

    def prepare(self, *terms: Any) -> None: ...

    def attempt(self, plan: Plan, folder: RunFolder, *terms: Any) -> None:
        self.attempts += 1
        ledger = LedgerWriter(folder.ledger, plan.digest, {}, lambda before: None)
        if self.begins:
            ledger.reserve(plan.events[0].event, 1)
            ledger.settle(plan.events[0].event, 1)
        ledger.close("interrupted")
        if self.fault is not None:
            raise self.fault
        locate_result(folder).mkdir()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    made = Runner()
    monkeypatch.setattr(module, "runner_of", lambda plan: made)
    monkeypatch.setattr(Trials, "gather", lambda self, trial=None: None)
    return made


@pytest.mark.parametrize("fault", [RunFailed("the memory of cuda ran out"), DataFault("a record"), RuntimeError("nan")])
def test_a_run_that_fails_after_it_began_is_lost_and_never_made_again(
    tuned: Tuned, tmp_path: Path, runner: Runner, fault: Exception
) -> None:
    plan, runner.fault = tuned(), fault
    pool = TrialPool(plan.source, tmp_path / "trials", tmp_path, 1)
    pool.make_all(DRAWN)
    pool.make_all(DRAWN)
    assert runner.attempts == 3
    assert all(pool.trials.has_no_model(number) for number in range(3))
    assert str(fault) in (pool.trials.read_loss(0) or "")
    assert list_models(pool.trials, DRAWN) == []
    with pytest.raises(RunFailed, match="no run has one"):
        choose_winner(plan, pool.trials, DRAWN)


@pytest.mark.parametrize(("begins", "fault"), [(False, RunFailed("no")), (True, Interrupted("stopped"))])
def test_a_fault_before_it_began_and_a_stop_lose_nothing(
    tuned: Tuned, tmp_path: Path, runner: Runner, begins: bool, fault: Exception
) -> None:
    runner.begins, runner.fault = begins, fault
    pool = TrialPool(tuned().source, tmp_path / "trials", tmp_path, 1)
    with pytest.raises(type(fault)):
        pool.make_all(DRAWN)
    assert not any(pool.trials.is_done(number) for number in range(3))
    runner.fault = None
    pool.make_all(DRAWN)
    assert runner.attempts == 4
    assert not any(pool.trials.has_no_model(number) for number in range(3))


def test_a_resumed_run_that_can_not_go_on_draws_nothing_and_is_not_lost(
    tuned: Tuned, tmp_path: Path, runner: Runner
) -> None:
    """What it charged before it was stopped in order is no sign that it went on."""
    trials = Trials(tuned().source, tmp_path / "trials", tmp_path)
    runner.fault = Interrupted("stopped")
    with pytest.raises(Interrupted):
        trials.make(0, POINT)
    runner.begins, runner.fault = False, DataFault("missing")
    with pytest.raises(DataFault):
        trials.make(0, POINT)
    assert not trials.is_done(0)


CORRELATED = (
    "mechanism={kind: correlated, clip: {norm: 1.0}, noise: {form: banded, bands: 2, power: 0.8, multiplier: auto}, "
    "sampling: {scheme: cyclic_poisson, batch_size: 64}}"
)


@pytest.mark.parametrize(("overrides", "attempts"), [((), 2), ((CORRELATED,), 1)])
def test_a_stopped_run_goes_on_only_if_that_is_the_same_mechanism(
    tuned: Tuned, tmp_path: Path, runner: Runner, overrides: tuple[str, ...], attempts: int
) -> None:
    """Correlated noise that begins again, and new places, make another mechanism than that of the other runs."""
    trials = Trials(tuned(*overrides).source, tmp_path / "trials", tmp_path)
    runner.fault = Interrupted("stopped")
    with pytest.raises(Interrupted):
        trials.make(0, POINT)
    runner.fault = None
    trials.make(0, POINT)
    ledger = read(trials.folder(0).ledger)
    assert len(ledger.programs) == attempts
    assert sum(charge.count for charge in ledger.charges) == attempts
    assert trials.is_done(0)
    assert not trials.has_no_model(0)


def test_a_fault_of_the_score_loses_the_run(
    tuned: Tuned, tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its noise was drawn, perhaps: to draw it anew would choose."""

    def fail(*terms: object) -> None:
        raise RunFailed("no room")

    trials = Trials(tuned().source, tmp_path / "trials", tmp_path)
    trials._score = object()  # type: ignore[assignment]
    monkeypatch.setattr(Trials, "_read_held_out", lambda self, trial: None)
    monkeypatch.setattr(module, "keep_score", fail)
    trials.make(0, POINT)
    assert trials.has_no_model(0)


@pytest.mark.parametrize(("begins", "outcome"), [(False, "fault"), (True, "lost")])
def test_a_worker_says_whether_its_run_had_begun(
    tuned: Tuned, tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch, begins: bool, outcome: str
) -> None:
    source = tuned().source
    ready = Trials(source, tmp_path, tmp_path)
    monkeypatch.setattr(orders, "_ready_trials", lambda terms, place: ready.at(place, ()))
    runner.begins, runner.fault = begins, RunFailed("the memory of cuda ran out")
    terms = RunTerms(source, tmp_path, b"", {}, tmp_path / "workers")
    parcel = unpack(make_parcel(RunOrder(terms, 0, POINT, "token")), "token")
    assert parcel.outcome == outcome
    assert parcel.fault is not None
    assert "memory of cuda" in parcel.fault.message
    if begins:  # what it made can't be packed: a new attempt would draw anew
        runner.fault = None
        assert unpack(make_parcel(RunOrder(terms, 0, POINT, "token")), "token").outcome == "lost"
