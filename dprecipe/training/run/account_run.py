"""A run and the account of its data set: reserve before the first noise, settle before the release.

    the attempt's line is in the ledger: the run's name and a nonce of the attempt, on disk
    the account is bound to the data, or says that they are others
    the account reserves what the ledger holds and the rest of the plan       <- before this, nothing is drawn
    … the run draws, within the reservation …
    the account learns what the ledger holds                                  <- before this, there is no release

| what happens | what becomes of it |
|---|---|
| a kill before the reservation | nothing: the account never heard of this attempt, and the next one reserves |
| a kill after it | it counts in full; the next attempt reserves what the ledger holds and the rest of the plan |
| that does not fit into the account | the run goes on within what it had, and ends as `budget` where that is used up |
| a folder that is older than what the account has seen of its run | refused: its ledger lacks what was drawn |
| a copy that would go on with a hidden event that was settled with the account | refused: its end was seen |
| the account can't be reached at the beginning | the run is refused; nothing is drawn |
| it can't be reached at the end | the release is held back, and `dprecipe account settle RUN` completes it |
| the first attempt ends, and has drawn nothing | its reservation is void |
| it is killed, or a later one ends so | it counts on: the folder may be an older copy of one that drew more |

Guarantees: whatever the ledger of the run ever holds, its cost is within the run's reservation at every order
(`LedgerWriter.limit` refuses the rest), and the reservation was on the account's disk before.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from dprecipe.account.account import DataAccount
from dprecipe.account.entries import RunClaim
from dprecipe.account.faults import AccountRefused
from dprecipe.account.opening import open_account
from dprecipe.account.standing import Reservation, Settlement
from dprecipe.account.state import VOID
from dprecipe.contract.facts import NO_MODEL
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import DataFault, Fault, InternalFault, RunFailed, UsageFault
from dprecipe.planning.accounts import check_plan
from dprecipe.privacy.events import Charge, Event, count_by_event, order_charges
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.release.charged_account import ChargedAccount, compute_epsilons, to_curve
from dprecipe.screen import write_note
from dprecipe.training.run.spend_once import find_carried

KEY = "account"
"""The key of the account's part in what an attempt records about itself in the ledger."""


def open_account_of(plan: Plan) -> DataAccount:
    """Opens the account that a plan names.

    Raises:
        UsageFault: there is none.
        AccountUnavailable: it can't be reached or read.
    """
    if plan.budget.account is None:
        raise InternalFault("a run without an account asked one")
    return open_account(plan.budget.account, Path(plan.source.file).resolve().parent)


def check_account(plan: Plan, is_new: bool) -> None:
    """Checks, before anything is read, that the account can be reached, is for such runs, and can hold a new run now.

    Raises:
        PlanRefused: it is for another unit or relation, or allows no run of this budget.
        AccountRefused: the run does not fit under its cap; the remedy says what could be afforded.
        UsageFault, AccountUnavailable: see `open_account_of`.
    """
    if plan.budget.account is None:
        return
    with closing(open_account_of(plan)) as account:
        check_plan(plan, account.facts)
        if is_new:
            account.check_fits(plan.events, _claim_of(plan))


@final
class RunInAccount:
    """The reservation of one attempt."""

    def __init__(self, plan: Plan, reservation: Reservation, is_first: bool) -> None:
        """`is_first`: no earlier attempt had a reservation that was not given back."""
        self._plan = plan
        self._reservation = reservation
        self._is_first = is_first
        planned = order_charges(count_by_event(plan.events))
        self._planned = count_by_event(planned if reservation.holds(planned) else ())

    def narrow(self, plan: Plan) -> Plan:
        """Returns the plan, with a budget whose limits the reservation covers too."""
        return replace(plan, budget=replace(plan.budget, held=self.holds))

    def holds(self, charges: Sequence[Charge]) -> bool:
        """Returns True if the reservation covers all these charges, of all attempts together."""
        return self.allows(count_by_event(charges))

    def allows(self, charged: Counter[Event]) -> bool:
        """Answers as `holds`, by event; for what is planned the answer is known beforehand."""
        return charged <= self._planned or self._reservation.holds(order_charges(charged))

    def void_unless_drawn(self, ledger: LedgerWriter) -> None:
        """Gives the reservation back, if the ledger is empty; where the account can't be reached, it counts on.

        It also counts on where an earlier attempt has reserved: this folder may be an older copy, and know nothing of
        what that attempt drew elsewhere."""
        if ledger.is_empty and self._is_first:
            if ledger.stop_reason is None:
                with suppress(RunFailed):
                    ledger.close("interrupted")  # `void_run` asks for it
            with suppress(Fault), closing(open_account_of(self._plan)) as account:
                account.void(self._reservation.run, self._reservation.attempt, ())


def _claim_of(plan: Plan) -> RunClaim:
    """Returns the most that the run may claim by itself."""
    return RunClaim(plan.budget.epsilon, plan.budget.delta)


def name_attempt(plan: Plan, before: Ledger | None, trial: bool) -> dict[str, Any]:
    """Returns what the attempt records about itself in the ledger before it reserves: the run's permanent name in the
    account, and a nonce of this attempt; empty where the plan names no account."""
    if plan.budget.account is None or trial:
        return {}
    run = read_run_name(before)
    return {KEY: {"run": secrets.token_hex(16) if run is None else run, "nonce": secrets.token_hex(16)}}


def read_run_name(ledger: Ledger | None) -> str | None:
    """Returns the name that the first attempt gave the run; None before that attempt.

    Raises:
        RunFailed: the ledger is of a run that was not charged to an account.
    """
    if ledger is None:
        return None
    try:
        return str(ledger.programs[0][KEY]["run"])
    except (KeyError, TypeError):
        raise RunFailed(
            "this run was not charged to an account when it began, and can't be charged to one now",
            "start a new run with --out",
        ) from None


def reserve_plan(
    plan: Plan, ledger: LedgerWriter, named: Mapping[str, Any], data: bytes, rest: Sequence[Charge]
) -> RunInAccount:
    """Reserves what the ledger holds and `rest`, what the attempt may still draw, in the plan's account.

    `data`: a digest of the records. A later attempt that does not fit into the account goes on with what the run has
    reserved before.

    Raises:
        AccountRefused: it does not fit; the data are others; or the folder is older than what the account has seen.
        PlanRefused: the account that the name leads to by now is for another unit or relation.
        NotInAccount: an event that no account can hold.
        UsageFault, AccountUnavailable: see `open_account_of`.
    """
    before = () if ledger.before is None else ledger.before.charges
    drawn, planned = count_by_event(before), count_by_event(plan.events)
    run, nonce = str(named[KEY]["run"]), str(named[KEY]["nonce"])
    with closing(open_account_of(plan)) as account:
        check_plan(plan, account.facts)  # its name may lead elsewhere than when the run began
        for warning in account.bind(data):
            write_note(f"warning: {warning}")
        known = account.find_run(run)
        is_known = known is not None
        wanted = [_find_whole(plan, drawn, count_by_event(rest))]
        wanted += [planned | drawn, drawn] if is_known else []
        refusal: AccountRefused | None = None
        for charged in wanted:
            charges = order_charges(charged)
            if not charges:
                continue
            try:
                reservation = account.reserve(
                    run,
                    ledger.attempt,
                    charges,
                    plan.name,
                    claim=_claim_of(plan),
                    nonce=nonce,
                    drawn=order_charges(drawn - _count_carried(ledger.before)),
                    nonces=_list_nonces(ledger.before),
                    data_digest=data,
                )
            except AccountRefused as refused:
                if refused.affordable_share is None:
                    raise
                refusal = refusal or refused
                continue
            if refusal is not None:
                write_note(
                    f"{refusal.message}; the run goes on within what it had reserved, and ends where that is used up"
                )
            return RunInAccount(plan, reservation, known is None or known.status == VOID)
    raise refusal or InternalFault("a run without events asked an account")


def _count_carried(before: Ledger | None) -> Counter[Event]:
    """Counts the event that the attempt carries, if any."""
    carried = find_carried(before)
    return Counter() if carried is None else Counter({carried: 1})


def _list_nonces(before: Ledger | None) -> dict[int, str]:
    """Returns the nonce of each attempt in a ledger, by number."""
    named = enumerate(() if before is None else before.programs, start=1)
    return {number: str(own.get("nonce")) for number, program in named if isinstance(own := program.get(KEY), Mapping)}


def _find_whole(plan: Plan, drawn: Counter[Event], rest: Counter[Event]) -> Counter[Event]:
    """Returns all that the attempts of the run may have drawn in the end. Where a filter limits the mechanism's own
    events, the limit is for all attempts together, and only paid steps are drawn beside it."""
    planned, stages = count_by_event(plan.events), count_by_event(plan.stage_charges)
    if not mechanism_of(plan.mechanism).certificate.is_adaptive(plan):
        return (drawn + rest) | planned
    paid = Counter({event: drawn[event] + rest[event] for event in stages})
    return (planned - stages) + (paid | stages)


def settle_run(plan: Plan, ledger: Ledger, release: str | None) -> ChargedAccount | None:
    """Tells the account what the run's ledger holds, and returns the certificate's statement of it. None where there is
    no account.

    `release`: the digest of what is released (`dprecipe.release.folder.digest_made`), which the settlement names; None
    where that is not known yet: then it is settled again once it is known.

    Raises:
        AccountUnavailable: it can't be reached; the same call may be made again.
        AccountRefused: the account knows the run otherwise.
    """
    if plan.budget.account is None:
        return None
    run = read_run_name(ledger)
    with closing(open_account_of(plan)) as account:
        known = account.find_run(str(run))
        if known is None:
            raise AccountRefused(
                f"account {plan.budget.account} knows nothing of this run: it was charged to another, or this is an "
                "older copy",
                "put the run's own account back; or, where it is lost, continue with --resume, which reserves here all "
                "that was drawn",
            )
        check_newest(plan, ledger, known.attempt, known.nonce)
        charges = order_charges(count_by_event(ledger.charges))
        # A run without a model may have ended by a crash in a paid step: what decided its moment may be private.
        ended_by_itself = ledger.stop_reason != NO_MODEL
        return state_account(account.settle(known.run, known.attempt, charges, ended_by_itself, release))


def void_run(plan: Plan, ledger: Ledger) -> None:
    """Gives back the reservation of a run whose ledger proves that it drew nothing: its only attempt ended, and says
    so. The ledger of a run that was killed may be an older copy.

    Raises:
        AccountUnavailable: the account can't be reached.
        AccountRefused: it knows the run otherwise.
        UsageFault: the ledger is no proof.
    """
    with closing(open_account_of(plan)) as account:
        known = account.find_run(str(read_run_name(ledger)))
        if known is None:
            return
        check_newest(plan, ledger, known.attempt, known.nonce)
        is_proof = ledger.stop_reason is not None and known.first == known.last
        if known.status != VOID and not is_proof:
            raise UsageFault(
                "this run's ledger is empty, but its attempt was killed, or another came before it: a copy of the "
                "folder may hold more, so the account counts all that it reserved",
                "continue it with --resume, which reserves no more; or leave it: what it reserved stays counted",
            )
        account.void(known.run, known.attempt, ledger.charges)


def check_newest(plan: Plan, ledger: Ledger, attempt: int, nonce: str) -> None:
    """Checks that the account's last attempt of the run is the ledger's own.

    Raises:
        AccountRefused: it is another folder's.
    """
    own = ledger.programs[attempt - 1].get(KEY) if 0 < attempt <= ledger.attempts else None
    if not isinstance(own, Mapping) or own.get("nonce") != nonce:
        raise AccountRefused(
            f"account {plan.budget.account} has seen a later attempt of this run, or another copy: this folder is old",
            "settle the run's own, newest folder",
        )


def state_account(settlement: Settlement) -> ChargedAccount:
    """Returns a settlement as a certificate states it."""
    facts = settlement.facts
    counted, after = compute_epsilons(settlement.after, facts.cap)
    return ChargedAccount(
        name=facts.name,
        id=facts.id,
        epsilon=facts.epsilon,
        delta=facts.delta,
        unit=facts.unit,
        neighbouring=facts.neighbouring.value,
        run=settlement.run,
        position=settlement.position,
        entries=settlement.entries,
        reserved=to_curve(settlement.reserved),
        counted=to_curve(settlement.counted),
        after=to_curve(settlement.after),
        epsilon_so_far=counted,
        odometer=after,
    )


def find_rest(plan: Plan, before: Ledger | None) -> tuple[Charge, ...]:
    """Returns what an attempt has still to draw, where nothing more is known: what is planned and was never settled. An
    event that hides its iterates and was reserved last is carried, not drawn again."""
    if before is None:
        return plan.events
    done = count_by_event(before.settled)
    done += _count_carried(before)
    return order_charges(count_by_event(plan.events) - done)


Rest = Callable[[Ledger | None], Sequence[Charge]]
"""A function of the ledger as an attempt finds it: returns what the attempt has still to draw."""


def digest_data(plan: Plan, root: Path) -> bytes | None:
    """Returns the digest by which an account knows a recipe's data: what the files of the training source hold,
    whichever columns,
    labels or rows the recipe takes of them, and a table that says whose an image is. Names and the order of files don't
    count; how often a file is there does. Of a database, its address; of records that come with the package, their
    name. None where the plan names no account.

    Not caught: other records behind one address of a database. The same people in another file (a row more, sorted
    otherwise, another format) are other data to an account, and refused.

    Raises:
        DataFault: a file can't be read.
    """
    if plan.budget.account is None:
        return None
    source = plan.data.train
    files = source.features_files(root) if plan.data.unit_column is None else source.all_files(root)
    digest = hashlib.sha256(b"dprecipe data set\0" + (b"files\0" if files else b"origins\0"))
    try:
        origins = {origin.encode() for origin, _ in source.origins}
        for part in sorted(map(_digest_file, dict.fromkeys(files)) if files else origins):
            digest.update(len(part).to_bytes(8, "big") + part)
    except OSError as error:
        raise DataFault(f"data.train: a file can't be read: {error.strerror}", "check its permissions") from None
    return digest.digest()


def _digest_file(path: Path) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()
