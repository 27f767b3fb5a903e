"""An account recomputed from its entries: the chain, every step, every cost, every sum, and the cap at every moment.

| caught by the entries alone | |
|---|---|
| an entry that was edited, removed from the middle, added or moved | the chain is broken |
| an entry that no correct writer makes (settled above its reservation, void after drawing) | `state.follow` |
| a cost below that of its events | it is computed again |
| facts that were changed (a higher cap) | the first entry names their digest |
| totals or a run's row that were changed | they are compared with what the entries add up to |
| more admitted than the cap allows | the filter is asked again |

**Not caught by the entries alone:** entries missing at the end (a restored backup), or a whole chain rewritten by
somebody who can write to the database. An exported head (`head`) catches both, for all that came before its export.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field

from dprecipe.account.books import Books
from dprecipe.account.entries import ReserveAct, SettleAct, VoidAct, parse_entry
from dprecipe.account.facts import SAME, AccountFacts
from dprecipe.account.faults import AccountInvalid
from dprecipe.account.standing import AccountState, find_cost
from dprecipe.account.state import KnownState, RunState, Totals, follow, is_within
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.filters.filter import admits, mixture_epsilon

MAX_FAILURES = 20


@dataclass
class Recount:
    """The sums and state of an account, recomputed from its entries one by one."""

    facts: AccountFacts
    totals: Totals = field(init=False)
    runs: dict[str, RunState] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)
    """Digests of the lines taken."""
    _admitted: Spent | None = None
    """A sum known to be within the cap: all smaller ones are within it, too."""

    def __post_init__(self) -> None:
        self.totals = Totals.start(self.facts)

    @property
    def state(self) -> AccountState:
        return AccountState(self.facts, self.totals)

    def copy(self) -> Recount:
        """Returns a copy of the count as it is now."""
        other = copy(self)
        other.runs, other.digests = dict(self.runs), [*self.digests]
        return other

    def take(self, line: str | bytes) -> None:
        """Takes the next entry.

        Raises:
            ValueError: no correct writer of this account makes such an entry.
        """
        content = line.encode() if isinstance(line, str) else line
        entry = parse_entry(content, len(self.facts.orders))
        act = entry.act
        before = self.runs.get(act.run) if isinstance(act, ReserveAct | SettleAct | VoidAct) else None
        known = follow(KnownState(self.totals, before), entry, content)
        totals, run = known.totals, known.run
        if isinstance(act, ReserveAct | SettleAct):
            cost = find_cost(act.charges, self.facts.neighbouring, self.facts.cap)
            if not act.cost.covers(cost):
                raise ValueError("the cost is less than that of the events")
        if isinstance(act, ReserveAct):
            self._check_claim(act)
        elif before is not None and run is not None and not is_within(before.counted, run.counted):
            self.check_cap()  # the largest sums are those before something is given back
        self.totals = totals
        self.digests.append(totals.head)
        if run is not None:
            self.runs[run.run] = run

    def _check_claim(self, act: ReserveAct) -> None:
        limit = self.facts.max_epsilon_per_run
        if limit is None:
            return
        claimed = mixture_epsilon(act.cost, self.facts.cap) if act.claim is None else act.claim.epsilon
        if claimed > limit * (1 + SAME):
            raise ValueError("the run claims more than the account allows a run")

    def check_cap(self) -> None:
        """Raises `ValueError` if what is counted now exceeds the cap."""
        spent = self.state.spent
        if self._admitted is not None and is_within(spent, self._admitted):
            return
        if not admits(spent, self.facts.cap):
            raise ValueError("more is reserved than the cap holds")
        self._admitted = spent


def recount(
    facts: AccountFacts, lines: Iterable[str | bytes], subject: str, passed: Callable[[Recount], None] | None = None
) -> Recount:
    """Recomputes an account from these entries. Calls `passed` with the count after each of them.

    Raises:
        AccountInvalid: an entry does not follow from those before it; the failure names it.
    """
    count = Recount(facts)
    try:
        for line in lines:
            count.take(line)
            if passed is not None:
                passed(count)
        count.check_cap()
    except (ValueError, TypeError, ArithmeticError, RecursionError, AttributeError) as error:
        raise AccountInvalid(subject, [f"entry {count.totals.count}: {error}"]) from None
    return count


def check_books(books: Books, subject: str) -> Recount:
    """Checks an account's rows against each other, and recomputes them from its entries.

    Raises:
        AccountInvalid: with each thing that does not hold; for the entries themselves, only the first.
    """
    count = recount(books.facts, _list_lines(books, subject), subject)
    failures = []
    if count.totals != books.totals:
        failures.append("the totals are not those of the entries")
    rows = dict.fromkeys(count.runs, 0)
    for row in books.read_runs():
        if row.run not in rows:
            failures.append(f"run {row.run} has a row and no entry")
        elif row != count.runs[row.run]:
            failures.append(f"the row of run {row.run} is not what its entries come to")
        rows[row.run] = 1
    failures += [f"run {run} has entries and no row" for run, seen in rows.items() if not seen]
    if failures:
        raise AccountInvalid(subject, failures[:MAX_FAILURES])
    return count


def _list_lines(books: Books, subject: str) -> Iterator[str]:
    for expected, (seq, line) in enumerate(books.read_lines()):
        if seq != expected:
            raise AccountInvalid(subject, [f"entry {expected} is missing"])
        yield line
