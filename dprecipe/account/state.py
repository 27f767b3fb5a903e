"""The rule by which entries follow each other: the running sums and the state of each run after every entry.

Writer and reader use the same rule, `follow`, which refuses what no correct writer makes. It reads only the totals and
one run, so that an entry costs the same however many came before.

| what a run counts | |
|---|---|
| from its first reservation | the whole of it, drawn or not |
| a later attempt reserves | the larger of both reservations, at each order: the earlier one may have been drawn |
| settled, not final (interrupted, no model) | what it counted before: anybody may have timed the interruption |
| settled, final (completed, budget) | what was drawn; all of it if nothing is seen before its end |
| void | nothing |

Source of the refunds: if the bounds of a run's steps hold conditionally on the past, and it stopped because of released
values or by a public rule, it may give back the steps that it did not make (docs/how-to/account.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dprecipe.account.canonical import DIGEST, Fields, digest_of, to_line
from dprecipe.account.entries import (
    NONCE,
    RUN,
    AccountEntry,
    BindAct,
    ReserveAct,
    SettleAct,
    VoidAct,
    charges_to_json,
)
from dprecipe.account.facts import AccountFacts
from dprecipe.account.sums import Sums, read_sums
from dprecipe.privacy.filters.cap import Spent

OPEN, INTERRUPTED, SETTLED, VOID = "open", "interrupted", "settled", "void"
STATUSES = (OPEN, INTERRUPTED, SETTLED, VOID)
HOLDING = (OPEN, INTERRUPTED)
"""The states of an open reservation: its attempt draws, or was interrupted and has reported what it drew."""


@dataclass(frozen=True, slots=True)
class RunState:
    """The account's knowledge of a run after its last entry.

    `reserved`: what it counted while its last reservation was open; `counted`: what it counts now. `drawn`: what its
    ledger held when it last settled. `charges_digest`: the digest of the events of the last reservation. `refundable`:
    none of the events reserved hides its iterates. `first`, `last`: the numbers of its first and last entries.
    `after`: what all runs together counted after its last entry. `release`: the digest of its release, from its last
    settlement.
    """

    run: str
    attempt: int
    status: str
    nonce: str
    charges_digest: str
    refundable: bool
    reserved: Spent
    counted: Spent
    drawn: Spent
    after: Spent
    first: int
    last: int
    release: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "attempt": self.attempt,
            "status": self.status,
            "nonce": self.nonce,
            "charges_digest": self.charges_digest,
            "refundable": self.refundable,
            "reserved": self.reserved.to_json(),
            "counted": self.counted.to_json(),
            "drawn": self.drawn.to_json(),
            "after": self.after.to_json(),
            "first": self.first,
            "last": self.last,
            **({} if self.release is None else {"release": self.release}),
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of the entries. `head`: the digest of the last line, or of the facts. `opened`: the number of open
    reservations."""

    count: int
    head: str
    time: str
    sums: Sums
    runs: int
    opened: int
    commitment: str | None

    @classmethod
    def start(cls, facts: AccountFacts) -> Totals:
        return cls(0, facts.digest, facts.created, Sums.zero(len(facts.orders)), 0, 0, None)

    @property
    def counts_something(self) -> bool:
        """True if any run may have drawn something."""
        return bool(self.opened or not self.sums.is_nothing)

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "head": self.head,
            "time": self.time,
            "sums": self.sums.to_json(),
            "runs": self.runs,
            "opened": self.opened,
            "commitment": self.commitment,
        }


@dataclass(frozen=True, slots=True)
class KnownState:
    """The state that an entry follows: the totals, and the run that it is about, if known."""

    totals: Totals
    run: RunState | None = None


def read_totals(content: Mapping[str, Any]) -> Totals:
    """Reads what `Totals.to_json` wrote. Raises `ValueError`."""
    fields = Fields(content)
    totals = Totals(
        count=fields.whole("count", 0),
        head=fields.text("head", "sha256:[0-9a-f]{64}"),
        time=fields.moment("time"),
        sums=read_sums(fields.mapping("sums")),
        runs=fields.whole("runs", 0),
        opened=fields.whole("opened", 0),
        commitment=None if fields.is_null("commitment") else fields.text("commitment", "[0-9a-f]{64}"),
    )
    fields.end()
    return totals


def read_run(content: Mapping[str, Any], orders: int) -> RunState:
    """Reads what `RunState.to_json` wrote. Raises `ValueError`."""
    fields = Fields(content)
    run = RunState(
        run=fields.text("run", RUN),
        attempt=fields.whole("attempt", 1),
        status=fields.text("status", "|".join(STATUSES)),
        nonce=fields.text("nonce", NONCE),
        charges_digest=fields.text("charges_digest", "sha256:[0-9a-f]{64}"),
        refundable=fields.flag("refundable"),
        reserved=fields.spent("reserved", orders),
        counted=fields.spent("counted", orders),
        drawn=fields.spent("drawn", orders),
        after=fields.spent("after", orders),
        first=fields.whole("first", 0),
        last=fields.whole("last", 0),
        release=fields.text("release", DIGEST.pattern) if fields.has("release") else None,
    )
    fields.end()
    return run


def follow(known: KnownState, entry: AccountEntry, line: bytes) -> KnownState:
    """Returns what is known after an entry; `line` is its canonical form.

    Raises:
        ValueError: the entry does not follow: the chain is broken, or no correct writer makes such a step.
    """
    totals, act = known.totals, entry.act
    if entry.seq != totals.count or entry.prev != totals.head:
        raise ValueError("the chain is broken: a line was changed, removed, added or moved")
    if isinstance(act, SettleAct | VoidAct) and entry.time != totals.time:
        raise ValueError("a settlement has a time of its own, which tells how long the run took")
    after = replace(totals, count=totals.count + 1, head=digest_of(line), time=entry.time)
    if isinstance(act, BindAct):
        if totals.commitment is not None and totals.counts_something:
            raise ValueError("binds other data to an account that has counted something")
        return KnownState(replace(after, commitment=act.commitment))
    if isinstance(act, ReserveAct) and totals.commitment is None:
        raise ValueError("a reservation before the account is bound to its data")
    run, state = known.run, _next_state(known.run, act, entry.seq)
    before = Sums.zero(len(totals.sums.rdp)) if run is None else Sums.of(run.counted)
    opened = (state.status in HOLDING) - (run is not None and run.status in HOLDING)
    sums = totals.sums - before + Sums.of(state.counted)
    after = replace(after, sums=sums, runs=totals.runs + (run is None), opened=totals.opened + opened)
    return KnownState(after, replace(state, last=entry.seq, after=sums.to_spent()))


def _next_state(run: RunState | None, act: ReserveAct | SettleAct | VoidAct, seq: int) -> RunState:
    if isinstance(act, ReserveAct):
        return _reserve(run, act, seq)
    if run is None:
        raise ValueError(f"a {act.kind} of a run that has reserved nothing")
    is_made_again = isinstance(act, SettleAct) and is_renewal(run, act)
    if (run.status not in HOLDING and not is_made_again) or act.attempt != run.attempt:
        raise ValueError(f"a {act.kind} of an attempt that is not the open one")
    if isinstance(act, VoidAct):
        if not run.drawn.is_nothing:
            raise ValueError("a void of a run that has drawn something")
        zero = zero_spent(len(run.counted.rdp))
        return replace(run, status=VOID, counted=zero, drawn=zero)
    if not is_within(act.cost, run.counted):
        raise ValueError("settles more than was reserved")
    if not act.cost.covers(run.drawn):
        raise ValueError("settles less than was settled before")
    counted = act.cost if act.final and run.refundable else run.counted
    status = SETTLED if act.final else INTERRUPTED
    return replace(run, status=status, counted=counted, drawn=act.cost, release=act.release)


def is_renewal(run: RunState, act: SettleAct) -> bool:
    """Returns True if the act repeats what the run drew, for a release that was made again: the earlier release is no
    longer the account's."""
    return (
        run.status == SETTLED
        and act.final
        and act.cost == run.drawn
        and act.release is not None
        and act.release != run.release
    )


def _reserve(run: RunState | None, act: ReserveAct, seq: int) -> RunState:
    if not act.charges:
        raise ValueError("a reservation of nothing")
    digest = digest_charges(act)
    refundable = not any(charge.event.hides_iterates for charge in act.charges)
    if run is None:
        zero = zero_spent(len(act.cost.rdp))
        return RunState(
            run=act.run,
            attempt=act.attempt,
            status=OPEN,
            nonce=act.nonce,
            charges_digest=digest,
            refundable=refundable,
            reserved=act.cost,
            counted=act.cost,
            drawn=zero,
            after=zero,
            first=seq,
            last=seq,
        )
    if act.attempt <= run.attempt:
        raise ValueError("a reservation of an attempt that is not a later one")
    if not act.cost.covers(run.drawn):
        raise ValueError("reserves less than was settled before")
    reserved = largest(run.counted, act.cost)
    return replace(
        run,
        attempt=act.attempt,
        status=OPEN,
        nonce=act.nonce,
        charges_digest=digest,
        refundable=refundable and run.refundable,
        reserved=reserved,
        counted=reserved,
        release=None,
    )


def digest_charges(act: ReserveAct) -> str:
    return digest_of(to_line({"events": charges_to_json(act.charges)}))


def zero_spent(orders: int) -> Spent:
    return Spent((0.0,) * orders, 0.0)


def largest(first: Spent, second: Spent) -> Spent:
    """Returns the larger of both at each order."""
    return Spent(tuple(map(max, first.rdp, second.rdp)), max(first.delta, second.delta))


def smallest(first: Spent, second: Spent) -> Spent:
    """Returns the smaller of both at each order."""
    return Spent(tuple(map(min, first.rdp, second.rdp)), min(first.delta, second.delta))


def is_within(inner: Spent, outer: Spent) -> bool:
    """Returns True if a cost is at most another at every order."""
    pairs = zip((*inner.rdp, inner.delta), (*outer.rdp, outer.delta), strict=True)
    return all(a <= b for a, b in pairs)
