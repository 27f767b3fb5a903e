"""What comes back from another machine is a stranger's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import DataFault, RunFailed
from dprecipe.release.untrusted import ContentError
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.order import RunOrder, RunTerms, commit_to_inputs, make_parcel
from dprecipe.training.tuning.parcel import keep_parcel, list_names, pack_fault, pack_model, pack_refusal, unpack
from dprecipe.training.tuning.trials import Trials

TOKEN = "5" * 32

NAMES = list_names(adapters=False, paid=False)


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    for name in NAMES:
        (tmp_path / name).write_bytes(name.encode() * 3)
    return pack_model(TOKEN, tmp_path)


def test_a_parcel_has_what_was_packed(packed: bytes) -> None:
    parcel = unpack(packed, TOKEN)
    assert parcel.outcome == "model"
    assert parcel.files == {name: name.encode() * 3 for name in NAMES}
    assert unpack(pack_refusal(TOKEN), TOKEN).outcome == "refused"
    fault = unpack(pack_fault(TOKEN, DataFault("a file is missing", "put it back", "3 rows")), TOKEN).fault
    assert isinstance(fault, DataFault)
    assert (fault.message, fault.remedy, fault.private) == ("a file is missing", "put it back", "")
    assert isinstance(unpack(pack_fault(TOKEN, RunFailed("x" * 9999)), TOKEN).fault, RunFailed)


def test_every_damage_is_found(packed: bytes) -> None:
    for place in range(0, len(packed), 7):
        with pytest.raises(ContentError):
            unpack(packed[:place] + bytes([packed[place] ^ 0x20]) + packed[place + 1 :], TOKEN)
        with pytest.raises(ContentError):
            unpack(packed[:place], TOKEN)
    with pytest.raises(ContentError):
        unpack(packed + b"x", TOKEN)


def _header(**changes: object) -> bytes:
    header = {"schema": "dprecipe.trial/v1", "token": TOKEN, "outcome": "refused", "fault": {}, "files": []} | changes
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "big") + text


@pytest.mark.parametrize(
    "content",
    [
        None,
        "text",
        {"outcome": "model"},
        b"",
        b"\x00\x00\x00\x02{}",
        _header(token="6" * 32),
        _header(schema="dprecipe.trial/v2"),
        _header(outcome="released"),
        _header(outcome="model"),
        _header(outcome="fault"),
        _header(outcome="fault", fault={"kind": "SystemExit", "message": "", "remedy": ""}),
        _header(files=[["model.json", 0, hashlib.sha256(b"").hexdigest()]]),
        _header(outcome="model", files=[[f"../{name}", 0, hashlib.sha256(b"").hexdigest()] for name in NAMES]),
        _header(outcome="model", files=[[name, -1, hashlib.sha256(b"").hexdigest()] for name in NAMES]),
        _header(outcome="model", files=[[name, True, hashlib.sha256(b"").hexdigest()] for name in NAMES]),
        _header(more=1),
    ],
)
def test_what_is_no_parcel_is_refused(content: object) -> None:
    with pytest.raises(ContentError):
        unpack(content, TOKEN)


def test_files_that_no_run_makes_are_not_kept(packed: bytes, tmp_path: Path) -> None:
    kept = tmp_path / "0" / "kept"
    with pytest.raises(ContentError):
        keep_parcel(unpack(packed, TOKEN), kept)
    assert not list((tmp_path / "0").iterdir())


@pytest.mark.slow
def test_a_run_that_comes_as_bytes_is_the_run(tuned: Callable[..., Plan], tmp_path: Path) -> None:
    """An order is carried out in this process; then its parcel is kept, and is refused with other tensors. Records that
    differ, or another version, train nothing."""
    plan, key = tuned(), bytes(32)
    trials = Trials(plan.source, tmp_path / "trials", tmp_path)
    from dprecipe.training.program.gather import gather_records

    mine = commit_to_inputs(plan, tmp_path, key, gather_records(plan, tmp_path))
    assert set(mine) == {"train", "test"}
    terms = RunTerms(plan.source, tmp_path, key, mine, tmp_path / "scratch")
    point = {"training.optimizer.lr": 1.0, "mechanism.clip.norm": 0.5}
    parcel = unpack(make_parcel(RunOrder(terms, 0, point, TOKEN)), TOKEN)
    assert not list((tmp_path / "scratch").iterdir())
    keep_parcel(parcel, locate_result(trials.folder(0)))
    assert trials.is_done(0)
    weights = bytearray(parcel.files["model.safetensors"])
    weights[12] ^= 1
    with pytest.raises(ContentError):
        keep_parcel(type(parcel)("model", {**parcel.files, "model.safetensors": bytes(weights)}), tmp_path / "1/kept")
    for other, words in (
        (RunTerms(plan.source, tmp_path, b"1" * 32, {**mine, "train": "0" * 64}, None), "another"),
        (RunTerms(plan.source, tmp_path, b"2" * 32, {}, None), "another test, another train"),
        (RunTerms(plan.source, tmp_path, b"3" * 32, mine, None, (), "0.0.1"), "is installed"),
    ):
        fault = unpack(make_parcel(RunOrder(other, 0, point, TOKEN)), TOKEN).fault
        assert fault is not None
        assert words in fault.message
