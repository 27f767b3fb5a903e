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
| a folder that is older than what the account was told is drawn | refused |
| two runs ask at once | one after the other; each sees what the other has reserved |
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from dprecipe.account.books import Books
from dprecipe.account.canonical import digest_of
from dprecipe.account.check import Recount, check_books
from dprecipe.account.entries import (
    MAX_ATTEMPTS,
    NONCE,
    RUN,
    BindAct,
    ReserveAct,
    RunClaim,
    SettleAct,
    VoidAct,
    clean_what,
)
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountInvalid, AccountRefused
from dprecipe.account.head import Head, find_rollback
from dprecipe.account.standing import AccountState, Reservation, Settlement, find_cost
from dprecipe.account.state import HOLDING, OPEN, VOID, RunState, Totals, digest_charges, largest, smallest
from dprecipe.account.sums import Sums
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import Charge, count_events, run_lengths
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.filters.filter import admits, mixture_epsilon, room

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
        """Where it is, as people write it."""
        return self._store.place

    def state(self) -> AccountState:
        """What is counted now."""
        with self._store.snapshot() as books:
            return AccountState(books.facts, books.totals)

    def find_run(self, run: str) -> RunState | None:
        """What the account knows of a run."""
        with self._store.snapshot() as books:
            return books.find_run(run)

    @contextmanager
    def snapshot(self) -> Iterator[Books]:
        """The account's rows at one moment, to read."""
        with self._store.snapshot() as books:
            yield books

    def verify(self, head: Head | None = None) -> Recount:
        """Recompute the account from all its entries; `head`: an earlier one, that it must have gone on from.

        Raises:
            AccountInvalid: naming each thing that does not hold.
        """
        with self._store.snapshot() as books:
            if head is not None:
                self._check_head(books, head)
            return check_books(books, f"account {self.facts.name}")

    def check_head(self, head: Head) -> None:
        """Check that the account has gone on from an earlier head, without reading all entries.

        Raises:
            AccountInvalid: it has not.
        """
        with self._store.snapshot() as books:
            self._check_head(books, head)

    def _check_head(self, books: Books, head: Head) -> None:
        failure = find_rollback(books.facts, books.totals.count, partial(_digest_at, books), head)
        if failure is not None:
            raise AccountInvalid(f"account {self.facts.name}", [failure])

    def try_writing(self) -> None:
        """Write to the account as a reservation does, and take it back."""
        with suppress(_TakenBack), self._store.transaction() as books:
            books.write_draft()
            raise _TakenBack

    def close(self) -> None:
        """Let go of the database."""
        self._store.close()

    def bind(self, data_digest: bytes) -> tuple[str, ...]:
        """Bind the account to data, or check that it is bound to these. Gives warnings: other accounts with the same
        data, as far as they can be read here.

        `data_digest`: a digest of the records; the account keeps its HMAC under a key of its own, and the digest
        itself nowhere.

        Raises:
            AccountRefused: the account is bound to other data.
        """
        with self._store.transaction() as books:
            commitment = commit(books.secret, data_digest)
            bound = books.totals.commitment
            if bound != commitment:
                if bound is not None and (books.totals.opened or not books.totals.sums.is_nothing):
                    raise self._refuse_other_data()
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
        """Reserve all that a run may draw, its earlier attempts included, for its next attempt.

        `run`: the run's name, for good; `attempt`: its number, which only grows. `what`: for people, such as the
        recipe's name. `claim`: what the run claims by itself. `nonce`: of this attempt; the same when the same attempt
        asks again because it does not know whether it was answered, another one for everybody else. `drawn`: what
        the run's ledger holds by now. `nonces`: of its earlier attempts, by number; the account's last is one of them.
        `data_digest`: as of `bind`; another run may have bound the account to other data since.

        Guarantees: when it returns, the reservation is on disk and counts; asked again, it counts once.

        Raises:
            AccountRefused: the cap has no room, the claim is above the largest ε of a run, the attempt was another's,
                or the ledger is older than what the account was told.
            NotInAccount: an event that no account of this relation can hold.
            UsageFault: names that can't be, no events, or an account that is bound to no data.
        """
        facts, charges = self.facts, run_lengths(charges)
        _check_names(run, attempt, nonce)
        if not charges:
            raise UsageFault("a run that draws nothing needs no reservation", "pass the charges of the plan")
        self._check_claim(claim, charges)
        cost, known = self._find_cost(charges), self._find_cost(run_lengths(drawn))
        act = ReserveAct(run, attempt, clean_what(what), nonce, charges, cost, claim)
        with self._store.transaction() as books:
            before = books.find_run(run)
            if before is not None and _is_repeated(before, act):
                return _reservation(books, before)
            if before is not None:
                self._check_attempt(before, act, known, nonces)
            if books.totals.commitment is None:
                raise UsageFault(f"account {facts.name} is bound to no data yet", "call DataAccount.bind first")
            if data_digest is not None and books.totals.commitment != commit(books.secret, data_digest):
                raise self._refuse_other_data()
            counted = before.counted if before is not None else None
            spent = _spent_with(books.totals, counted, cost)
            if admits(spent, facts.cap):
                books.append(act)
                return _reservation(books, books.get_run(run))
            state = AccountState(facts, books.totals)
        raise self._refuse(state, spent, cost, charges)

    def check_room(self, charges: Sequence[Charge], claim: RunClaim | None = None) -> None:
        """Whether a new run of these charges would be admitted now; nothing is reserved.

        Raises:
            AccountRefused, NotInAccount: as `reserve` would.
        """
        charges = run_lengths(charges)
        self._check_claim(claim, charges)
        cost, state = self._find_cost(charges), self.state()
        spent = _spent_with(state.totals, None, cost)
        if not admits(spent, self.facts.cap):
            raise self._refuse(state, spent, cost, charges)

    def settle(self, run: str, attempt: int, charges: Sequence[Charge], final: bool) -> Settlement:
        """Put on record what the run's ledger says was drawn, of all attempts together; unsettled events of the ledger
        were drawn. Asked again, it is there once.

        `final`: the run has ended as `completed` or `budget`. Then what was not drawn is given back, unless
        nothing of the run is seen before its end. Otherwise the reservation goes on counting in full.

        Raises:
            AccountRefused: more than was reserved, less than was settled before, or an attempt that is not the last.
            NotInAccount: an event that no account of this relation can hold.
        """
        _check_names(run, attempt, "")
        charges = run_lengths(charges)
        cost = self._find_cost(charges)
        with self._store.transaction() as books:
            before = self._find_attempt(books, run, attempt)
            if not before.reserved.covers(cost):
                raise AccountRefused(
                    f"run {run} has drawn more than it had reserved in account {self.facts.name}",
                    "its ledger and the account belong to different runs, or one was restored; compare them "
                    "(dprecipe account history)",
                )
            # Two computations of one sum may differ in the last digits.
            act = SettleAct(run, attempt, final, charges, smallest(cost, before.reserved))
            if before.status in HOLDING:
                if not act.cost.covers(before.drawn):
                    raise self._refuse_older(run)
                if final or before.status == OPEN or act.cost != before.drawn:
                    books.append(act)
            elif not final or act.cost != before.drawn:
                raise AccountRefused(
                    f"attempt {attempt} of run {run} is {before.status} in account {self.facts.name}, otherwise",
                    "see dprecipe account history; a run that goes on needs its next attempt",
                )
            return _settlement(books, books.get_run(run))

    def void(self, run: str, attempt: int, charges: Sequence[Charge] = ()) -> None:
        """Take the run's reservation back, since its ledger proves that nothing was drawn. Asked again, it is done.

        `charges`: what the ledger holds, of all attempts: nothing.

        Raises:
            AccountRefused: something was drawn, or an attempt that is not the last, or that is settled.
        """
        _check_names(run, attempt, "")
        if count_events(charges):
            raise AccountRefused(
                f"run {run} has drawn noise: it can't be void", "settle it: dprecipe account settle RUN"
            )
        with self._store.transaction() as books:
            before = self._find_attempt(books, run, attempt)
            if before.status == VOID:
                return
            if before.status not in HOLDING or not before.drawn.is_nothing:
                raise AccountRefused(
                    f"run {run} has drawn noise, as account {self.facts.name} was told: it can't be void",
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

    def _check_attempt(self, before: RunState, act: ReserveAct, known: Spent, nonces: Mapping[int, str] | None) -> None:
        # A copy that was refused once has used up a number, too: its next one is new, its past is not.
        is_other = nonces is not None and nonces.get(before.attempt) != before.nonce
        if act.attempt <= before.attempt or is_other:
            raise AccountRefused(
                f"attempt {before.attempt} of run {act.run} is known to account {self.facts.name} from another folder: "
                f"this one, at attempt {act.attempt}, is a copy, or older than the run",
                "go on in the run's own, newest folder; or start a new run (what this one reserved stays counted)",
            )
        if not known.covers(before.drawn):
            raise self._refuse_older(act.run)

    def _refuse_other_data(self) -> AccountRefused:
        return AccountRefused(
            f"account {self.facts.name} is for other data than these",
            "name the account of these data; new people, or another extract of them, are a new account: "
            "dprecipe account create",
        )

    def _refuse_older(self, run: str) -> AccountRefused:
        return AccountRefused(
            f"the ledger of run {run} holds less than account {self.facts.name} was told: the run's folder is an older "
            "copy",
            "go on in the run's newest folder; or start a new run (what this one reserved stays counted)",
        )

    def _find_attempt(self, books: Books, run: str, attempt: int) -> RunState:
        before = books.find_run(run)
        if before is None or before.attempt != attempt:
            raise AccountRefused(
                f"account {self.facts.name} knows no attempt {attempt} of run {run}"
                + (f" as its last: that is {before.attempt}" if before is not None else ""),
                "name the account that the run was charged to, and the run's newest folder",
            )
        return before

    def _refuse(self, state: AccountState, spent: Spent, cost: Spent, charges: tuple[Charge, ...]) -> AccountRefused:
        facts, events = self.facts, count_events(charges)
        share = min(room(state.spent, cost, facts.cap), 1.0)
        fits = int(share * events)
        after = mixture_epsilon(spent, facts.cap)
        held = f"; {state.totals.opened} open reservations count in full" if state.totals.opened else ""
        can = (
            f"there is room for {100 * share:.3g} % of this run, about {fits} of its {events} events: plan a "
            "shorter or noisier one (dprecipe account plan RECIPE)"
            if share > 0
            else "nothing more fits; an account has no refresh, and its cap is never raised"
        )
        return AccountRefused(
            f"account {facts.name} has no room for this run: with it, ε would be {after:.4g}, and the cap is "
            f"{facts.epsilon:g} (δ = {facts.delta:g}; counted so far: {state.epsilon:.4g}{held})",
            can,
            room=share,
        )


def commit(secret: bytes, data_digest: bytes) -> str:
    """The commitment of an account to data. Source: RFC 2104."""
    return hmac.new(secret, b"dprecipe account data\0" + data_digest, hashlib.sha256).hexdigest()


def _check_names(run: str, attempt: int, nonce: str) -> None:
    if not re.fullmatch(RUN, run) or not re.fullmatch(NONCE, nonce) or not 1 <= attempt <= MAX_ATTEMPTS:
        raise UsageFault(
            "a run's name, nonce or attempt is not valid",
            "a name is up to 100 letters, digits, dots and dashes; attempts count from 1",
        )


def _is_repeated(before: RunState, act: ReserveAct) -> bool:
    """Whether it is the open reservation, asked for once more."""
    same = (before.attempt, before.nonce, before.charges_digest) == (act.attempt, act.nonce, digest_charges(act))
    return same and before.status == OPEN


def _spent_with(totals: Totals, counted: Spent | None, cost: Spent) -> Spent:
    """What all count once the run reserves `cost`, where it counted `counted` before."""
    if counted is None:
        return (totals.sums + Sums.of(cost)).to_spent()
    return (totals.sums - Sums.of(counted) + Sums.of(largest(counted, cost))).to_spent()


def _reservation(books: Books, run: RunState) -> Reservation:
    return Reservation(books.facts, run.run, run.attempt, run.reserved, run.last + 1, _digest_at(books, run.last))


def _settlement(books: Books, run: RunState) -> Settlement:
    return Settlement(
        books.facts,
        run.run,
        run.attempt,
        run.reserved,
        run.counted,
        run.after,
        run.last + 1,
        _digest_at(books, run.last),
    )


def _digest_at(books: Books, seq: int) -> str:
    return books.totals.head if seq == books.totals.count - 1 else digest_of((books.read_line(seq) or "").encode())
