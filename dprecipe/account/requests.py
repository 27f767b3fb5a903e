"""Answers of an account to a run: the checks before it writes, and the text of its refusals."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

from dprecipe.account.books import Books
from dprecipe.account.canonical import digest_of
from dprecipe.account.entries import MAX_ATTEMPTS, NONCE, RUN, ReserveAct
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountRefused
from dprecipe.account.standing import AccountState, Reservation, Settlement
from dprecipe.account.state import OPEN, RunState, Totals, digest_charges, largest
from dprecipe.account.sums import Sums
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.filters.cap import Spent
from dprecipe.privacy.filters.filter import affordable_share, mixture_epsilon


def commit(secret: bytes, data_digest: bytes) -> str:
    """Returns the commitment of an account to data. Source: RFC 2104."""
    return hmac.new(secret, b"dprecipe account data\0" + data_digest, hashlib.sha256).hexdigest()


def check_names(run: str, attempt: int, nonce: str) -> None:
    """Raises `UsageFault` for names that are not valid."""
    if not re.fullmatch(RUN, run) or not re.fullmatch(NONCE, nonce) or not 1 <= attempt <= MAX_ATTEMPTS:
        raise UsageFault(
            "a run's name, nonce or attempt is not valid",
            "a name is up to 100 letters, digits, dots and dashes; attempts count from 1",
        )


def is_repeated(before: RunState, act: ReserveAct) -> bool:
    """Returns True if the act is the open reservation, asked for once more."""
    same = (before.attempt, before.nonce, before.charges_digest) == (act.attempt, act.nonce, digest_charges(act))
    return same and before.status == OPEN


def spent_with(totals: Totals, counted: Spent | None, cost: Spent) -> Spent:
    """Returns what all runs count once a run reserves `cost`, having counted `counted` before."""
    if counted is None:
        return (totals.sums + Sums.of(cost)).to_spent()
    return (totals.sums - Sums.of(counted) + Sums.of(largest(counted, cost))).to_spent()


def make_reservation(books: Books, run: RunState) -> Reservation:
    """Returns what a run has reserved."""
    return Reservation(books.facts, run.run, run.attempt, run.reserved, run.last + 1, digest_at(books, run.last))


def make_settlement(books: Books, run: RunState) -> Settlement:
    """Returns what became of a run's reservation."""
    return Settlement(
        books.facts,
        run.run,
        run.attempt,
        run.reserved,
        run.counted,
        run.after,
        run.last + 1,
        digest_at(books, run.last),
    )


def digest_at(books: Books, seq: int) -> str:
    """Returns the digest of the line with this number."""
    return books.totals.head if seq == books.totals.count - 1 else digest_of((books.read_line(seq) or "").encode())


def check_attempt(
    facts: AccountFacts, before: RunState, act: ReserveAct, known: Spent, nonces: Mapping[int, str] | None
) -> None:
    """Checks that a later attempt comes from the run's own, newest folder.

    Raises:
        AccountRefused: it comes from a copy, or from a folder older than what the account knows.
    """
    # A copy that was refused once has used up a number, too: its next number is new, but its past is not.
    is_other = nonces is not None and nonces.get(before.attempt) != before.nonce
    if act.attempt <= before.attempt or is_other:
        raise AccountRefused(
            f"attempt {before.attempt} of run {act.run} is known to account {facts.name} from another folder: "
            f"this one, at attempt {act.attempt}, is a copy, or older than the run",
            "go on in the run's own, newest folder; or start a new run (what this one reserved stays counted)",
        )
    if not known.covers(before.drawn):
        raise refuse_older(facts, act.run)


def refuse_other_data(facts: AccountFacts) -> AccountRefused:
    """Returns the refusal of a run on data other than the account's."""
    return AccountRefused(
        f"account {facts.name} is for other data than these",
        "name the account of these data; new people, or another extract of them, are a new account: "
        "dprecipe account create",
    )


def refuse_older(facts: AccountFacts, run: str) -> AccountRefused:
    """Returns the refusal of a folder that knows less than the account, or would draw again what the account knows."""
    return AccountRefused(
        f"account {facts.name} knows of noise that the ledger of run {run} lacks, or has not settled: the run's "
        "folder is an older copy",
        "go on in the run's newest folder; or start a new run (what this one reserved stays counted)",
    )


def refuse_what_does_not_fit(
    state: AccountState, spent: Spent, cost: Spent, charges: tuple[Charge, ...]
) -> AccountRefused:
    """Returns the refusal of a run that does not fit under the filter; `spent`: what would be counted with it."""
    facts, events = state.facts, count_events(charges)
    share = min(affordable_share(state.spent, cost, facts.cap), 1.0)
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
        f"this run does not fit into account {facts.name}: with it, ε would be {after:.4g}, and the cap is "
        f"{facts.epsilon:g} (δ = {facts.delta:g}; counted so far: {state.epsilon:.4g}{held})",
        can,
        affordable_share=share,
    )


def find_attempt(books: Books, run: str, attempt: int) -> RunState:
    """Returns the state of a run whose last attempt this is.

    Raises:
        AccountRefused: there is no such run, or another attempt is its last.
    """
    before = books.find_run(run)
    if before is None or before.attempt != attempt:
        raise AccountRefused(
            f"account {books.facts.name} knows no attempt {attempt} of run {run}"
            + (f" as its last: that is {before.attempt}" if before is not None else ""),
            "name the account that the run was charged to, and the run's newest folder",
        )
    return before
