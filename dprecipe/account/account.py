"""An account: reserve before the first noise, settle from the run's ledger, void where the ledger is empty.

The order of a run that is charged to an account:

1. `bind`: the records are those that the account is for.
2. `reserve`: all that the attempt may draw, before its ledger holds any of it. It counts in full from the moment it
   returns.
3. The run draws, within `Reservation.holds` besides its own budget.
4. `settle`: what the ledger says. Only then is a release published.

| case | what happens |
|---|---|
| the process dies anywhere, and does not come back | the reservation counts in full |
| it dies, and the same attempt asks again, with the same nonce | the same reservation, once |
| a resumed run | its next attempt reserves what the ledger holds and the rest of the plan; the larger one counts |
| a copy of the run's folder asks for an attempt that another copy has had | refused: its nonce is another one |
| a folder that is older than what the account knows to be drawn | refused |
| a copy that would draw again what the account knows is drawn | refused: something of it was seen |
| two runs ask at once | one after the other; each sees what the other has reserved |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from dprecipe.account.books import Books
from dprecipe.account.check import Recount, check_books
from dprecipe.account.entries import BindAct, ReserveAct, RunClaim, SettleAct, VoidAct, clean_what
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountInvalid, AccountRefused
from dprecipe.account.head import Head, find_rollback
from dprecipe.account.requests import (
    check_attempt,
    check_names,
    commit,
    digest_at,
    find_attempt,
    is_repeated,
    make_reservation,
    make_settlement,
    refuse_older,
    refuse_other_data,
    refuse_what_does_not_fit,
    spent_with,
)
from dprecipe.account.standing import AccountState, Reservation, Settlement, find_cost
from dprecipe.account.state import HOLDING, OPEN, VOID, RunState, is_renewal, smallest
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import Charge, count_events, run_lengths
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.filters.filter import admits, mixture_epsilon

if TYPE_CHECKING:
    from dprecipe.account.store import AccountStore


class _TakenBack(Exception):
    """Ends a transaction that is not to be kept."""


class DataAccount:
    """One account in a database. Every method raises `AccountUnavailable` where the database fails: then nothing is
    half-written, and the same call may be made again."""

    def __init__(self, store: AccountStore) -> None:
        """Raises `UsageFault` where there is no such account."""
        self._store = store
        with store.snapshot() as books:
            self.facts: AccountFacts = books.facts

    @property
    def place(self) -> str:
        """The account's address, as people write it."""
        return self._store.place

    def state(self) -> AccountState:
        """Returns what is counted now."""
        with self._store.snapshot() as books:
            return AccountState(books.facts, books.totals)

    def find_run(self, run: str) -> RunState | None:
        """Returns what the account knows about a run; None if the run is unknown."""
        with self._store.snapshot() as books:
            return books.find_run(run)

    @contextmanager
    def snapshot(self) -> Iterator[Books]:
        """Opens the account's rows for reading, all as of one moment."""
        with self._store.snapshot() as books:
            yield books

    def verify(self, head: Head | None = None) -> Recount:
        """Recomputes the account from all its entries. `head`: an earlier head that the account must extend.

        Raises:
            AccountInvalid: naming each thing that does not hold.
        """
        with self._store.snapshot() as books:
            if head is not None:
                self._check_head(books, head)
            return check_books(books, f"account {self.facts.name}")

    def check_head(self, head: Head) -> None:
        """Checks that the account extends an earlier head, without reading all entries.

        Raises:
            AccountInvalid: it does not.
        """
        with self._store.snapshot() as books:
            self._check_head(books, head)

    def _check_head(self, books: Books, head: Head) -> None:
        failure = find_rollback(books.facts, books.totals.count, partial(digest_at, books), head)
        if failure is not None:
            raise AccountInvalid(f"account {self.facts.name}", [failure])

    def try_writing(self) -> None:
        """Writes to the account as a reservation does, then rolls the transaction back."""
        with suppress(_TakenBack), self._store.transaction() as books:
            books.write_draft()
            raise _TakenBack

    def close(self) -> None:
        """Closes the connection to the database."""
        self._store.close()

    def bind(self, data_digest: bytes) -> tuple[str, ...]:
        """Binds the account to data, or checks that it is bound to these. Returns warnings: other accounts with the
        same data, as far as they can be read here.

        `data_digest`: a digest of the records; the account keeps its HMAC under a key of its own, and the digest
        itself nowhere.

        Raises:
            AccountRefused: the account is bound to other data.
        """
        with self._store.transaction() as books:
            commitment = commit(books.secret, data_digest)
            bound = books.totals.commitment
            if bound != commitment:
                if bound is not None and books.totals.counts_something:
                    raise refuse_other_data(self.facts)
                books.append(BindAct(commitment))
        return tuple(
            f"the same data are charged to account {sibling.name}, too: together the two allow the sum of their caps"
            for sibling in self._store.list_siblings()
            if sibling.commitment == commit(sibling.secret, data_digest)
        )

    def reserve(
        self,
        run: str,
        attempt: int,
        charges: Sequence[Charge],
        what: str,
        *,
        claim: RunClaim | None = None,
        nonce: str = "",
        drawn: Sequence[Charge] = (),
        nonces: Mapping[int, str] | None = None,
        data_digest: bytes | None = None,
    ) -> Reservation:
        """Reserves, for a run's next attempt, all that the run may draw, its earlier attempts included.

        `run`: the run's name, for good; `attempt`: its number, which only grows. `what`: for people, such as the
        recipe's name. `claim`: what the run claims by itself. `nonce`: identifies this attempt: the same when the same
        attempt asks again because it does not know whether it was answered, and different for everybody else. `drawn`:
        what the run's ledger holds by now, less what the attempt is about to draw again (`spend_once.find_carried`).
        `nonces`: those of its earlier attempts, by number; the account's last is one of them. `data_digest`: as in
        `bind`; another run may have bound the account to other data since.

        Guarantees: when it returns, the reservation is on disk and counts; a repeated call counts once.

        Raises:
            AccountRefused: the run does not fit under the cap, the claim is above the largest ε of a run, the attempt
                was another's, or the ledger is older than what the account knows.
            NotInAccount: an event that no account of this relation can hold.
            UsageFault: names that are not valid, no events, or an account that is bound to no data.
        """
        facts, charges = self.facts, run_lengths(charges)
        check_names(run, attempt, nonce)
        if not charges:
            raise UsageFault("a run that draws nothing needs no reservation", "pass the charges of the plan")
        self._check_claim(claim, charges)
        cost, known = self._find_cost(charges), self._find_cost(run_lengths(drawn))
        act = ReserveAct(run, attempt, clean_what(what), nonce, charges, cost, claim)
        with self._store.transaction() as books:
            before = books.find_run(run)
            if before is not None and is_repeated(before, act):
                return make_reservation(books, before)
            if before is not None:
                check_attempt(facts, before, act, known, nonces)
            if books.totals.commitment is None:
                raise UsageFault(f"account {facts.name} is bound to no data yet", "call DataAccount.bind first")
            if data_digest is not None and books.totals.commitment != commit(books.secret, data_digest):
                raise refuse_other_data(facts)
            counted = before.counted if before is not None else None
            spent = spent_with(books.totals, counted, cost)
            if admits(spent, facts.cap):
                books.append(act)
                return make_reservation(books, books.get_run(run))
            state = AccountState(facts, books.totals)
        raise refuse_what_does_not_fit(state, spent, cost, charges)

    def check_fits(self, charges: Sequence[Charge], claim: RunClaim | None = None) -> None:
        """Checks that a new run of these charges would be admitted now; nothing is reserved.

        Raises:
            AccountRefused, NotInAccount: as `reserve` would.
        """
        charges = run_lengths(charges)
        self._check_claim(claim, charges)
        cost, state = self._find_cost(charges), self.state()
        spent = spent_with(state.totals, None, cost)
        if not admits(spent, self.facts.cap):
            raise refuse_what_does_not_fit(state, spent, cost, charges)

    def settle(
        self, run: str, attempt: int, charges: Sequence[Charge], final: bool, release: str | None = None
    ) -> Settlement:
        """Records what the run's ledger says was drawn by all attempts together; unsettled events of the ledger count
        as drawn. A repeated call records it only once.

        `final`: the run has ended as `completed` or `budget`. Then what was not drawn is given back, unless nothing of
        the run is seen before its end. Otherwise the reservation continues to count in full. `release`: the digest of
        what the run releases. A release that is made again is recorded again, and replaces the earlier one.

        Raises:
            AccountRefused: more than was reserved, less than was settled before, or an attempt that is not the last.
            NotInAccount: an event that no account of this relation can hold.
        """
        check_names(run, attempt, "")
        charges = run_lengths(charges)
        cost = self._find_cost(charges)
        with self._store.transaction() as books:
            before = find_attempt(books, run, attempt)
            if not before.reserved.covers(cost):
                raise AccountRefused(
                    f"run {run} has drawn more than it had reserved in account {self.facts.name}",
                    "its ledger and the account belong to different runs, or one was restored; compare them "
                    "(dprecipe account history)",
                )
            # Two computations of one sum may differ in the last digits.
            named = before.release if release is None else release
            act = SettleAct(run, attempt, final, charges, smallest(cost, before.reserved), named)
            if before.status in HOLDING:
                if not act.cost.covers(before.drawn):
                    raise refuse_older(self.facts, run)
                if final or before.status == OPEN or (act.cost, named) != (before.drawn, before.release):
                    books.append(act)
            elif is_renewal(before, act):
                books.append(act)
            elif not final or act.cost != before.drawn:
                raise AccountRefused(
                    f"attempt {attempt} of run {run} is already {before.status} in account {self.facts.name}, with "
                    "other values",
                    "see dprecipe account history; a run that goes on needs its next attempt",
                )
            return make_settlement(books, books.get_run(run))

    def void(self, run: str, attempt: int, charges: Sequence[Charge] = ()) -> None:
        """Takes the run's reservation back, since its ledger proves that nothing was drawn. A repeated call changes
        nothing.

        `charges`: what the ledger holds for all attempts, which must be nothing.

        Raises:
            AccountRefused: something was drawn, or the attempt is not the last or is already settled.
        """
        check_names(run, attempt, "")
        if count_events(charges):
            raise AccountRefused(
                f"run {run} has drawn noise: it can't be void", "settle it: dprecipe account settle RUN"
            )
        with self._store.transaction() as books:
            before = find_attempt(books, run, attempt)
            if before.status == VOID:
                return
            if before.status not in HOLDING or not before.drawn.is_nothing:
                raise AccountRefused(
                    f"run {run} has drawn noise, according to account {self.facts.name}: it can't be void",
                    "settle it with its own ledger: dprecipe account settle RUN",
                )
            books.append(VoidAct(run, attempt))

    def _find_cost(self, charges: tuple[Charge, ...]) -> Spent:
        return find_cost(charges, self.facts.neighbouring, self.facts.cap)

    def _check_claim(self, claim: RunClaim | None, charges: tuple[Charge, ...]) -> None:
        limit = self.facts.max_epsilon_per_run
        if limit is None:
            return
        epsilon = claim.epsilon if claim is not None else mixture_epsilon(self._find_cost(charges), self.facts.cap)
        if not epsilon <= limit:
            raise AccountRefused(
                f"the run's ε is {epsilon:g}, and account {self.facts.name} allows a run at most {limit:g}",
                f"set budget.epsilon to at most {limit:g}",
            )
