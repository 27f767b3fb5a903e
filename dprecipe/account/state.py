"""How entries follow each other: the running sums and the state of each run after every entry.

Writer and reader use the same rule, `follow`; it refuses what a writer can't make. It looks at the totals and at one
run, so that an entry costs the same whatever came before.

| what a run counts | |
|---|---|
| from its first reservation | the whole of it, drawn or not |
| a later attempt reserves | the larger of both reservations, at each order: the earlier one may have been drawn |
| settled, not final (interrupted, no model) | what it counted: anybody may have timed the interruption |
| settled, final (completed, budget) | what was drawn; all of it if nothing is seen before its end |
| void | nothing |

Source of the refunds: a run of steps whose bounds hold conditionally on the past, which stopped because of released
values or by a public rule, may give back the steps that it did not make (docs/account.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dprecipe.account.canonical import Fields, digest_of, to_line
from dprecipe.account.entries import NONCE, RUN, AccountEntry, BindAct, ReserveAct, SettleAct, VoidAct, charges_to_json
from dprecipe.account.facts import AccountFacts
from dprecipe.account.sums import Sums, read_sums
from dprecipe.privacy.filters.cap import Spent

OPEN, INTERRUPTED, SETTLED, VOID = "open", "interrupted", "settled", "void"
STATUSES = (OPEN, INTERRUPTED, SETTLED, VOID)
HOLDING = (OPEN, INTERRUPTED)
"""What an open reservation is: of an attempt that draws, or of one that was interrupted and said what it drew."""


@dataclass(frozen=True, slots=True)
class RunState:
    """What the account knows of a run after its last entry.

    `reserved`: what it counted while its last reservation was open; `counted`: what it counts now. `drawn`: what its
    ledger said, when it last settled. `charges_digest`: of the events of the last reservation. `refundable`: none of
    the events reserved hides its iterates. `first`, `last`: the numbers of its first and last entries. `after`: what
    all runs together counted after its last entry.
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
        }


@dataclass(frozen=True, slots=True)
class Totals:
    """What the entries come to. `head`: the digest of the last line, or of the facts. `opened`: open reservations."""

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


def read_totals(content: Mapping[str, Any]) -> Totals:
    """Totals that `Totals.to_json` wrote. Raises `ValueError`."""
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
    """A state that `RunState.to_json` wrote. Raises `ValueError`."""
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
    )
    fields.end()
    return run


def follow(totals: Totals, run: RunState | None, entry: AccountEntry, line: bytes) -> tuple[Totals, RunState | None]:
    """Totals and the run's state after an entry; `line` is its canonical form.

    Raises:
        ValueError: the entry does not follow: the chain is broken, or no writer makes such a step.
    """
    if entry.seq != totals.count or entry.prev != totals.head:
        raise ValueError("the chain is broken: a line was changed, removed, added or moved")
    act = entry.act
    if not isinstance(act, BindAct | ReserveAct) and entry.time != totals.time:
        raise ValueError("a settlement has a time of its own, which tells how long the run took")
    after = replace(totals, count=totals.count + 1, head=digest_of(line), time=entry.time)
    if isinstance(act, BindAct):
        if totals.commitment is not None and (totals.opened or not totals.sums.is_nothing):
            raise ValueError("binds other data to an account that has counted something")
        return replace(after, commitment=act.commitment), None
    state = _next_state(run, act, entry.seq)
    if isinstance(act, ReserveAct) and totals.commitment is None:
        raise ValueError("a reservation before the account is bound to its data")
    before = Sums.zero(len(totals.sums.rdp)) if run is None else Sums.of(run.counted)
    opened = (state.status in HOLDING) - (run is not None and run.status in HOLDING)
    sums = totals.sums - before + Sums.of(state.counted)
    after = replace(after, sums=sums, runs=totals.runs + (run is None), opened=totals.opened + opened)
    return after, replace(state, last=entry.seq, after=sums.to_spent())


def _next_state(run: RunState | None, act: ReserveAct | SettleAct | VoidAct, seq: int) -> RunState:
    if isinstance(act, ReserveAct):
        return _reserve(run, act, seq)
    if run is None:
        raise ValueError(f"a {act.kind} of a run that has reserved nothing")
    if run.status not in HOLDING or act.attempt != run.attempt:
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
    return replace(run, status=SETTLED if act.final else INTERRUPTED, counted=counted, drawn=act.cost)


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
    )


def digest_charges(act: ReserveAct) -> str:
    return digest_of(to_line({"events": charges_to_json(act.charges)}))


def zero_spent(orders: int) -> Spent:
    return Spent((0.0,) * orders, 0.0)


def largest(first: Spent, second: Spent) -> Spent:
    """The larger of both at each order."""
    return Spent(tuple(map(max, first.rdp, second.rdp)), max(first.delta, second.delta))


def smallest(first: Spent, second: Spent) -> Spent:
    """The smaller of both at each order."""
    return Spent(tuple(map(min, first.rdp, second.rdp)), min(first.delta, second.delta))


def is_within(inner: Spent, outer: Spent) -> bool:
    """Whether a cost is at most another at every order."""
    pairs = zip((*inner.rdp, inner.delta), (*outer.rdp, outer.delta), strict=True)
    return all(a <= b for a, b in pairs)
