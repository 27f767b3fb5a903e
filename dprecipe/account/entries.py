"""Entries of an account: one line of canonical JSON each, chained like the lines of a run's ledger.

| type | what it says |
|---|---|
| `bind` | from now on, only runs on these data: a commitment under the account's secret key |
| `reserve` | the attempt of a run is about to draw at most these events; they count in full from now on |
| `settle` | the run's ledger says that these events were drawn, and whether the run has ended |
| `void` | the run's ledger proves that nothing was drawn: the run counts nothing |

Every line has `seq`, `prev` (the SHA-256 of the line before; of the facts, for the first), `time` and `type`. The time
is what the writer's clock said: the order is that of `seq`, whatever the clock does. `settle` and `void` have the time
of the line before: how long a run takes may depend on the records, or reveal a number of steps or of runs that its
guarantee keeps secret. Nothing in a line is secret. A settlement has no `release` before there is one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dprecipe.account.canonical import DIGEST, Fields, to_line
from dprecipe.privacy.events import Charge, charge_from_json, run_lengths
from dprecipe.privacy.filters.cap import Spent
from dprecipe.screen import make_printable

RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
NONCE = r"[A-Za-z0-9]{0,64}"
MAX_ATTEMPTS = 10**6
MAX_WHAT = 200
MAX_LINE = 4 * 2**20
"""The most bytes in a line."""
MAX_CHARGES = 100_000


@dataclass(frozen=True, slots=True)
class RunClaim:
    """The guarantee that a run claims by itself: for people, and to compare with the largest ε of a run."""

    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class ReserveAct:
    """The entry of a reservation. `cost`: the upper bound on `charges` at the account's orders."""

    kind: ClassVar[str] = "reserve"
    run: str
    attempt: int
    what: str
    nonce: str
    charges: tuple[Charge, ...]
    cost: Spent
    claim: RunClaim | None

    def to_json(self) -> dict[str, Any]:
        claim = None if self.claim is None else {"epsilon": self.claim.epsilon, "delta": self.claim.delta}
        return {
            "run": self.run,
            "attempt": self.attempt,
            "what": self.what,
            "nonce": self.nonce,
            "events": charges_to_json(self.charges),
            "cost": self.cost.to_json(),
            "claim": claim,
        }


@dataclass(frozen=True, slots=True)
class SettleAct:
    """The entry of a settlement. `charges`: what the run's ledger holds for all attempts together. `final`: the run has
    ended by itself. `release`: the digest of what the run's mechanism made, which no other release has."""

    kind: ClassVar[str] = "settle"
    run: str
    attempt: int
    final: bool
    charges: tuple[Charge, ...]
    cost: Spent
    release: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "attempt": self.attempt,
            "final": self.final,
            "events": charges_to_json(self.charges),
            "cost": self.cost.to_json(),
            **({} if self.release is None else {"release": self.release}),
        }


@dataclass(frozen=True, slots=True)
class VoidAct:
    kind: ClassVar[str] = "void"
    run: str
    attempt: int

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "attempt": self.attempt}


@dataclass(frozen=True, slots=True)
class BindAct:
    kind: ClassVar[str] = "bind"
    commitment: str

    def to_json(self) -> dict[str, Any]:
        return {"commitment": self.commitment}


Act = ReserveAct | SettleAct | VoidAct | BindAct


@dataclass(frozen=True, slots=True)
class AccountEntry:
    """An act and its place in the chain."""

    seq: int
    prev: str
    time: str
    act: Act

    def to_line(self) -> bytes:
        place = {"seq": self.seq, "prev": self.prev, "time": self.time, "type": self.act.kind}
        return to_line({**place, **self.act.to_json()})


def charges_to_json(charges: Sequence[Charge]) -> list[dict[str, Any]]:
    return [charge.to_json() for charge in charges]


def clean_what(what: str) -> str:
    """Returns an untrusted name as one printable line that an entry may hold."""
    return make_printable(what).replace("\t", " ")[:MAX_WHAT]


def parse_entry(line: bytes | str, orders: int) -> AccountEntry:
    """Parses an entry from an untrusted line.

    Raises:
        ValueError: it is no entry with this many orders, or not in canonical form.
    """
    content = line.encode() if isinstance(line, str) else line
    if len(content) > MAX_LINE:
        raise ValueError("the line is too long")
    entry = entry_from_json(json.loads(content), orders)
    if entry.to_line() != content:
        raise ValueError("the line is not in canonical form")
    return entry


def entry_from_json(content: Any, orders: int) -> AccountEntry:
    """Parses an entry from an untrusted JSON value. Raises `ValueError`."""
    fields = Fields(content)
    seq, prev, time = fields.whole("seq", 0), fields.text("prev", DIGEST.pattern), fields.moment("time")
    kind = fields.text("type", "[a-z]+")
    act: Act
    match kind:
        case "bind":
            act = BindAct(fields.text("commitment", r"[0-9a-f]{64}"))
        case "reserve":
            act = ReserveAct(
                fields.text("run", RUN),
                _attempt(fields),
                _what(fields),
                fields.text("nonce", NONCE),
                _charges(fields),
                fields.spent("cost", orders),
                _claim(fields),
            )
        case "settle":
            act = SettleAct(
                fields.text("run", RUN),
                _attempt(fields),
                fields.flag("final"),
                _charges(fields),
                fields.spent("cost", orders),
                fields.text("release", DIGEST.pattern) if fields.has("release") else None,
            )
        case "void":
            act = VoidAct(fields.text("run", RUN), _attempt(fields))
        case other:
            raise ValueError(f"unknown type {other!r}")
    fields.end()
    return AccountEntry(seq, prev, time, act)


def _attempt(fields: Fields) -> int:
    attempt = fields.whole("attempt", 1)
    if attempt > MAX_ATTEMPTS:
        raise ValueError("attempt is too large")
    return attempt


def _what(fields: Fields) -> str:
    what = fields.text("what", rf"(?s).{{0,{MAX_WHAT}}}")
    if what != clean_what(what):
        raise ValueError("what is not printable")
    return what


def _claim(fields: Fields) -> RunClaim | None:
    if fields.is_null("claim"):
        return None
    inner = fields.inner("claim")
    claim = RunClaim(inner.number("epsilon"), inner.number("delta"))
    inner.end()
    return claim


def _charges(fields: Fields) -> tuple[Charge, ...]:
    events = fields.items("events")
    if len(events) > MAX_CHARGES:
        raise ValueError("too many events")
    charges = tuple(charge_from_json(event) for event in events)
    if run_lengths(charges) != charges:
        raise ValueError("the events are not run-length encoded")
    return charges
