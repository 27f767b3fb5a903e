"""The frame of every attempt: what the ledger says after each way out of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from dprecipe.contract.plan import Plan
from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import Ledger, read
from dprecipe.training.publish.provenance import Private, RunProvenance
from dprecipe.training.publish.publish import Finished
from dprecipe.training.run.attempt import open_attempt
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import Start

Small = Callable[..., Plan]
OURS = RunProvenance((), torch.device("cpu"))
RECORDS: Private = {"commitment": [np.arange(6.0).reshape(2, 3)]}
START = Start(datetime.now(UTC))
NOTHING = Finished({}, frozenset(), None, None, False)


@pytest.fixture
def folder(small: Small, tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", small())


def test_what_was_reserved_counts_as_spent_when_the_block_is_left_by_a_fault(small: Small, folder: RunFolder) -> None:
    plan = small()
    event = plan.events[0].event

    def fail() -> None:
        with open_attempt(plan, folder, START, OURS, RECORDS) as attempt:
            attempt.ledger.reserve(event, 3)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    ledger = read(folder.ledger)
    assert (ledger.charges, ledger.stop_reason) == ((Charge(event, 3),), None)
    with open_attempt(plan, folder, START, OURS, RECORDS) as attempt:  # the lock is free again
        assert attempt.charged == (Charge(event, 3),)


def test_an_interrupted_attempt_says_so_and_how_to_go_on(small: Small, folder: RunFolder) -> None:
    plan = small("training.steps=9")
    folder = RunFolder.create(folder.path.with_name("other"), plan)
    with pytest.raises(Interrupted) as stopped, open_attempt(plan, folder, START, OURS, RECORDS) as attempt:
        raise attempt.interrupted("3 of 9 steps")
    assert "3 of 9 steps" in stopped.value.message
    assert "--resume" in (stopped.value.remedy or "")
    assert "--set training.steps=9" in (stopped.value.remedy or "")
    assert read(folder.ledger).stop_reason == "interrupted"


@pytest.mark.parametrize("ended", [False, True], ids=["goes on", "interrupted"])
def test_nothing_is_published_of_an_attempt_that_has_not_ended(small: Small, folder: RunFolder, ended: bool) -> None:
    with open_attempt(small(), folder, START, OURS, RECORDS) as attempt:
        if ended:
            attempt.ledger.close("interrupted")
        with pytest.raises(RunFailed, match="goes on"):
            attempt.publish(NOTHING)
    with pytest.raises(RunFailed, match="goes on"):
        attempt.publish(NOTHING)
    assert not folder.release.exists()


def test_one_attempt_at_a_time(small: Small, folder: RunFolder) -> None:
    with open_attempt(small(), folder, START, OURS, RECORDS):
        with pytest.raises(RunFailed, match="another process"), open_attempt(small(), folder, START, OURS, RECORDS):
            pytest.fail("two attempts spend at once")
        assert read(folder.ledger).attempts == 1


def test_what_the_check_refuses_leaves_the_run_as_it_is(small: Small, folder: RunFolder) -> None:
    with open_attempt(small(), folder, START, OURS, RECORDS) as attempt:
        attempt.ledger.close("interrupted")
    before = folder.ledger.read_bytes()
    seen: list[Ledger | None] = []

    def refuse(ledger: Ledger | None) -> None:
        seen.append(ledger)
        raise UsageFault("not like this", "otherwise")

    with pytest.raises(UsageFault, match="not like this"), open_attempt(small(), folder, START, OURS, RECORDS, refuse):
        pytest.fail("the attempt began")
    assert folder.ledger.read_bytes() == before
    assert [ledger and ledger.attempts for ledger in seen] == [1]


OTHER = {
    "records": (OURS, {"commitment": [np.zeros((2, 3))]}, "other training records"),
    "records of a kind of our own": (OURS, {"commitment": None}, "other training records"),
    "a model from Python": (replace(OURS, model="python"), RECORDS, "its model from elsewhere"),
    "records from Python": (replace(OURS, data="python"), RECORDS, "its data from elsewhere"),
    "a key": (OURS, {**RECORDS, "partition": [b"k"]}, "another key"),
}


@pytest.mark.parametrize("name", OTHER)
def test_a_run_goes_on_with_what_it_was_started_with(name: str, small: Small, folder: RunFolder) -> None:
    with open_attempt(small(), folder, START, OURS, RECORDS):
        pass
    provenance, private, said = OTHER[name]
    with pytest.raises(UsageFault, match=said), open_attempt(small(), folder, START, provenance, private):
        pytest.fail("the attempt began")
    assert read(folder.ledger).attempts == 1


def test_each_attempt_draws_randomness_of_its_own(small: Small, folder: RunFolder) -> None:
    keys = []
    for _ in range(2):
        with open_attempt(small(), folder, START, OURS, RECORDS) as attempt:
            keys.append(attempt.secrets.stream("noise", 1).key)
    assert keys[0] != keys[1]


def test_an_attempt_is_of_a_run_without_a_release(small: Small, folder: RunFolder) -> None:
    folder.release.mkdir()
    with pytest.raises(UsageFault, match="complete"), open_attempt(small(), folder, START, OURS, RECORDS):
        pytest.fail("the attempt began")
