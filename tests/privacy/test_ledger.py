"""The ledger: chained, tolerant of a torn last line, of nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import NoisyThreshold
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy.events import Charge, Event, count_events
from dprecipe.privacy.ledger import GENESIS, LedgerWriter, StopReason, lock_ledger, parse, read
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.privacy.stages.events import NoisyCovariance

EVENT = PoissonGaussian(0.1, 2.0)
HIDDEN = ProjectedDescent("replace_one", "gaussian", 100, 1, "permuted", "last", ((100, 2.0, 0.99, 30.0),))
LONGER = ProjectedDescent("replace_one", "gaussian", 100, 1, "permuted", "last", ((200, 2.0, 0.99, 30.0),))
PLAN = "sha256:" + "a" * 64


def three_attempts(path: Path) -> None:
    """One block settled in part, one left open by a crash, one closed."""
    first = LedgerWriter(path, PLAN)
    first.reserve(EVENT, 10)
    first.settle(EVENT, 10)
    first.reserve(EVENT, 10)
    first.abandon()  # a crash: ten reserved, nobody knows how many ran
    second = LedgerWriter(path, PLAN)
    second.reserve(EVENT, 10)
    second.settle(EVENT, 3)
    second.close("interrupted")
    third = LedgerWriter(path, PLAN)
    third.reserve(EVENT, 5)
    third.settle(EVENT, 5)
    third.close("completed")


def test_what_was_reserved_and_not_settled_counts_as_spent(tmp_path: Path) -> None:
    three_attempts(tmp_path / "ledger.jsonl")
    ledger = read(tmp_path / "ledger.jsonl")
    assert ledger.charges == (Charge(EVENT, 10 + 10 + 3 + 5),)
    assert ledger.settled == (Charge(EVENT, 18),)
    assert ledger.unsettled == (Charge(EVENT, 10),)
    assert (ledger.attempts, ledger.resumes, ledger.stop_reason) == (3, 2, "completed")
    assert ledger.plan_digest == PLAN


def test_a_running_reservation_counts_too(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.jsonl", PLAN)
    writer.reserve(EVENT, 7)
    assert read(tmp_path / "ledger.jsonl").charges == (Charge(EVENT, 7),)
    assert read(tmp_path / "ledger.jsonl").stop_reason is None


def test_every_torn_end_is_read_and_never_counts_less_than_ran(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    three_attempts(path)
    content = path.read_bytes()
    first_line = content.index(b"\n") + 1
    for cut in range(first_line, len(content) + 1):
        ledger = parse(content[:cut])
        whole = content[:cut].rfind(b"\n") + 1
        assert ledger.torn == (whole != cut)
        reserved = {
            entry["seq"] for entry in map(json.loads, content[:whole].splitlines()) if entry["type"] == "reserve"
        }
        assert bool(reserved) == bool(count_events(ledger.charges))


@pytest.mark.parametrize("line", range(12))
def test_any_other_break_is_refused(tmp_path: Path, line: int) -> None:
    path = tmp_path / "ledger.jsonl"
    three_attempts(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 12
    if line < 11:
        with pytest.raises(RunFailed, match="chain is broken"):
            parse(b"".join(lines[:line] + lines[line + 1 :]))
    changed = lines.copy()
    changed[line] = changed[line].replace(b'"count":10', b'"count":01').replace(b'"type"', b'"tipe"')
    with pytest.raises(RunFailed):
        parse(b"".join(changed))


def test_less_events_in_a_line_break_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    three_attempts(path)
    content = path.read_bytes().replace(b'"count":10', b'"count":1', 1)
    with pytest.raises(RunFailed, match=r"ledger\.jsonl:3"):
        parse(content, "ledger.jsonl")


def test_resuming_cuts_a_torn_line_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = LedgerWriter(path, PLAN)
    writer.reserve(EVENT, 4)
    writer.abandon()
    with path.open("ab") as file:
        file.write(b'{"seq":2,"prev":"sha2')
    again = LedgerWriter(path, PLAN)
    again.close("interrupted")
    ledger = read(path)
    assert not ledger.torn
    assert (ledger.attempts, ledger.charges) == (2, (Charge(EVENT, 4),))


def test_a_ledger_with_no_whole_line_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b'{"seq":0,"pr')
    LedgerWriter(path, PLAN).close("completed")
    assert read(path).attempts == 1


def test_another_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    LedgerWriter(path, PLAN).close("completed")
    with pytest.raises(RunFailed, match="another plan"):
        LedgerWriter(path, "sha256:" + "b" * 64)


def test_two_writers_cant_spend_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = LedgerWriter(path, PLAN)
    with pytest.raises(RunFailed, match="another process"):
        LedgerWriter(path, PLAN)
    writer.close("completed")


def test_settling_more_than_was_reserved_is_refused_on_reading(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger.jsonl", PLAN)
    writer.reserve(EVENT, 2)
    writer.settle(EVENT, 3)
    with pytest.raises(RunFailed, match="not reserved"):
        read(tmp_path / "ledger.jsonl")


def test_a_full_disk_is_one_clear_message_and_ends_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = LedgerWriter(path, PLAN)
    real = os.write
    room = 20  # the disk fills up in the middle of a line

    def full(file: int, content: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(28, "No space left on device")
        written = real(file, content[:room])
        room -= written
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RunFailed, match="No space left on device") as fault:
        writer.reserve(EVENT, 5)
    assert "--resume" in fault.value.remedy
    with pytest.raises(RunFailed, match="closed"):
        writer.reserve(EVENT, 5)
    monkeypatch.undo()
    assert read(path).torn
    assert read(path).charges == ()
    LedgerWriter(path, PLAN).close("interrupted")
    assert read(path).attempts == 2


@pytest.mark.parametrize(
    "content", [b"", b"x\n", b"[]\n", b"null\n", b"\xff\xfe\n", b'{"seq":0}\n', b"[" * 100_000 + b"\n"]
)
def test_garbage_is_refused_without_a_traceback(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(RunFailed):
        read(path)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e400", "-1", "true", '"2"', "null"])
def test_numbers_out_of_range_are_refused(number: str) -> None:
    start = b'{"seq":0,"prev":"%s","type":"open","plan_digest":"p","attempt":1,"program":{}}' % GENESIS.encode()
    head = "sha256:" + hashlib.sha256(start).hexdigest()
    event = f'{{"count":1,"kind":"gaussian","noise_multiplier":{number}}}'
    line = f'{{"seq":1,"prev":"{head}","type":"reserve","events":[{event}]}}'
    with pytest.raises(RunFailed):
        parse(start + b"\n" + line.encode() + b"\n")
    assert parse(start + b"\n" + line.replace(number, "2.0").encode() + b"\n").charges


def test_encoded_events_are_kept_to_the_last_bit(tmp_path: Path) -> None:
    shifts = tuple((0.001 * (k + 1) / 3, 10 + k) for k in range(300))
    code = EncodedSum(0.01, 1.234567, "student_t", 9.0, shifts, False, "sha256:" + "b" * 64)
    louder = EncodedSum(0.01, 2.5, "laplace", None, shifts, False, "sha256:" + "b" * 64)
    writer = LedgerWriter(tmp_path / "ledger.jsonl", PLAN)
    for event, reserved, ran in [(code, 100, 100), (code, 100, 60), (louder, 50, 50)]:
        writer.reserve(event, reserved)
        writer.settle(event, ran)
    writer.reserve(louder, 7)
    writer.abandon()
    ledger = read(tmp_path / "ledger.jsonl")
    assert ledger.charges == (Charge(code, 160), Charge(louder, 57))
    assert ledger.unsettled == (Charge(louder, 7),)
    lines = (tmp_path / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    with pytest.raises(RunFailed, match="shifts"):
        parse(lines[0] + lines[1].replace(b'"shifts":[[', b'"shifts":[[-'))


def broken_off(path: Path, event: Event = HIDDEN, *, reason: StopReason | None = None) -> LedgerWriter:
    """A first attempt that reserved an event and did not settle it; the second attempt, opened."""
    first = LedgerWriter(path, PLAN)
    first.reserve(event, 1)
    if reason is None:
        first.abandon()
    else:
        first.close(reason)
    return LedgerWriter(path, PLAN)


@pytest.mark.parametrize("reason", [None, "interrupted"])
def test_a_carried_last_iterate_release_is_charged_once(tmp_path: Path, reason: StopReason | None) -> None:
    path = tmp_path / "ledger.jsonl"
    second = broken_off(path, reason=reason)
    second.carry(HIDDEN)
    assert read(path).charges == (Charge(HIDDEN, 1),)  # while it runs
    second.abandon()
    assert read(path).unsettled == (Charge(HIDDEN, 1),)  # and after it crashed too
    third = LedgerWriter(path, PLAN)
    third.carry(HIDDEN)
    third.settle(HIDDEN, 1)
    third.close("completed")
    ledger = read(path)
    assert ledger.charges == ledger.settled == (Charge(HIDDEN, 1),)
    assert ledger.unsettled == ()
    assert (ledger.attempts, ledger.resumes, ledger.stop_reason) == (3, 2, "completed")


def test_a_restarted_last_iterate_release_is_charged_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    second = broken_off(path)
    second.reserve(HIDDEN, 1)
    second.settle(HIDDEN, 1)
    second.close("completed")
    assert read(path).charges == (Charge(HIDDEN, 2),)
    assert read(path).unsettled == (Charge(HIDDEN, 1),)


def test_only_the_last_of_several_that_broke_off_is_carried(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    second = broken_off(path)
    second.reserve(HIDDEN, 1)
    second.abandon()
    third = LedgerWriter(path, PLAN)
    third.carry(HIDDEN)
    third.settle(HIDDEN, 1)
    third.close("completed")
    assert read(path).charges == (Charge(HIDDEN, 2),)


def carried_over_seen_steps(path: Path) -> LedgerWriter:
    second = broken_off(path, EVENT)
    second.carry(EVENT)
    return second


def carried_first(path: Path) -> LedgerWriter:
    first = LedgerWriter(path, PLAN)
    first.carry(HIDDEN)
    return first


def carried_after_a_reservation(path: Path) -> LedgerWriter:
    second = broken_off(path)
    second.reserve(HIDDEN, 1)
    second.settle(HIDDEN, 0)
    second.carry(HIDDEN)
    return second


def carried_twice(path: Path) -> LedgerWriter:
    second = broken_off(path)
    second.carry(HIDDEN)
    second.carry(HIDDEN)
    return second


def carried_as_another(path: Path) -> LedgerWriter:
    second = broken_off(path, LONGER)
    second.carry(HIDDEN)
    return second


def carried_after_its_end(path: Path) -> LedgerWriter:
    second = broken_off(path)
    second.carry(HIDDEN)
    second.settle(HIDDEN, 1)
    second.abandon()  # it may be released by now
    third = LedgerWriter(path, PLAN)
    third.carry(HIDDEN)
    return third


def carried_after_it_was_given_up(path: Path) -> LedgerWriter:
    second = broken_off(path)
    second.carry(HIDDEN)
    second.settle(HIDDEN, 0)  # nothing ran, so nothing is left to go on with
    second.close("interrupted")
    third = LedgerWriter(path, PLAN)
    third.carry(HIDDEN)
    return third


def carried_past_a_later_event(path: Path) -> LedgerWriter:
    second = broken_off(path)
    second.reserve(EVENT, 1)
    second.settle(EVENT, 1)
    second.close("interrupted")
    third = LedgerWriter(path, PLAN)
    third.carry(HIDDEN)
    return third


def carried_after_the_close(path: Path) -> LedgerWriter:
    second = broken_off(path)
    second._append({"type": "close", "reason": "interrupted"})
    second.carry(HIDDEN)
    return second


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (carried_over_seen_steps, "only one event with hidden iterates"),
        (carried_first, "an event that was not left unsettled"),
        (carried_after_a_reservation, "only right after an attempt opens"),
        (carried_twice, "only right after an attempt opens"),
        (carried_as_another, "an event that was not left unsettled"),
        (carried_after_its_end, "an event that was not left unsettled"),
        (carried_after_it_was_given_up, "an event that was not left unsettled"),
        (carried_past_a_later_event, "an event that was not left unsettled"),
        (carried_after_the_close, "only right after an attempt opens"),
    ],
)
def test_no_other_event_can_be_carried(forge: Callable[[Path], LedgerWriter], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    forge(path).abandon()
    with pytest.raises(RunFailed, match=reason):
        read(path)


@pytest.mark.parametrize(
    "events", [[], [Charge(HIDDEN, 2)], [Charge(HIDDEN, 1), Charge(HIDDEN, 1)], [Charge(HIDDEN, 0)]]
)
def test_one_event_is_carried_no_more_and_no_less(events: list[Charge], tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = LedgerWriter(path, PLAN)
    first.reserve(HIDDEN, 2)
    first.abandon()
    second = LedgerWriter(path, PLAN)
    second._append({"type": "carry", "events": [event.to_json() for event in events]})
    second.abandon()
    with pytest.raises(RunFailed, match="only one event"):
        read(path)


def test_one_of_two_that_were_reserved_together_is_not_carried(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = LedgerWriter(path, PLAN)
    first.reserve(HIDDEN, 2)
    first.abandon()
    second = LedgerWriter(path, PLAN)
    second.carry(HIDDEN)
    second.abandon()
    with pytest.raises(RunFailed, match="an event that was not left unsettled"):
        read(path)


def test_hidden_events_are_kept_to_the_last_bit(tmp_path: Path) -> None:
    stages = ((7, 1 / 3, 1 - 1e-9, 123.456789012345), (13, 2 / 3, 0.1 + 0.2, 1e9 / 7))
    event = ProjectedDescent("zero_out_one", "laplace", 10, 3, "sequential", "random", stages)
    writer = LedgerWriter(tmp_path / "ledger.jsonl", PLAN)
    writer.reserve(event, 1)
    writer.abandon()
    assert read(tmp_path / "ledger.jsonl").charges == (Charge(event, 1),)


def test_a_locked_ledger_takes_no_further_attempt(tmp_path: Path) -> None:
    """While a release is made of it; and none is made while an attempt is under way."""
    path = tmp_path / "ledger.jsonl"
    writer = LedgerWriter(path, PLAN)
    with pytest.raises(RunFailed, match="another process"), lock_ledger(path):
        pass
    writer.close("completed")
    with lock_ledger(path) as ledger:
        assert ledger.stop_reason == "completed"
        with pytest.raises(RunFailed, match="another process"):
            LedgerWriter(path, PLAN)
    LedgerWriter(path, PLAN).close("completed")


def test_a_ledger_is_read_whatever_was_imported_before(tmp_path: Path) -> None:
    """A process that has imported the ledger alone knows the events of every mechanism and of stages."""
    writer = LedgerWriter(tmp_path / "ledger.jsonl", PLAN)
    events = [HIDDEN, NoisyThreshold(150.0), NoisyCovariance(7, 16.0)]
    for event in events:
        writer.reserve(event, 1)
        writer.settle(event, 1)
    writer.close("completed")
    program = (
        "import sys; from pathlib import Path; from dprecipe.privacy.ledger import read;"
        "print(*(charge.event.kind for charge in read(Path(sys.argv[1])).charges))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "ledger.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [event.kind for event in events], done.stderr
