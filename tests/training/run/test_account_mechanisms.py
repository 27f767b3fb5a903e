"""Runs of every mechanism charged to an account: what it counts covers the ledger, and the release verifies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountRefused
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.standing import find_cost
from dprecipe.account.state import RunState
from dprecipe.account.statement import export_statement
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid, Interrupted
from dprecipe.mechanisms.pnsgd.train import run as descent
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import count_by_event, order_charges
from dprecipe.privacy.ledger import read as read_ledger
from dprecipe.recipe.read import read
from dprecipe.release.account_statement import hold_statement
from dprecipe.release.untrusted import to_bytes
from dprecipe.release.verify import Verified, verify
from dprecipe.training.run import attempt
from dprecipe.training.tuning.pool import TrialPool
from dprecipe.training.tuning.run import tune
from tests.chaos.recipes import recipes
from tests.training.tuning.conftest import PAID, TUNING

pytestmark = pytest.mark.slow
CHAOS = recipes(report=False)


def make_account(folder: Path, relation: Neighbouring, epsilon: float = 60.0) -> None:
    create_account(folder / "digits.db", new_facts("digits", epsilon, 1e-4, "record", relation)).close()


def hold_run(folder: Path, plan: Plan) -> RunState:
    """The ledger is within what the account counts, which is settled; the release says what the account's statement
    does."""
    ledger = read_ledger(folder / "private" / "ledger.jsonl")
    with closing(open_account(folder.parent / "digits.db")) as account:
        known = account.find_run(str(ledger.programs[0]["account"]["run"]))
        assert known is not None
        assert known.status == "settled"
        assert known.counted.covers(find_cost(ledger.charges, account.facts.neighbouring, account.facts.cap))
        with account.snapshot() as books:
            statement = export_statement(books)
    (folder.parent / "statement.json").write_bytes(to_bytes(statement))
    held = hold_statement(verify(folder / "release"), folder.parent / "statement.json")
    assert any("recomputed from its entries" in line for line in held.checked)
    statement["entries"][-1]["attempt"] += 1
    (folder.parent / "forged.json").write_bytes(to_bytes(statement))
    with pytest.raises(CertificateInvalid):
        hold_statement(verify(folder / "release"), folder.parent / "forged.json")
    refuse_other_reservation(held, folder.parent / "statement.json")
    refuse_other_files(held, folder.parent / "statement.json")
    return known


def refuse_other_files(held: Verified, statement: Path) -> None:
    """A second release of equal events that claims the settlement of the first."""
    model = next(subject for subject in held.statement.subject if subject.name == "model.safetensors")
    other = model.model_copy(update={"digest": model.digest.model_copy(update={"sha256": "0" * 64})})
    subjects = tuple(other if subject.name == model.name else subject for subject in held.statement.subject)
    forged = held.statement.model_copy(update={"subject": subjects})
    with pytest.raises(CertificateInvalid, match="not the files that the account's settlement names"):
        hold_statement(replace(held, statement=forged), statement)


def refuse_other_reservation(held: Verified, statement: Path) -> None:
    """A certificate that says that less was reserved, as if the account had stopped the run."""
    predicate = held.statement.predicate
    assert predicate.account is not None
    less = predicate.account.reserved.model_copy(update={"delta": 0.009})
    account = predicate.account.model_copy(update={"reserved": less})
    forged = held.statement.model_copy(update={"predicate": predicate.model_copy(update={"account": account})})
    with pytest.raises(CertificateInvalid, match="not what the statement's entries come to"):
        hold_statement(replace(held, statement=forged), statement)


@pytest.mark.parametrize(
    ("mechanism", "relation"),
    [
        ("dpsgd", Neighbouring.ADD_OR_REMOVE_ONE),
        ("encoded", Neighbouring.ADD_OR_REMOVE_ONE),
        ("pate", Neighbouring.ZERO_OUT_ONE),
        ("pnsgd", Neighbouring.REPLACE_ONE),
    ],
)
def test_a_run_of_each_mechanism(mechanism: str, relation: Neighbouring, tmp_path: Path) -> None:
    make_account(tmp_path, relation)
    (tmp_path / "recipe.yaml").write_text(CHAOS[mechanism][0], encoding="utf-8")
    plan = make_plan(read(tmp_path / "recipe.yaml", ["budget.account=digits.db"]))
    run(plan, tmp_path / "run")
    known = hold_run(tmp_path / "run", plan)
    with closing(open_account(tmp_path / "digits.db")) as account:
        assert account.state().spent == known.counted
        planned = find_cost(plan.events, account.facts.neighbouring, account.facts.cap)
    assert planned.covers(known.counted)


def test_a_release_that_another_has_replaced_no_longer_verifies(small: Callable[..., Plan], tmp_path: Path) -> None:
    make_account(tmp_path, Neighbouring.ADD_OR_REMOVE_ONE)
    plan = small("budget.account=digits.db")
    run(plan, tmp_path / "run")
    known = hold_run(tmp_path / "run", plan)
    with closing(open_account(tmp_path / "digits.db")) as account:
        charges = read_ledger(tmp_path / "run/private/ledger.jsonl").charges
        account.settle(known.run, known.attempt, order_charges(count_by_event(charges)), True, f"sha256:{'0' * 64}")
        account.verify()
        with account.snapshot() as books:
            (tmp_path / "later.json").write_bytes(to_bytes(export_statement(books)))
    with pytest.raises(CertificateInvalid, match="has settled another release of this run since"):
        hold_statement(verify(tmp_path / "run" / "release"), tmp_path / "later.json")


def test_an_interrupted_run_of_votes_reserves_its_limit_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_account(tmp_path, Neighbouring.ZERO_OUT_ONE)
    (tmp_path / "recipe.yaml").write_text(CHAOS["pate"][0], encoding="utf-8")
    plan = make_plan(read(tmp_path / "recipe.yaml", ["budget.account=digits.db"]))

    def interrupt(self: attempt.Attempt, finished: object) -> None:
        raise Interrupted("the release was about to be written")

    with monkeypatch.context() as stopped:
        stopped.setattr(attempt.Attempt, "publish", interrupt)
        with pytest.raises(Interrupted):
            run(plan, tmp_path / "run")
    run(plan, tmp_path / "run", resume=True)
    known = hold_run(tmp_path / "run", plan)
    with closing(open_account(tmp_path / "digits.db")) as account:
        assert find_cost(plan.events, account.facts.neighbouring, account.facts.cap).covers(known.counted)


@pytest.mark.parametrize("overrides", [(), (PAID,)], ids=["alone", "behind paid steps"])
def test_a_tuned_run_reserves_its_one_event(
    small: Callable[..., Plan], tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    make_account(tmp_path, Neighbouring.ADD_OR_REMOVE_ONE)
    plan = small("training.steps=6", "budget.account=digits.db", *overrides, more=TUNING)
    tune(plan, tmp_path / "run")
    known = hold_run(tmp_path / "run", plan)
    assert not known.refundable
    with closing(open_account(tmp_path / "digits.db")) as account:
        assert account.state().totals.runs == 1  # no trial asked
    assert count_by_event(read_ledger(tmp_path / "run/private/ledger.jsonl").charges) == count_by_event(plan.events)


def test_paid_steps_are_reserved_with_the_rest(small: Callable[..., Plan], tmp_path: Path) -> None:
    make_account(tmp_path, Neighbouring.ADD_OR_REMOVE_ONE)
    plan = small(PAID, "budget.account=digits.db")
    run(plan, tmp_path / "run")
    hold_run(tmp_path / "run", plan)


def test_a_copy_of_a_finished_run_can_not_be_resumed(small: Callable[..., Plan], tmp_path: Path) -> None:
    """A folder without its release is published again, and counted once; a copy of it after that is refused."""
    make_account(tmp_path, Neighbouring.ADD_OR_REMOVE_ONE)
    plan = small("budget.account=digits.db")
    run(plan, tmp_path / "run")
    before = hold_run(tmp_path / "run", plan)
    shutil.rmtree(tmp_path / "run" / "release")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run(plan, tmp_path / "run", resume=True)
    assert hold_run(tmp_path / "run", plan).counted == before.counted
    with pytest.raises(AccountRefused, match="a copy"):
        run(plan, tmp_path / "copy", resume=True)


@pytest.mark.parametrize("mechanism", ["pnsgd", "tune", "tune behind paid steps"])
def test_a_copy_from_before_the_end_of_a_hidden_event_releases_nothing(
    mechanism: str, small: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event is in the ledger, unsettled. The run's own folder has released what it drew, so that to draw it again
    would be a second release under one charge."""
    relation = Neighbouring.REPLACE_ONE if mechanism == "pnsgd" else Neighbouring.ADD_OR_REMOVE_ONE
    account = create_account(tmp_path / "digits.db", new_facts("digits", 60.0, 1e-4, "record", relation))
    if mechanism == "pnsgd":
        (tmp_path / "recipe.yaml").write_text(CHAOS["pnsgd"][0], encoding="utf-8")
        plan, execute = make_plan(read(tmp_path / "recipe.yaml", ["budget.account=digits.db"])), run
    else:
        paid = (PAID,) if "paid" in mechanism else ()
        plan, execute = small("training.steps=6", "budget.account=digits.db", *paid, more=TUNING), tune
    with monkeypatch.context() as copied:
        for owner, name in ((descent, "_descend"), (TrialPool, "make_all")):
            copied.setattr(owner, name, copy_before(getattr(owner, name), tmp_path))
        execute(plan, tmp_path / "run")
    shutil.copytree(tmp_path / "copy", tmp_path / "copy of the copy")
    before = hold_run(tmp_path / "run", plan)
    for copy in ("copy", "copy", "copy of the copy"):
        with pytest.raises(AccountRefused, match="older copy"):
            execute(plan, tmp_path / copy, resume=True)
        assert not (tmp_path / copy / "release").exists()
    assert account.find_run(before.run) == before
    account.close()


def copy_before(function: Callable[..., object], folder: Path) -> Callable[..., object]:
    """The function, before which the run is copied."""

    def copy_and_call(*terms: object, **named: object) -> object:
        shutil.copytree(folder / "run", folder / "copy")
        return function(*terms, **named)

    return copy_and_call
