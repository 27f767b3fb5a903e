"""A run and its account: what is reserved before anything is drawn, and what the account knows after each way out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dprecipe.account.account import DataAccount
from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountRefused, AccountUnavailable
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.standing import find_cost
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data import known_digests
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.records import Records
from dprecipe.faults import DataFault, Interrupted, PlanRefused, RecipeError, RunFailed, UsageFault
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.accounts import check_solved
from dprecipe.planning.make import plan
from dprecipe.policy.apply import enforce_on_plan
from dprecipe.policy.find import POLICY_FILE
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.ledger import Ledger, StopReason, read
from dprecipe.recipe.read import read as read_recipe
from dprecipe.release.charged_account import ChargedAccount
from dprecipe.release.verify import verify
from dprecipe.training.program.gather import Gathered, gather_records
from dprecipe.training.publish.held import ReleaseHeldBack, complete_run
from dprecipe.training.publish.provenance import Private, RunProvenance, digest_records
from dprecipe.training.run.account_run import check_account, digest_data, read_run_name, settle_run
from dprecipe.training.run.attempt import Attempt, open_attempt
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.gate import Gate
from dprecipe.training.run.runner import Start
from dprecipe.training.run.spend_once import spend_once
from tests.training.tuning.conftest import PAID, TUNING

Small = Callable[..., Plan]
OURS = RunProvenance((), torch.device("cpu"))
RECORDS: Private = {"commitment": [np.arange(6.0).reshape(2, 3)]}
START = Start(datetime.now(UTC))
NO_CONSTANTS: tuple[StageConstants, ...] = ()


@pytest.fixture
def charged(small: Small, tmp_path: Path) -> Plan:
    """The plan of a run of ε = 1 that is charged to an account of ε = 1.3."""
    make_account(tmp_path / "digits.db", 1.3)
    return small("budget.epsilon=1.0", "budget.account=digits.db")


@pytest.fixture
def folder(charged: Plan, tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", charged)


def make_account(
    path: Path, epsilon: float, unit: str = "record", limit: float | None = None, delta: float = 1e-4
) -> None:
    facts = new_facts(path.stem, epsilon, delta, unit, Neighbouring.ADD_OR_REMOVE_ONE, limit)
    create_account(path, facts).close()


def counted(folder: RunFolder) -> Spent:
    with closing(open_account(folder.path.parent / "digits.db")) as account:
        return account.state().spent


def cost(folder: RunFolder, *charges: Charge) -> Spent:
    with closing(open_account(folder.path.parent / "digits.db")) as account:
        return find_cost(charges, account.facts.neighbouring, account.facts.cap)


def hold_ledger(folder: RunFolder) -> Ledger:
    """The ledger; what it holds is within what the account counts for the run, at every order."""
    ledger = read(folder.ledger)
    with closing(open_account(folder.path.parent / "digits.db")) as account:
        known = account.find_run(str(read_run_name(ledger)))
    assert known is not None
    assert known.counted.covers(cost(folder, *ledger.charges))
    return ledger


def test_nothing_is_drawn_before_the_account_holds_the_whole_plan(
    charged: Plan, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DataAccount, *terms: object, **named: object) -> None:
        ledger = read(folder.ledger)  # the run's name is on disk before
        assert ledger.programs[-1]["account"]["run"] == terms[0]
        assert not ledger.charges
        raise AccountUnavailable("the cable is out")

    with monkeypatch.context() as broken:
        broken.setattr(DataAccount, "reserve", refuse)
        with pytest.raises(AccountUnavailable), open_attempt(charged, folder, START, OURS, RECORDS):
            pytest.fail("the attempt began")
    assert counted(folder).is_nothing
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        assert counted(folder) == cost(folder, *charged.events)
        attempt.ledger.reserve(charged.events[0].event, 3)
    assert read(folder.ledger).charges == (Charge(charged.events[0].event, 3),)


def test_a_ledger_takes_no_more_than_its_reservation(charged: Plan, folder: RunFolder) -> None:
    (planned,) = charged.events
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        with pytest.raises(RunFailed, match="more was about to be drawn"):
            attempt.ledger.reserve(planned.event, planned.count + 1)
        attempt.ledger.reserve(planned.event, planned.count)
        attempt.ledger.settle(planned.event, planned.count)
        with pytest.raises(RunFailed, match="more was about to be drawn"):
            attempt.ledger.reserve(planned.event, 1)
    assert hold_ledger(folder).charges == (planned,)


def spend(charged: Plan, folder: RunFolder, events: int) -> None:
    """An attempt that is killed after it has reserved some events."""

    class Killed(BaseException):
        pass

    with suppress(Killed), open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        attempt.ledger.reserve(charged.events[0].event, events)
        raise Killed


def test_a_resumed_attempt_reserves_what_was_lost_and_the_rest_of_the_plan(charged: Plan, folder: RunFolder) -> None:
    (planned,) = charged.events
    spend(charged, folder, 2)
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        assert counted(folder) == cost(folder, Charge(planned.event, planned.count + 2))
        attempt.ledger.reserve(planned.event, planned.count)
        attempt.ledger.settle(planned.event, planned.count)
        attempt.ledger.close("completed")
    assert hold_ledger(folder).attempts == 2


def take_all(attempt: Attempt, charged: Plan) -> Gate:
    """Let the gate admit what it will."""
    gate = Gate(charged.events, attempt.plan.budget, attempt.ledger, Secrets(), attempt.charged)
    while gate.admit() is not None:
        pass
    gate.close()
    return gate


def test_a_resumed_attempt_without_room_goes_on_within_what_it_had_and_ends_as_budget(
    charged: Plan, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (planned,) = charged.events
    spend(charged, folder, 12)
    with closing(open_account(tmp_path / "digits.db")) as account:  # another run takes the rest
        account.reserve("other", 1, (Charge(planned.event, planned.count // 3),), "other")
    before = counted(folder)
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        assert counted(folder) == before
        gate = take_all(attempt, charged)
    assert gate.stop_reason == "budget"
    assert "goes on within what it had reserved" in capsys.readouterr().err
    ledger = hold_ledger(folder)
    assert count_events(ledger.charges) == planned.count


def test_the_gate_asks_the_reservation_beside_the_budget(charged: Plan, folder: RunFolder) -> None:
    """Of a budget with room for more than is planned, no more is drawn than was reserved."""
    (planned,) = charged.events
    spend(charged, folder, 4)
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        attempt.ledger.reserve(planned.event, 20)  # the rest of the plan, and what was lost, but for 10
        attempt.ledger.settle(planned.event, 20)
        wide = replace(attempt.plan.budget, epsilon=50.0)
        gate = Gate(charged.events, wide, attempt.ledger, Secrets(), [*attempt.charged, Charge(planned.event, 20)])
        while gate.admit() is not None:
            pass
        assert (gate.close(), gate.done) == ("budget", planned.count - 20)
    assert count_events(hold_ledger(folder).charges) == planned.count + 4


def test_a_run_that_drew_nothing_gives_its_reservation_back(charged: Plan, folder: RunFolder) -> None:
    with pytest.raises(Interrupted), open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        raise attempt.interrupted("nothing")
    assert counted(folder).is_nothing
    spend(charged, folder, 1)
    assert not counted(folder).is_nothing


@pytest.mark.parametrize(("reason", "is_given_back"), [("budget", True), ("no_model", False)])
def test_a_run_without_a_model_gives_nothing_back(
    charged: Plan, folder: RunFolder, reason: StopReason, is_given_back: bool
) -> None:
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        attempt.ledger.reserve(charged.events[0].event, 1)
        attempt.ledger.close(reason)
    drawn = cost(folder, Charge(charged.events[0].event, 1))
    for _ in range(2):
        settle_run(charged, read(folder.ledger), None)
        assert counted(folder) == (drawn if is_given_back else cost(folder, *charged.events))


def test_a_folder_that_is_older_than_its_account_is_refused(charged: Plan, folder: RunFolder, tmp_path: Path) -> None:
    spend(charged, folder, 1)
    shutil.copytree(folder.path, tmp_path / "copy")
    spend(charged, folder, 2)
    before = counted(folder)
    with (
        pytest.raises(AccountRefused, match="a copy"),
        open_attempt(charged, RunFolder(tmp_path / "copy"), START, OURS, RECORDS),
    ):
        pytest.fail("the copy spends")
    assert counted(folder) == before
    with open_attempt(charged, folder, START, OURS, RECORDS):
        pass


def test_a_copy_that_was_refused_once_is_refused_again(charged: Plan, folder: RunFolder, tmp_path: Path) -> None:
    """Its next attempt has a number that the account has not seen."""
    spend(charged, folder, 1)
    shutil.copytree(folder.path, tmp_path / "copy")
    spend(charged, folder, 5)
    before = counted(folder)
    for _ in range(2):
        with (
            pytest.raises(AccountRefused, match="a copy"),
            open_attempt(charged, RunFolder(tmp_path / "copy"), START, OURS, RECORDS),
        ):
            pytest.fail("the copy spends")
    assert counted(folder) == before
    assert count_events(read(tmp_path / "copy" / "private" / "ledger.jsonl").charges) == 1


def copy_at_start(charged: Plan, folder: RunFolder, to: Path) -> Spent:
    """A copy of the folder of a run that then draws and is killed; what the account counts."""
    with suppress(SystemExit), open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        shutil.copytree(folder.path, to)
        attempt.ledger.reserve(charged.events[0].event, 20)
        raise SystemExit
    return counted(folder)


@pytest.fixture
def hidden(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The plan of a tuned run behind paid steps, whose one event shows nothing before its end."""
    make_account(tmp_path / "digits.db", 60.0)
    monkeypatch.setattr(Attempt, "run_stages", spend_stages)
    return small(PAID, "training.steps=6", "budget.account=digits.db", more=TUNING)


def spend_stages(attempt: Attempt, records: object) -> None:
    """In place of the paid steps: charges them, once."""
    if attempt.ledger.is_empty:
        attempt.ledger.reserve_all(attempt.plan.stage_charges)
        attempt.ledger.settle_all(attempt.plan.stage_charges)


def draw_hidden(plan: Plan, folder: RunFolder, during: Callable[[], None], end: StopReason | None = "completed") -> int:
    """An attempt at what is hidden, behind paid steps; gives how many times it was drawn. `end` None: it is killed."""
    assert plan.tuning is not None
    drawn = 0

    def draw() -> None:
        nonlocal drawn
        drawn += 1
        during()
        if end is None:
            raise SystemExit

    with suppress(SystemExit), open_attempt(plan, folder, START, OURS, RECORDS) as attempt:
        spend_once(attempt.ledger, plan.tuning.charge.event, draw)
        assert end is not None
        attempt.ledger.close(end)
    return drawn


def nothing() -> None:
    """Nothing happens while it is drawn."""


@pytest.mark.parametrize("end", ["completed", "no_model"])
def test_what_the_account_was_told_is_not_drawn_again_in_a_copy(hidden: Plan, tmp_path: Path, end: StopReason) -> None:
    """That no model came of it is an outcome, too."""
    folder = RunFolder.create(tmp_path / "run", hidden)
    copies = [tmp_path / "copy", tmp_path / "copy of the copy"]
    draw_hidden(hidden, folder, lambda: shutil.copytree(folder.path, copies[0]) and None, end)
    settle_run(hidden, read(folder.ledger), None)
    shutil.copytree(*copies)
    before = counted(folder)
    for copy in (copies[0], *copies):
        with pytest.raises(AccountRefused, match="older copy"):
            draw_hidden(hidden, RunFolder(copy), lambda: pytest.fail("drawn again"))
    assert counted(folder) == before
    assert draw_hidden(hidden, folder, nothing) == 0  # the run's own folder is published again
    assert counted(folder) == before


def test_of_two_copies_that_go_on_one_is_released(hidden: Plan, tmp_path: Path) -> None:
    """The run is killed while its event is drawn: its folder and a copy both hold the event, and nothing was seen."""
    folder, copy = RunFolder.create(tmp_path / "run", hidden), RunFolder(tmp_path / "copy")
    draw_hidden(hidden, folder, nothing, end=None)
    shutil.copytree(folder.path, copy.path)

    def resume_the_other() -> None:
        with pytest.raises(AccountRefused, match="a copy"):
            draw_hidden(hidden, folder, lambda: pytest.fail("drawn twice"))

    assert draw_hidden(hidden, copy, resume_the_other) == 1
    settle_run(hidden, read(copy.ledger), None)
    before = counted(folder)
    with pytest.raises(AccountRefused, match="a copy"):
        draw_hidden(hidden, folder, lambda: pytest.fail("drawn twice"))
    assert counted(folder) == before == cost(folder, *hidden.events)


def test_a_run_that_ends_after_its_copy_went_on_is_not_released(hidden: Plan, tmp_path: Path) -> None:
    """While the run draws, a copy of it is resumed, and is the account's last attempt from then on."""
    folder, copy = RunFolder.create(tmp_path / "run", hidden), RunFolder(tmp_path / "copy")

    def resume_a_copy() -> None:
        shutil.copytree(folder.path, copy.path)
        assert draw_hidden(hidden, copy, nothing) == 1

    draw_hidden(hidden, folder, resume_a_copy)
    with pytest.raises(AccountRefused, match="this folder is old"):
        settle_run(hidden, read(folder.ledger), None)
    settle_run(hidden, read(copy.ledger), None)
    assert counted(folder) == cost(folder, *hidden.events)


def test_a_copy_from_before_the_first_event_is_refused_once_the_run_is_settled(
    hidden: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = RunFolder.create(tmp_path / "run", hidden), RunFolder(tmp_path / "copy")

    def copy_folder(attempt: Attempt, records: object) -> None:
        shutil.copytree(folder.path, copy.path)
        spend_stages(attempt, records)

    with monkeypatch.context() as copied:
        copied.setattr(Attempt, "run_stages", copy_folder)
        draw_hidden(hidden, folder, nothing)
    settle_run(hidden, read(folder.ledger), None)
    with pytest.raises(AccountRefused, match="older copy"):
        draw_hidden(hidden, copy, lambda: pytest.fail("drawn twice"))


def test_steps_that_a_copy_takes_after_the_end_are_counted_beside_those_of_the_run(
    charged: Plan, folder: RunFolder, tmp_path: Path
) -> None:
    """The copy holds the last block as reserved: it counts as drawn, and what the copy draws in its place is more."""
    (planned,), copy = charged.events, RunFolder(tmp_path / "copy")
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        attempt.ledger.reserve(planned.event, planned.count)
        shutil.copytree(folder.path, copy.path)
        attempt.ledger.settle(planned.event, planned.count)
        attempt.ledger.close("completed")
    settle_run(charged, read(folder.ledger), None)
    five = (Charge(planned.event, 5),)
    with open_attempt(charged, copy, START, OURS, RECORDS, rest=lambda before: five) as attempt:
        attempt.ledger.reserve(planned.event, 5)
        attempt.ledger.settle(planned.event, 5)
        attempt.ledger.close("budget")
    settle_run(charged, read(copy.ledger), None)
    assert counted(folder) == cost(folder, Charge(planned.event, planned.count + 5))


def test_an_older_copy_that_draws_nothing_gives_nothing_back(charged: Plan, folder: RunFolder, tmp_path: Path) -> None:
    before = copy_at_start(charged, folder, tmp_path / "copy")
    with pytest.raises(UsageFault, match="killed"):
        complete_run(tmp_path / "copy")
    with pytest.raises(Interrupted), open_attempt(charged, RunFolder(tmp_path / "copy"), START, OURS, RECORDS) as again:
        raise again.interrupted("nothing")
    with pytest.raises(UsageFault, match="another came before"):
        complete_run(tmp_path / "copy")
    assert counted(folder) == before


def test_a_run_that_drew_nothing_while_its_account_was_lost_gives_it_back_later(
    charged: Plan, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: DataAccount, *terms: object, **named: object) -> None:
        raise AccountUnavailable("the cable is out")

    with monkeypatch.context() as broken:
        broken.setattr(DataAccount, "void", refuse)
        with pytest.raises(ValueError, match="a fault"), open_attempt(charged, folder, START, OURS, RECORDS):
            raise ValueError("a fault")
    assert not counted(folder).is_nothing
    for _ in range(2):
        assert complete_run(folder.path).account is None
        assert counted(folder).is_nothing


def test_what_is_planned_is_drawn_only_where_it_is_still_reserved(
    charged: Plan, folder: RunFolder, tmp_path: Path
) -> None:
    """A run that was settled, gave a part back, and has no release yet; another run takes that part."""
    (planned,) = charged.events
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        attempt.ledger.reserve(planned.event, 2)
        attempt.ledger.settle(planned.event, 2)
        attempt.ledger.close("budget")
    settle_run(charged, read(folder.ledger), None)
    with closing(open_account(tmp_path / "digits.db")) as account:
        account.reserve("other", 1, (planned,), "other")
    before = counted(folder)
    with (
        pytest.raises(RunFailed, match="more was about to be drawn"),
        open_attempt(charged, folder, START, OURS, RECORDS) as attempt,
    ):
        attempt.ledger.reserve(planned.event, 1)
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:  # a run does not come so far
        gate = take_all(attempt, charged)
    assert (gate.stop_reason, gate.done) == ("budget", 0)
    assert counted(folder) == before
    assert hold_ledger(folder).charges == (Charge(planned.event, 2),)


def test_other_data_are_refused(charged: Plan, folder: RunFolder, tmp_path: Path) -> None:
    spend(charged, folder, 1)
    other = RunFolder.create(tmp_path / "other", charged)
    records: Private = {"commitment": [np.arange(6.0).reshape(3, 2) + 1]}
    with pytest.raises(AccountRefused, match="other data"), open_attempt(charged, other, START, OURS, records):
        pytest.fail("other data")
    assert not read(other.ledger).charges


def test_a_link_that_leads_to_another_account_meanwhile_is_noticed(small: Small, tmp_path: Path) -> None:
    """Before it begins, a run looks at the account; its link then leads to one for other people."""
    make_account(tmp_path / "own.db", 1.3)
    make_account(tmp_path / "patients.db", 9.0, unit="patient")
    (tmp_path / "digits.db").symlink_to("own.db")
    linked = small("budget.epsilon=1.0", "budget.account=digits.db")
    check_account(linked, is_new=True)
    (tmp_path / "digits.db").unlink()
    (tmp_path / "digits.db").symlink_to("patients.db")
    folder = RunFolder.create(tmp_path / "run", linked)
    with pytest.raises(PlanRefused) as refused, open_attempt(linked, folder, START, OURS, RECORDS):
        pytest.fail("other people")
    assert [finding.code for finding in refused.value.findings] == ["P200"]
    assert not read(folder.ledger).charges
    assert counted(folder).is_nothing


def test_data_that_were_bound_meanwhile_are_other_data(
    charged: Plan, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between this run's look at the account and its reservation, another run has bound it anew: nothing counted."""
    honest = DataAccount.bind

    def bind(self: DataAccount, data: bytes) -> tuple[str, ...]:
        warnings = honest(self, data)
        honest(self, b"others".ljust(32))
        return warnings

    monkeypatch.setattr(DataAccount, "bind", bind)
    with pytest.raises(AccountRefused, match="other data"), open_attempt(charged, folder, START, OURS, RECORDS):
        pytest.fail("other data")
    assert counted(folder).is_nothing


def test_records_from_python_are_known_by_what_they_hold_alone(charged: Plan, folder: RunFolder) -> None:
    rows, labels = np.arange(6.0).reshape(2, 3), np.zeros(2, np.int64)
    records, others = Records(rows, labels), Records(rows.reshape(3, 2), np.zeros(3, np.int64))
    one, two = ({"commitment": [rows, labels, np.array(dealt)]} for dealt in (1, 2))  # who learns from which: PATE's
    assert digest_records(records, one) == digest_records(records, two) != digest_records(others, one)
    unknown: Private = {"commitment": None}  # a source of its own kind
    with (
        pytest.raises(UsageFault, match="can't tell one from another"),
        open_attempt(charged, folder, START, OURS, unknown),
    ):
        pytest.fail("unknown data")
    assert counted(folder).is_nothing


def test_a_trial_and_a_recipe_without_an_account_ask_none(small: Small, charged: Plan, tmp_path: Path) -> None:
    trial, plain = RunFolder.create(tmp_path / "trial", charged), RunFolder.create(tmp_path / "plain", small())
    with open_attempt(charged, trial, Start(START.moment, trial=True), OURS, RECORDS) as attempt:
        attempt.ledger.reserve(charged.events[0].event, 1)
    with open_attempt(small(), plain, START, OURS, RECORDS) as attempt:
        attempt.ledger.reserve(small().events[0].event, 1)
    assert counted(trial).is_nothing
    assert all("account" not in program for f in (trial, plain) for program in read(f.ledger).programs)
    assert not (plain.private / "account.json").exists()
    assert "account" not in small().resolved["budget"]


def test_an_account_that_does_not_fit_refuses_before_anything_is_read(small: Small, tmp_path: Path) -> None:
    make_account(tmp_path / "tight.db", 0.5, delta=1e-6)
    make_account(tmp_path / "people.db", 9.0, unit="patient")
    make_account(tmp_path / "limited.db", 9.0, limit=0.9, delta=1e-7)
    with pytest.raises(AccountRefused, match="does not fit") as refused:
        check_account(small("budget.epsilon=0.49", "budget.account=tight.db"), is_new=True)
    assert refused.value.affordable_share is not None
    assert 0 < refused.value.affordable_share < 1
    assert "% of this run" in refused.value.remedy
    for name, code in (("tight", "P202"), ("people", "P200"), ("limited", "P203")):
        with pytest.raises(PlanRefused) as fits_not:
            check_account(small("budget.epsilon=1.0", f"budget.account={name}.db"), is_new=True)
        assert [finding.code for finding in fits_not.value.findings] == [code]
    with pytest.raises(UsageFault, match="no account"):
        check_account(small("budget.account=absent.db"), is_new=True)
    # What a run claims counts, not what it costs the account at another δ.
    check_account(small("budget.epsilon=0.9", "budget.account=limited.db"), is_new=True)
    free = small("budget.epsilon=auto", "mechanism.noise.multiplier=0.9", "budget.account=limited.db")
    with closing(open_account(tmp_path / "limited.db")) as account:
        assert [finding.code for finding in check_solved(free, account.facts)] == ["P203"]


def test_data_are_known_by_their_files_and_by_nothing_that_a_recipe_takes_of_them(small: Small, tmp_path: Path) -> None:
    def digest(path: str, columns: str) -> bytes | None:
        source = f"data.train={{source: csv, path: {path}, columns: {columns}, label: {{column: y, classes: 2}}}}"
        sets = (source, "data.test=null", "data.preprocess=[]", "data.size=2000")
        return digest_data(small("budget.account=digits.db", *sets), tmp_path)

    (tmp_path / "a.csv").write_text("x,z,y\n1,2,0\n", encoding="utf-8")
    shutil.copy(tmp_path / "a.csv", tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("x,z,y\n1,2,1\n", encoding="utf-8")
    one, two = (
        "{x: {kind: numeric, min: 0, max: 1}}",
        "{x: {kind: numeric, min: 0, max: 1}, z: {kind: numeric, min: 0, max: 1}}",
    )
    assert digest("a.csv", one) == digest("b.csv", two) != digest("c.csv", one)
    assert digest_data(small(), tmp_path) is None
    assert digest_data(small("budget.account=digits.db"), tmp_path) is not None


def test_a_copy_among_the_files_makes_other_data(small: Small, tmp_path: Path) -> None:
    """Each record of theirs would be there twice, and its protection half of what is charged."""

    def digest(paths: str, kind: str = "csv") -> bytes | None:
        columns = "columns: {x: {kind: numeric, min: 0, max: 1}}, label: {column: y, classes: 2}"
        scans = "shape: [8, 8, 1], label: {column: folder, values: [a, b]}"
        source = f"data.train={{source: {kind}, path: {paths}, {columns if kind == 'csv' else scans}}}"
        sets = (source, "data.test=null", "data.preprocess=[]", "data.size=2000")
        return digest_data(small("budget.account=digits.db", *sets), tmp_path)

    for name in ("a.csv", "scans/a/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x,y\n1,0\n", encoding="utf-8")
    before = digest("a.csv"), digest("scans", "image_folder")
    assert digest("'a*.csv'") == before[0]
    shutil.copy(tmp_path / "a.csv", tmp_path / "a2.csv")
    (tmp_path / "scans" / "a" / "2.png").symlink_to("1.png")
    assert digest("'a*.csv'") != before[0] != digest("[a.csv, a2.csv]")
    assert digest("scans", "image_folder") != before[1]


def test_the_table_that_says_whose_an_image_is_belongs_to_the_data(small: Small, tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "1.png").touch()

    def digest(unit: str, table: str) -> bytes | None:
        (tmp_path / "scans.csv").write_text(table, encoding="utf-8")
        source = (
            "data.train={source: image_folder, path: scans, table: scans.csv, shape: [8, 8, 1], label: {column: y, "
            "classes: 2}}"
        )
        sets = (source, f"data.unit={unit}", "data.test=null", "data.preprocess=[]", "data.size=2000")
        return digest_data(small("budget.account=digits.db", *sets), tmp_path)

    one, two = "file,y,patient\n1.png,0,7\n", "file,y,patient\n1.png,0,8\n"
    assert digest("record", one) == digest("record", two)
    patient = "{column: patient, max_records: 2}"
    assert digest(patient, one) != digest(patient, two)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Accounts can't be settled until this is called."""

    def refuse(self: DataAccount, *terms: object, **named: object) -> None:
        raise AccountUnavailable("the account can't be reached")

    honest = DataAccount.settle
    monkeypatch.setattr(DataAccount, "settle", refuse)
    return lambda: monkeypatch.setattr(DataAccount, "settle", honest)


def test_a_run_that_its_account_does_not_know_is_not_called_old(
    charged: Plan, folder: RunFolder, tmp_path: Path
) -> None:
    with open_attempt(charged, folder, START, OURS, RECORDS) as attempt:
        take_all(attempt, charged)
    (tmp_path / "digits.db").rename(tmp_path / "own.db")
    make_account(tmp_path / "digits.db", 1.3)
    with pytest.raises(AccountRefused, match="knows nothing of this run"):
        complete_run(folder.path)
    with open_attempt(charged, folder, START, OURS, RECORDS):  # the remedy, where the account is lost
        pass
    assert settle_run(charged, read(folder.ledger), None) is not None


@pytest.mark.slow
def test_a_release_is_held_back_while_its_account_is_gone(
    charged: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def lose(*terms: object, **named: object) -> ChargedAccount | None:
        (tmp_path / "digits.db").rename(tmp_path / "elsewhere.db")
        return settle_run(*terms, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as lost:
        lost.setattr("dprecipe.training.run.account_run.settle_run", lose)
        with pytest.raises(ReleaseHeldBack, match="there is no account"):
            run(charged, out)
    (tmp_path / "elsewhere.db").rename(tmp_path / "digits.db")
    assert complete_run(out).epsilon == verify(out / "release").claim.epsilon


@pytest.mark.slow
def test_a_release_is_held_back_while_its_account_is_lost(
    charged: Plan, tmp_path: Path, lost: Callable[[], None]
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ReleaseHeldBack, match="held back") as held:
        run(charged, out)
    assert f"dprecipe account settle {out}" in held.value.remedy
    assert not (out / "release").exists()
    with pytest.raises(AccountUnavailable):
        complete_run(out)
    lost()
    done = complete_run(out)
    verified = verify(out / "release")
    stated = verified.statement.predicate.account
    assert stated is not None
    assert stated == done.account
    assert done.epsilon == verified.claim.epsilon
    assert not (out / "private" / "held").exists()
    assert hold_ledger(RunFolder(out)).stop_reason == "completed"
    with pytest.raises(UsageFault, match="has its release"):
        complete_run(out)


def test_a_run_is_settled_below_the_policies_and_beside_the_key_of_the_link_that_it_was_started_by(
    charged: Plan, tmp_path: Path
) -> None:
    (tmp_path / "team").mkdir()
    link = tmp_path / "team" / "link.yaml"
    link.symlink_to(tmp_path / "small.yaml")
    linked = plan(read_recipe(link, charged.source.overrides))
    folder = RunFolder.create(tmp_path / "run", linked)
    (tmp_path / "team" / POLICY_FILE).write_text("rules: []")  # can't be read: allows nothing
    with open_attempt(linked, folder, START, OURS, RECORDS) as attempt:
        take_all(attempt, linked)
    source = json.loads((folder.private / "account.json").read_text())
    with pytest.raises(RecipeError, match="team"):
        enforce_on_plan(replace(linked, source=replace(linked.source, file=source["file"])))
    assert complete_run(folder.path).account is not None  # its account is where the recipe lies, as before


@pytest.mark.slow
def test_a_release_that_waited_keeps_to_the_policies_of_today(
    charged: Plan, tmp_path: Path, lost: Callable[[], None]
) -> None:
    out, policy = tmp_path / "run", tmp_path / POLICY_FILE
    text = "policy: dprecipe/v1\nname: hospital\nrules: [{name: all, max_epsilon: %s}]\n"
    policy.write_text(text % 1.0)
    with pytest.raises(ReleaseHeldBack):
        run(charged, out)
    lost()
    policy.write_text(text % 0.5)
    with pytest.raises(PlanRefused, match="the run began under another text: hospital"):
        complete_run(out)
    assert not (out / "release").exists()
    policy.write_text(text % 1.0)
    complete_run(out)
    (stated,) = verify(out / "release").statement.predicate.provenance.policies
    assert stated.name == "hospital"  # and the certificate names it, as that of a run that waited for nothing does


CSV = """
recipe: dprecipe/v1
name: people
data:
  train:
    source: csv
    path: people.csv
    columns: {age: {kind: numeric, min: 0, max: 100}}
    label: {column: ill, values: ["no", "yes"]}
  size: 60
  unit: record
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 16}
budget: {epsilon: 0.5, delta: 1.0e-5, account: people.db}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.1}}
runtime: {prepared: kept}
release: {report: false}
"""


@pytest.fixture
def people(tmp_path: Path) -> Plan:
    """The plan of a run on a file of 60 records, with a folder of copies."""
    (tmp_path / "people.csv").write_text("age,ill\n" + "33,yes\n44,no\n" * 30)
    (tmp_path / "people.yaml").write_text(CSV)
    make_account(tmp_path / "people.db", 2.0)
    return plan(read_recipe(tmp_path / "people.yaml"))


def test_the_account_is_bound_to_the_records_that_are_used(
    people: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the memory of digests says that a file holds what it held before: a program that has it mapped can
    change it without a trace."""
    monkeypatch.setattr(known_digests, "state_of", lambda file: (0,) * 5)  # nothing tells of a change
    ages = []
    for ill, well in ((33, 44), (33, 44), (55, 66)):
        (tmp_path / "people.csv").write_text("age,ill\n" + f"{ill},yes\n{well},no\n" * 30)
        gathered = gather_records(people, tmp_path).prepared("train")
        assert gathered is not None
        ages.append(np.asarray(gathered.batch(slice(0, 60))[0]))
    assert (ages[0] == ages[1]).all()
    assert (ages[1] != ages[2]).all()


def test_a_file_that_is_replaced_while_it_is_read_ends_the_run(
    people: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(*arguments: Any) -> Gathered:
        gathered = gather_records(*arguments)
        (tmp_path / "other.csv").write_text("age,ill\n" + "55,yes\n66,no\n" * 30)
        (tmp_path / "other.csv").rename(tmp_path / "people.csv")
        return gathered

    monkeypatch.setattr("dprecipe.training.run.start.gather_records", gather)
    monkeypatch.setenv("DPRECIPE_DATA", str(tmp_path))
    with pytest.raises(DataFault, match=r"people.csv: changed while it was read"):
        run(people, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with closing(open_account(tmp_path / "people.db")) as account:
        assert account.state().totals.commitment is None
