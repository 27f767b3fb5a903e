"""Charged to an account: runs against PostgreSQL, tuned runs, several processes; and `account settle`, killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dprecipe.account.account import DataAccount
from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountUnavailable
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.standing import find_cost
from dprecipe.account.state import SETTLED, RunState
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.ledger import read as read_ledger
from dprecipe.release.charged_account import ChargedAccount, to_curve
from dprecipe.release.verify import verify
from dprecipe.training.publish.held import ReleaseHeldBack, complete_run
from dprecipe.training.run.account_run import settle_run
from dprecipe.training.tuning.run import tune
from tests.postgres import serve_postgres, without_server
from tests.training.processes.test_processes import RECIPE as TOGETHER
from tests.training.processes.test_processes import finished, started
from tests.training.run.test_kill import DPSGD, RECIPE, hold_killed
from tests.training.tuning.conftest import TUNING

pytestmark = pytest.mark.slow
LOGS = ("-wal", "-shm")


def make_account(address: str | Path, epsilon: float = 30.0) -> None:
    facts = new_facts("digits", epsilon, 1e-4, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    create_account(address, facts).close()


def hold_settled(address: str | Path, folder: Path) -> RunState:
    """The account's only run is settled, covers its ledger, and its release says what the account does."""
    ledger = read_ledger(folder / "private" / "ledger.jsonl")
    with closing(open_account(address)) as account:
        known, facts = account.find_run(str(ledger.programs[0]["account"]["run"])), account.facts
        count = account.verify()
    assert known is not None
    assert known.status == SETTLED
    assert known.counted.covers(find_cost(ledger.charges, facts.neighbouring, facts.cap))
    assert (count.totals.runs, count.totals.opened) == (1, 0)
    stated = verify(folder / "release").statement.predicate.account
    assert stated is not None
    assert (stated.run, stated.counted) == (known.run, to_curve(known.counted))
    assert not (folder / "private" / "held").exists()
    return known


def test_a_run_charged_to_a_database_is_killed_and_resumed(tmp_path: Path) -> None:
    with serve_postgres("fsync=on") as server:
        make_account(server)
        text = RECIPE % (DPSGD, "poisson, batch_size: 64", 60)
        hold_killed(tmp_path, text.replace("delta: 1e-5", f'delta: 1e-5, account: "{server}"'), kills=3)
        hold_settled(server, tmp_path / "run")


def test_a_release_is_held_back_while_its_server_is_down(
    small: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with serve_postgres("fsync=on") as server:
        make_account(server)

        def settle_alone(*terms: object, **named: object) -> ChargedAccount | None:
            with without_server(server):
                return settle_run(*terms, **named)  # type: ignore[arg-type]

        with monkeypatch.context() as lost:
            lost.setattr("dprecipe.training.run.account_run.settle_run", settle_alone)
            with pytest.raises(ReleaseHeldBack, match="can't be reached"):
                run(small(f"budget.account='{server}'"), out)
            with pytest.raises(AccountUnavailable):
                complete_run(out)
        assert complete_run(out).epsilon == verify(out / "release").claim.epsilon
        hold_settled(server, out)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Accounts can't be settled until this is called."""

    def refuse(self: DataAccount, *terms: object, **named: object) -> None:
        raise AccountUnavailable("the account can't be reached")

    honest = DataAccount.settle
    monkeypatch.setattr(DataAccount, "settle", refuse)
    return lambda: monkeypatch.setattr(DataAccount, "settle", honest)


def test_a_tuned_run_is_held_back_and_settled(
    small: Callable[..., Plan], tmp_path: Path, lost: Callable[[], None]
) -> None:
    out = tmp_path / "run"
    make_account(tmp_path / "digits.db")
    plan = small("training.steps=4", "budget.account=digits.db", "tuning.runs={kind: fixed, count: 2}", more=TUNING)
    with pytest.raises(ReleaseHeldBack):
        tune(plan, out, jobs=1)
    assert not (out / "release").exists()
    lost()
    shutil.move(str(tmp_path / "small.yaml"), tmp_path / "small.old")  # it is settled from its folder alone
    done = complete_run(out)
    assert done.epsilon == verify(out / "release").claim.epsilon
    assert not hold_settled(tmp_path / "digits.db", out).refundable
    assert len(list(out.rglob("model.safetensors"))) == 1  # that of the release: the losers are gone
    with pytest.raises(UsageFault, match="has its release"):
        complete_run(out)


def test_of_several_processes_one_asks_the_account(tmp_path: Path) -> None:
    make_account(tmp_path / "digits.db")
    text = TOGETHER.replace(", insecure: {seed: 5}", "").replace("delta: 1e-5", "delta: 1e-5, account: digits.db")
    code, _, err = finished(started(tmp_path, 2, text=text))
    assert code == 0, err
    known = hold_settled(tmp_path / "digits.db", tmp_path / "run-2")  # it verifies
    assert (known.attempt, known.last) == (1, 2)  # bound, reserved, settled: nobody asked twice


def test_settling_is_killed_at_random_moments(
    small: Callable[..., Plan], tmp_path: Path, lost: Callable[[], None]
) -> None:
    """Thirty kills of `account settle`, each of a run that waits: the next one completes it, and it counts once."""
    make_account(tmp_path / "digits.db")
    with pytest.raises(ReleaseHeldBack):
        run(small("budget.account=digits.db"), tmp_path / "run")
    lost()
    for name in ("run", "digits.db"):
        (tmp_path / name).rename(tmp_path / f"kept-{name}")
    luck, seconds, hits = random.Random(3), 0.0, 0
    completed: set[str] = set()
    reset(tmp_path)
    complete_run(tmp_path / "run")  # imports what children need, before they are forked
    for number in range(31):
        reset(tmp_path)
        begin = time.monotonic()
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            try:
                complete_run(tmp_path / "run")
            finally:
                os._exit(0)
        if number:  # the first one is timed
            time.sleep(luck.uniform(0, 0.9 * seconds))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        seconds = seconds or time.monotonic() - begin
        hits += os.WIFSIGNALED(status)
        try:
            complete_run(tmp_path / "run")
            completed.add("again")
        except UsageFault:
            completed.add("before")
        assert hold_settled(tmp_path / "digits.db", tmp_path / "run").last == 2
    assert hits >= 10  # of a busy machine; some twenty of a quiet one
    assert completed == {"again", "before"}


def reset(folder: Path) -> None:
    """The run and its account as they were before it was settled."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    shutil.copytree(folder / "kept-run", folder / "run")
    for suffix in LOGS:
        (folder / f"digits.db{suffix}").unlink(missing_ok=True)
    shutil.copy(folder / "kept-digits.db", folder / "digits.db")
