"""The state on disk: comes back as it was, tells nobody anything, and is refused wherever it is not at home."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pnsgd.train.descent import State
from dprecipe.mechanisms.pnsgd.train.encrypted_state import EncryptedState
from dprecipe.privacy.ledger import Ledger, LedgerWriter, read

PLAN = "sha256:" + "1" * 64


def state(order: bool = True) -> State:
    generator = np.random.default_rng(0)
    return State(generator.normal(size=(2, 9)), 7, 40, generator.permutation(50) if order else None)


def ledger(path: Path, plan: str = PLAN) -> Ledger:
    writer = LedgerWriter(path, plan)
    writer.abandon()
    return read(path)


@pytest.fixture
def stored(tmp_path: Path) -> tuple[EncryptedState, Ledger]:
    before = ledger(tmp_path / "ledger.jsonl")
    hidden = EncryptedState(tmp_path / "last.encrypted", tmp_path / "key", PLAN)
    hidden.save(state(), before.head)
    return hidden, before


@pytest.mark.parametrize("order", [True, False])
def test_it_comes_back_as_it_was(stored: tuple[EncryptedState, Ledger], order: bool) -> None:
    hidden, before = stored
    hidden.save(state(order), before.head)
    actual = hidden.load(before)
    assert actual is not None
    assert (actual.iterate == state().iterate).all()
    assert (actual.step, actual.stop, actual.finished) == (7, 40, False)
    assert (actual.order is None) if not order else (actual.order == state().order).all()


def test_none_was_kept(tmp_path: Path) -> None:
    assert EncryptedState(tmp_path / "last.encrypted", tmp_path / "key", PLAN).load(None) is None


def test_file_and_key_are_for_their_owner_and_tell_nothing(
    stored: tuple[EncryptedState, Ledger], tmp_path: Path
) -> None:
    hidden, before = stored
    for name in ("last.encrypted", "key"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    first = (tmp_path / "last.encrypted").read_bytes()
    for value in state().iterate.ravel():
        assert value.tobytes() not in first
    hidden.save(state(), before.head)
    second = (tmp_path / "last.encrypted").read_bytes()
    head = len(first) - len(first.split(b"\n", 2)[2])
    assert first[:head] == second[:head]
    # Of the same state, under a nonce of its own: of some 900 bytes about 4 are equal; 40 once in 10^25 runs.
    assert sum(a == b for a, b in zip(first[head:], second[head:], strict=True)) < 40
    assert sorted(os.listdir(tmp_path)) == ["key", "last.encrypted", "ledger.jsonl"]


@pytest.mark.parametrize("place", [0, 30, 100, -1])
def test_a_changed_byte_is_found(stored: tuple[EncryptedState, Ledger], tmp_path: Path, place: int) -> None:
    hidden, before = stored
    content = bytearray((tmp_path / "last.encrypted").read_bytes())
    content[place] ^= 1
    (tmp_path / "last.encrypted").write_bytes(content)
    with pytest.raises(RunFailed, match=r"damaged|not belong to this ledger"):
        hidden.load(before)


@pytest.mark.parametrize("length", [0, 10, 60, 97, 110, 300])
def test_a_cut_file_is_refused(stored: tuple[EncryptedState, Ledger], tmp_path: Path, length: int) -> None:
    hidden, before = stored
    content = (tmp_path / "last.encrypted").read_bytes()
    (tmp_path / "last.encrypted").write_bytes(content[:length])
    with pytest.raises(RunFailed, match=r"damaged|not belong to this ledger") as refused:
        hidden.load(before)
    assert "starts over" in refused.value.remedy


def test_another_key_plan_or_ledger_is_refused(stored: tuple[EncryptedState, Ledger], tmp_path: Path) -> None:
    hidden, before = stored
    with pytest.raises(RunFailed, match="belongs to another plan or key"):
        EncryptedState(tmp_path / "last.encrypted", tmp_path / "key", PLAN.replace("1", "2")).load(before)
    for other in (None, ledger(tmp_path / "other.jsonl", PLAN.replace("1", "3"))):
        with pytest.raises(RunFailed, match="not belong to this ledger") as refused:
            hidden.load(other)
        # an older ledger may not know that the run has ended: to begin again would be a second release
        assert "starts over" not in str(refused.value.remedy)
    for key, message in (
        (bytes(32), "belongs to another plan or key"),
        (bytes(5), "or its key is"),
        (None, "can't be read"),
    ):
        (tmp_path / "key").unlink()
        if key is not None:
            (tmp_path / "key").write_bytes(key)
        with pytest.raises(RunFailed, match=message):
            hidden.load(before)


def test_a_ledger_that_went_on_still_owns_it(stored: tuple[EncryptedState, Ledger], tmp_path: Path) -> None:
    hidden, _ = stored
    assert hidden.load(ledger(tmp_path / "ledger.jsonl")) is not None


def test_a_disk_that_refuses_leaves_what_was_kept(
    stored: tuple[EncryptedState, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, before = stored

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunFailed, match="No space left") as refused:
            hidden.save(state(order=False), before.head)
    assert "--resume" in refused.value.remedy
    actual = hidden.load(before)
    assert actual is not None
    assert actual.order is not None
