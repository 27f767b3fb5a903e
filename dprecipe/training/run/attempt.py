"""One attempt at a run, the same for every mechanism: open the ledger, spend on it, settle, publish.

    with opened(plan, folder, start, provenance, private) as attempt:
        ...  # reserve on `attempt.ledger`, draw from `attempt.secrets`, settle; as often as it takes
        if stopped:
            raise attempt.interrupted("3 of 5 steps")
        attempt.ledger.close("completed")
    return attempt.publish(finished)

| what happens inside the block | what the ledger says afterwards |
|---|---|
| the ledger is closed | the attempt has ended, and why |
| `interrupted` is raised | the attempt was interrupted: what was reserved and not settled counts as spent |
| anything else is raised, or the process dies | nothing of its end: what was reserved and not settled counts as spent |

Guarantees: one process at a time is in the block (the ledger's lock); no attempt begins on a run that has a release, on
another plan, other records or another model, nor on one of the runs of a tuned run by itself; each attempt has its own
root of randomness; nothing is published of an attempt that has not ended.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

from dprecipe import __version__
from dprecipe.contract.facts import NO_MODEL
from dprecipe.contract.plan import Plan
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.records import RecordSource
from dprecipe.faults import Fault, InternalFault, Interrupted
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.events import Charge, run_lengths
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.timeline import phase
from dprecipe.training.publish.held import keep_source
from dprecipe.training.publish.private_report import write_private_report
from dprecipe.training.publish.provenance import Private, RunProvenance, check_identity, check_trial, digest_records
from dprecipe.training.publish.publish import Finished, publish, publish_nothing
from dprecipe.training.run.account_run import Rest, RunInAccount, find_rest, name_attempt, reserve_plan
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import EndedWithoutModel, Run, Start
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.run.stages import LostStage, StageRuns
from dprecipe.training.run.trial_result import locate_result, write_result


@final
class Attempt:
    """An open attempt, which a mechanism spends with; made by `open_attempt`."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        start: Start,
        provenance: RunProvenance,
        commitment: str | None,
        ledger: LedgerWriter,
        reserved: RunInAccount | None = None,
    ) -> None:
        insecure = plan.runtime.insecure
        self.ledger = ledger
        self.secrets = Secrets(None if insecure is None else insecure.seed, ledger.attempt)
        """The secrets of this attempt alone."""
        self.plan = plan if reserved is None else reserved.narrow(plan)
        """The plan that this attempt spends by. If the run is charged to an account, its budget asks the reservation,
        too."""
        self._plan = plan
        self._folder = folder
        self._start = start
        self._provenance = provenance
        self._commitment = commitment
        self._opened = time.monotonic()
        before = () if ledger.before is None else ledger.before.charges
        self._stages = StageRuns(self.plan, folder.stages, ledger, self.secrets, before)

    @property
    def charged(self) -> tuple[Charge, ...]:
        """The charges of earlier attempts, and of paid steps of preprocessing; a trial's paid steps are in the ledger
        of the whole."""
        spent = self._stages.charged
        return run_lengths([*self._plan.stage_charges, *spent]) if self._start.trial else spent

    @property
    def constants(self) -> tuple[StageConstants, ...]:
        """The constants that paid steps of preprocessing have released, in this attempt or an earlier one, or before
        all trials."""
        return self._start.constants if self._start.trial else self._stages.constants

    def run_stages(self, records: RecordSource | None) -> None:
        """Runs the paid steps that no earlier attempt has run; this is the first thing that an attempt does.

        Raises:
            Interrupted: the user stopped it; what was drawn is kept.
            LostStage, RunFailed: see `StageRuns.run`.
        """
        stop_requested = False

        def request_stop() -> None:
            nonlocal stop_requested
            stop_requested = True

        with stopping_on_signals(request_stop, "step of preprocessing"):
            if not self._stages.run(records, lambda: stop_requested):
                done = f"{len(self.constants)} of {len(self._plan.stages)} paid steps of preprocessing"
                raise self.interrupted(done)

    def interrupted(self, done: str) -> Interrupted:
        """Closes the ledger, if it is open, and returns the fault to raise: the attempt was stopped after `done`, and
        how it is continued."""
        if self.ledger.stop_reason is None:
            self.ledger.close("interrupted")
        source = self._plan.source
        words = [
            "dprecipe",
            "run" if self._plan.tuning is None else "tune",
            source.file,
            "--resume",
            "--out",
            str(self._folder.path),
        ]
        words += [word for override in source.overrides for word in ("--set", override)]
        return Interrupted(
            f"stopped after {done}; the ledger is closed",
            f"continue with: {shlex.join(words)} (and the same --data-root)",
        )

    def publish(self, finished: Finished) -> Run:
        """Makes the release of a run whose last attempt this was.

        Raises:
            RunFailed: it has not ended; or see `dprecipe.training.publish.publish.publish`.
        """
        seconds = time.monotonic() - self._opened
        reason = self.ledger.stop_reason
        if reason is None or reason == "interrupted":
            raise InternalFault("a release was to be made of an attempt that goes on")
        folder, plan = self._folder, self._plan
        recorded = (self._start.moment, self._provenance, self._commitment, finished, self.constants)
        if self._start.trial:
            write_result(plan, folder, *recorded)
            result = locate_result(folder)
            return Run(folder.path, result, plan, plan.guarantee.epsilon, reason, finished.score, seconds)
        published = publish(plan, folder, *recorded)
        folder.write_timing()
        if plan.release.report:
            write_private_report(folder, plan, plan.publishes_scores and not finished.test_from_python)
        return Run(
            folder=folder.path,
            release=folder.release,
            plan=plan,
            epsilon=published.epsilon,
            stop_reason=reason,
            score=finished.score,
            seconds=seconds,
            remarks=finished.remarks,
            verified=published.verified,
        )

    def publish_nothing(self, why: str) -> Run:
        """Closes the ledger of a run that ends without a model, and makes its release: see `dprecipe.release.no_model`.

        Raises:
            RunFailed: see `dprecipe.training.publish.publish.publish_nothing`.
        """
        folder, plan = self._folder, self._plan
        self.ledger.close(NO_MODEL)
        published = publish_nothing(plan, folder, self._start.moment, self._provenance, self._commitment)
        return Run(
            folder=folder.path,
            release=folder.release,
            plan=plan,
            epsilon=published.epsilon,
            stop_reason=NO_MODEL,
            score=None,
            seconds=time.monotonic() - self._opened,
            remarks=(f"nothing was learned: {why}",),
            verified=published.verified,
        )


@contextmanager
def open_attempt(
    plan: Plan,
    folder: RunFolder,
    start: Start,
    provenance: RunProvenance,
    private: Private,
    check: Callable[[Ledger | None], None] = lambda before: None,
    records: RecordSource | None = None,
    rest: Rest | None = None,
) -> Iterator[Attempt]:
    """Opens the next attempt of a run; its ledger is released at the end of the block, however that comes.

    `private`: what the attempt commits to, by name. `check` is shown the ledger as it was, under its lock and before
    anything is written: what it raises leaves the run as it is. `records`: training records, for paid steps of
    preprocessing; where the plan has any, they are run before the block, and `Attempt.constants` are their results.
    `rest`: what is still to be drawn, where the mechanism knows more of it than the ledger: for the plan's account.

    Raises:
        Interrupted, LostStage: see `Attempt.run_stages`.
        EndedWithoutModel: the result of a paid step was lost in a crash, and the budget does not hold the step again.
        UsageFault: the run is complete, or was started with other records or another model.
        RunFailed: another process spends on it, the ledger is damaged or of another plan, or the disk refuses.
        AccountRefused, AccountUnavailable: the plan's account; nothing more was drawn: see `account_run.reserve_plan`.
    """
    identity = provenance.identity(folder, private)
    insecure = plan.runtime.insecure

    def check_all(before: Ledger | None) -> None:
        check_identity(identity, before)
        check_trial(start.trial, before)
        check(before)
        named.update(name_attempt(plan, before, start.trial))
        text.update(named)  # on disk with the attempt's first line, before the account hears of it

    named: dict[str, Any] = {}
    text: dict[str, Any] = {
        "version": __version__,
        "insecure_seed": None if insecure is None else insecure.seed,
        **identity,
    }
    text |= {"trial": True} if start.trial else {}
    text |= {"trainer": "python"} if start.trainer == "python" else {}
    ledger = folder.open_ledger(plan, text, check_all)
    reserved: RunInAccount | None = None
    try:
        if named:
            ledger.limit = lambda charged: False  # until the reservation is on the account's disk
            keep_source(plan, folder)
            still = (rest or partial(find_rest, plan))(ledger.before)
            reserved = reserve_plan(plan, ledger, named, start.data or digest_records(records, private), still)
            ledger.limit = reserved.allows
        attempt = Attempt(plan, folder, start, provenance, identity.get("commitment"), ledger, reserved)
        if plan.stages and not start.trial:
            with phase("preprocess"):
                try:
                    attempt.run_stages(records)
                except LostStage as lost:
                    if lost.kept and not start.accept_lost_steps:
                        raise
                    raise EndedWithoutModel(attempt.publish_nothing(lost.message)) from None
        with phase("loop"):
            yield attempt
    except Exception as error:
        # Whatever ended it: its owner sees how far it got. Of one run of several the whole has a report.
        if plan.release.report and not start.trial:
            folder.write_timing()
            why = error.message if isinstance(error, Fault) else type(error).__name__
            why = "; ".join(error.run.remarks) if isinstance(error, EndedWithoutModel) else why
            write_private_report(folder, plan, plan.publishes_scores and provenance.data == "recipe", why)
        raise
    finally:
        if reserved is not None:
            reserved.void_unless_drawn(ledger)
        ledger.abandon()
