"""An event that is carried from one attempt to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy.events import Event
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.training.run.spend_once import find_carried, is_reserved, is_settled, spend_once

HIDDEN = ProjectedDescent("replace_one", "gaussian", 100, 1, "permuted", "last", ((100, 2.0, 0.99, 30.0),))
PLAN = "sha256:" + "1" * 64


class Killed(BaseException):
    """The process is gone."""


def attempt(path: Path, event: Event = HIDDEN, *, killed: bool = False) -> None:
    """An attempt at an event behind a paid step, killed while it is drawn or not."""

    def draw() -> None:
        if killed:
            raise Killed

    ledger = LedgerWriter(path, PLAN)
    if ledger.is_empty:
        ledger.reserve(Gaussian(9.0), 1)
        ledger.settle(Gaussian(9.0), 1)
    try:
        spend_once(ledger, event, draw)
    except Killed:
        ledger.abandon()
    else:
        ledger.close("completed")


def test_an_event_that_was_begun_is_carried_until_it_has_ended(tmp_path: Path) -> None:
    assert find_carried(None) is None
    path = tmp_path / "ledger.jsonl"
    for _ in range(2):
        attempt(path, killed=True)
        assert find_carried(read(path)) == HIDDEN
        assert is_reserved(HIDDEN, read(path))
    attempt(path)
    assert find_carried(read(path)) is None
    assert is_settled(HIDDEN, read(path))


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_else_is_carried(tmp_path: Path, times: int) -> None:
    """Steps that are seen as they come, and an event that was begun a second time without being carried."""
    path, event = tmp_path / "ledger.jsonl", Gaussian(2.0) if times == 1 else HIDDEN
    for _ in range(times):
        ledger = LedgerWriter(path, PLAN)
        ledger.reserve(event, 1)
        ledger.abandon()
    assert find_carried(read(path)) is None
    assert not is_reserved(event, read(path))
