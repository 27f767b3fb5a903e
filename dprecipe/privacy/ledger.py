"""The ledger: an append-only, hash-chained record of what was reserved and what ran.

Each line is one JSON object. `reserve` is written, flushed and fsynced before the first of its events runs; `settle`
says how many of them ran. Events that are reserved and never settled count as spent: a crash may waste budget but can't
hide spending. The certificate is computed from this file alone.

Each line carries `seq`, `prev` (the SHA-256 of the line before, without its line end) and `type`:
`open` (plan digest, attempt), `reserve` and `settle` (events), `close` (reason).

`carry` comes right after an `open`: the attempt continues or restarts the one event that an earlier attempt reserved
and did not settle. Nothing of such an event is seen before its end (`Event.hides_iterates`). What the interrupted
attempt computed was never released, so only one transcript is released, and it is charged once. No other event can be
carried.

| case | what the ledger says |
|---|---|
| a crash between `reserve` and `settle` | all reserved events count as spent |
| a torn last line | it is ignored: the events it describes can't have run |
| a changed, missing or added line before it | the ledger is refused |
| two processes on one ledger | the second is refused by a file lock |
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dprecipe import durable
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.privacy.events import (
    Charge,
    Event,
    charge_from_json,
    count_by_event,
    count_events,
    run_lengths,
    take_first,
)
from dprecipe.privacy.ledger_file import lock_file, write_all

StopReason = Literal["completed", "budget", "interrupted", "no_model"]
REASONS = ("completed", "budget", "interrupted", "no_model")
GENESIS = "sha256:" + "0" * 64


@dataclass(frozen=True, slots=True)
class Ledger:
    """The content of a ledger."""

    plan_digest: str
    attempts: int
    programs: tuple[Mapping[str, Any], ...]
    """Each attempt's description of itself when it opened: the sources of its randomness, model and data."""
    charges: tuple[Charge, ...]
    """The charges that count as spent, in order: all that was settled, and all that was reserved and never settled."""
    settled: tuple[Charge, ...]
    unsettled: tuple[Charge, ...]
    stop_reason: str | None
    """The stop reason of the last attempt; `None` while it runs and after a crash."""
    torn: bool
    """True if the last line was cut short and left out; nothing it described can have run."""
    digest: str
    """The SHA-256 of all whole lines."""
    heads: frozenset[str]
    """The SHA-256 of every whole line: what a checkpoint of this ledger can name."""
    head: str
    """The SHA-256 of the last whole line: the `prev` of the next."""
    lines: int
    size: int
    """The number of bytes up to the end of the last whole line."""

    @property
    def insecure_seed(self) -> int | None:
        """The seed of the first attempt whose randomness was fixed in advance; one such attempt taints all."""
        return next((seed for p in self.programs if (seed := p.get("insecure_seed")) is not None), None)

    @property
    def trainer(self) -> Literal["recipe", "python"]:
        """`python` if somebody's own trainer took the steps of any attempt."""
        return "python" if any(program.get("trainer") == "python" for program in self.programs) else "recipe"

    @property
    def resumes(self) -> int:
        return max(0, self.attempts - 1)


def read(path: Path) -> Ledger:
    """Reads and checks a ledger.

    Raises:
        RunFailed: the file is missing, empty, or its chain is broken anywhere but in a torn last line.
    """
    try:
        content = durable.read_bytes(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    return parse(content, str(path))


def _unreadable(path: Path, error: OSError) -> RunFailed:
    return RunFailed(f"{path}: the ledger can't be read: {error.strerror}", "give the run's own folder")


def parse(content: bytes, name: str = "ledger") -> Ledger:
    """Reads and checks a ledger from bytes, like `read`."""
    end = content.rfind(b"\n") + 1
    whole = content[:end]
    state = _State(name)
    for line in whole.splitlines():
        state.take(line)
    if state.seq == 0:
        raise RunFailed(f"{name}: the ledger has no complete line", "start a new run in another folder")
    return Ledger(
        plan_digest=state.plan_digest,
        attempts=state.attempts,
        programs=tuple(state.programs),
        charges=run_lengths([*state.charges, *state.pending]),
        settled=run_lengths(state.settled),
        unsettled=run_lengths([*state.unsettled, *state.pending]),
        stop_reason=state.reason,
        torn=end != len(content),
        digest="sha256:" + hashlib.sha256(whole).hexdigest(),
        heads=frozenset(state.heads),
        head=state.head,
        lines=state.seq,
        size=end,
    )


class _State:
    """The state of a ledger, to which lines are applied one by one; refuses every transition that no correct writer
    makes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = 0
        self.head = GENESIS
        self.heads: set[str] = set()
        self.plan_digest = ""
        self.attempts = 0
        self.programs: list[Mapping[str, Any]] = []
        self.reason: str | None = None
        self.charges: list[Charge] = []
        self.settled: list[Charge] = []
        self.unsettled: list[Charge] = []
        self.pending: tuple[Charge, ...] = ()
        self.opening = False

    def take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise ValueError("not an object")
            if entry.get("seq") != self.seq or entry.get("prev") != self.head:
                raise ValueError("the chain is broken: a line was changed, removed or added")
            self._apply(entry)
        except (ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            reason = f"there is no field {error}" if isinstance(error, KeyError) else str(error)
            raise RunFailed(
                f"{self.name}:{self.seq + 1}: {reason}",
                "this ledger proves nothing; don't publish what it covers",
            ) from None
        self.seq += 1
        self.head = "sha256:" + hashlib.sha256(line).hexdigest()
        self.heads.add(self.head)

    def _apply(self, entry: dict[str, Any]) -> None:
        opening, self.opening = self.opening, False
        match entry.get("type"):
            case "open":
                digest = str(entry["plan_digest"])
                if self.attempts and digest != self.plan_digest:
                    raise ValueError("the attempts belong to different plans")
                if entry["attempt"] != self.attempts + 1:
                    raise ValueError("an attempt is missing")
                if not isinstance(entry["program"], dict):
                    raise ValueError("program is not an object")
                self._abandon()
                self.programs.append(entry["program"])
                self.plan_digest, self.attempts, self.reason = digest, self.attempts + 1, None
                self.opening = True
            case "carry":
                self._carry(_charges(entry), opening)
            case "reserve":
                self._must_be_running()
                if self.pending:
                    raise ValueError("a reservation before the previous one was settled")
                self.pending = _charges(entry)
            case "settle":
                self._must_be_running()
                ran = _charges(entry)
                if count_events(ran) > count_events(self.pending) or ran != take_first(self.pending, count_events(ran)):
                    raise ValueError("settles events that were not reserved")
                self.charges += ran
                self.settled += ran
                self.pending = ()
            case "close":
                self._must_be_running()
                if entry["reason"] not in REASONS:
                    raise ValueError(f"unknown reason {entry['reason']!r}")
                self._abandon()
                self.reason = entry["reason"]
            case other:
                raise ValueError(f"unknown type {other!r}")

    def _carry(self, carried: tuple[Charge, ...], opening: bool) -> None:
        if not opening:
            raise ValueError("a reservation can be carried only right after an attempt opens")
        if len(carried) != 1 or carried[0].count != 1 or not carried[0].event.hides_iterates:
            raise ValueError("only one event with hidden iterates can be carried")
        if self.unsettled[-1:] != list(carried) or self.charges[-1:] != list(carried):
            raise ValueError("carries an event that was not left unsettled")
        self.unsettled.pop()
        self.pending = (self.charges.pop(),)

    def _must_be_running(self) -> None:
        if not self.attempts or self.reason is not None:
            raise ValueError("an entry outside an attempt")

    def _abandon(self) -> None:
        self.charges += self.pending
        self.unsettled += self.pending
        self.pending = ()


def _charges(entry: dict[str, Any]) -> tuple[Charge, ...]:
    events = entry["events"]
    if not isinstance(events, list):
        raise ValueError("events is not a list")
    return tuple(charge_from_json(event) for event in events)


class LedgerWriter:
    """The writer of a ledger: appends one attempt at a time. It holds the file's lock, so that two processes can't
    spend at once, and keeps to its `limit`.

    `open`, `reserve` and `close` return only after their line is on disk; `settle` may lag, since losing it only
    charges more. A line that can't be written raises `RunFailed`, and a writer that failed once writes nothing more.
    """

    def __init__(
        self,
        path: Path,
        plan_digest: str,
        program: Mapping[str, Any] | None = None,
        check_before: Callable[[Ledger | None], None] = lambda before: None,
    ) -> None:
        """Opens the next attempt; `program` is its description of itself (JSON types).

        `check_before` gets the ledger under the lock, before anything is written; if it raises, the attempt ends there.
        """
        self.before: Ledger | None = None
        """The ledger as this attempt found it, read under the lock."""
        self.stop_reason: StopReason | None = None
        """The reason why this attempt ended; None while it goes on."""
        self.limit: Callable[[Counter[Event]], bool] = lambda charged: True
        """A function that returns True if the ledger may hold these totals, by event; events that it refuses are not
        reserved."""
        self._charged: Counter[Event] = Counter()
        self._pending: Counter[Event] = Counter()
        self._path = path
        self._seq = 0
        self._head = GENESIS
        attempt = 1
        self._broken = False
        try:
            self._file = durable.open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise RunFailed(f"{path}: can't open the ledger: {error.strerror}") from None
        lock_file(self._file, path)
        try:
            ledger = self.before = read_unopened(path)
            if ledger is not None:
                if ledger.plan_digest != plan_digest:
                    raise RunFailed(
                        f"{path}: the ledger belongs to another plan",
                        "resume with the recipe the run was started with, or start a new run in another folder",
                    )
                self._seq, self._head, attempt = ledger.lines, ledger.head, ledger.attempts + 1
                self._charged = count_by_event(ledger.charges)
            check_before(self.before)
            # Only a torn line is cut off: it describes nothing that ran.
            os.ftruncate(self._file, ledger.size if ledger else 0)
            self._append({"type": "open", "plan_digest": plan_digest, "attempt": attempt, "program": program or {}})
        except OSError as error:
            self.abandon()
            raise self._refused(error) from None
        except BaseException:
            self.abandon()
            raise
        self.attempt = attempt

    @property
    def head(self) -> str:
        """The SHA-256 of the last line, which a checkpoint names to show that it belongs to this ledger."""
        return self._head

    @property
    def is_empty(self) -> bool:
        """True if nothing counts as spent, in any attempt."""
        return not (self._charged + self._pending)

    def reserve(self, event: Event, count: int) -> None:
        """Records that up to `count` events are about to run."""
        self.reserve_all((Charge(event, count),))

    def reserve_all(self, charges: Sequence[Charge]) -> None:
        """Records that all of these are about to run: events of several kinds, drawn as one.

        Raises:
            RunFailed: they exceed what `limit` allows, and nothing was reserved; or the disk fails.
        """
        pending = count_by_event(charges)
        if not self.limit(self._charged + pending):
            raise InternalFault("more was about to be drawn than the account of the data set has reserved; it was not")
        self._pending = pending
        self._append({"type": "reserve", "events": [charge.to_json() for charge in charges]})

    def carry(self, event: Event) -> None:
        """Records that this attempt, which has just opened, continues the hidden event that an earlier one left
        unsettled, from where it stopped or from its start."""
        self._pending = Counter({event: 1})
        self._charged -= self._pending
        self._append({"type": "carry", "events": [Charge(event, 1).to_json()]})

    def settle(self, event: Event, count: int) -> None:
        """Records that `count` of the events reserved last did run, and that the rest never will."""
        self.settle_all((Charge(event, count),) if count else ())

    def settle_all(self, charges: Sequence[Charge]) -> None:
        """Records that these of the events reserved last, in their order, did run, and that the rest never will."""
        self._charged += count_by_event(charges)
        self._pending = Counter()
        self._append({"type": "settle", "events": [charge.to_json() for charge in charges]}, sync=False)

    def close(self, reason: StopReason) -> None:
        """Ends the attempt and releases the file."""
        self._append({"type": "close", "reason": reason})
        self.stop_reason = reason
        self.abandon()

    def abandon(self) -> None:
        """Releases the file without writing: what is reserved stays spent."""
        if not self._broken:
            self._broken = True
            os.close(self._file)

    def _append(self, entry: dict[str, Any], *, sync: bool = True) -> None:
        if self._broken:
            raise RunFailed(f"{self._path}: the ledger is closed; nothing more may be spent on it")
        line = json.dumps({"seq": self._seq, "prev": self._head, **entry}, separators=(",", ":")).encode()
        try:
            write_all(self._file, line + b"\n")
            if sync:
                os.fsync(self._file)
            if entry["type"] == "open":
                # Puts the file's name on disk too: an earlier attempt may have ended before that.
                durable.sync_folder(self._path.parent)
        except OSError as error:
            self.abandon()
            raise self._refused(error) from None
        self._seq += 1
        self._head = "sha256:" + hashlib.sha256(line).hexdigest()

    def _refused(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"{self._path}: can't write the ledger: {error.strerror}; nothing more was spent",
            "free some disk space, then continue with --resume",
        )


@contextmanager
def lock_ledger(path: Path) -> Iterator[Ledger]:
    """Reads a ledger and locks it: no attempt can add to it while the block lasts.

    Raises:
        RunFailed: an attempt holds the lock; or see `read`.
    """
    try:
        file = durable.open_regular(path, os.O_RDWR)
    except OSError as error:
        raise _unreadable(path, error) from None
    lock_file(file, path)
    try:
        yield read(path)
    finally:
        os.close(file)


def read_unopened(path: Path) -> Ledger | None:
    """Reads a ledger like `read`; `None` if a crash left no whole line at all. Raises `OSError`."""
    content = durable.read_bytes(path)
    return parse(content, str(path)) if b"\n" in content else None
