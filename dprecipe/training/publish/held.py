"""A release that waits for its account: what a run made stays in `private/held` until the run is settled there.

    private/account.json   the recipe as it was read, so that the run can be settled from its folder alone
    private/held/          the files of the release that need the model, what the run recorded, public scores

The order is settlement, then release. Where the account can't be reached, what the run made is kept, and
`complete_run` goes on from there: it draws nothing, and needs neither the data nor the trained program.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dprecipe import durable
from dprecipe.account.faults import AccountInvalid, AccountUnavailable
from dprecipe.contract.plan import Plan, RecipeSource
from dprecipe.faults import CertificateInvalid, Fault, RunFailed, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.planning.trials import planner_of
from dprecipe.policy.apply import enforce_on_run
from dprecipe.privacy.ledger import Ledger, lock_ledger
from dprecipe.release import certificate
from dprecipe.release import folder as release_folder
from dprecipe.release.charged_account import ChargedAccount
from dprecipe.release.facts import RunFacts, SpentBudget
from dprecipe.release.rebuild import read_run
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import ContentError, parse_object, read_bytes, to_bytes, validate_document
from dprecipe.release.verify import verify
from dprecipe.timeline import phase
from dprecipe.training.run import account_run
from dprecipe.training.run.folder import RunFolder

SCHEMA = "dprecipe.held/v1"
DRAFT, WAITING = "draft.json", "held.json"
INSECURE = "randomness.insecure_seed"


class ReleaseHeldBack(RunFailed):
    """The run has ended, and its release waits for the account."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The outcome for a run that was settled from its folder."""

    folder: RunFolder
    account: ChargedAccount | None
    """The account's statement; None where the reservation is void: nothing was drawn."""
    epsilon: float | None
    """The claim of the release; None where there is none yet."""


def keep_source(plan: Plan, folder: RunFolder) -> None:
    """Puts the recipe's texts into `private/account.json`, with the place that relative paths start from.

    Raises:
        RunFailed: the disk refuses; nothing was spent.
    """
    source = plan.source
    content = {
        "schema": SCHEMA,
        "file": str(Path(source.file).absolute()),
        "text": source.text,
        "overrides": source.overrides,
        "parents": source.parents,
        "attachments": source.attachments,
    }
    with durable.writing(_source_of(folder), "make room on the disk"):
        durable.replace_file(_source_of(folder), json.dumps(content).encode())


def _source_of(folder: RunFolder) -> Path:
    return folder.private / "account.json"


def _held_of(folder: RunFolder) -> Path:
    return folder.private / "held"


def settle_or_hold(
    plan: Plan,
    folder: RunFolder,
    ledger: Ledger,
    facts: RunFacts,
    history: Sequence[Mapping[str, float]],
    write: Callable[[Path], None],
    release: str,
) -> ChargedAccount | None:
    """Settles the run in its account and returns the account's statement; None where the plan names no account.
    `release`: the digest of what `write` puts into a release.

    Raises:
        ReleaseHeldBack: it can't be reached, is gone or is damaged; what `write` puts into a release is kept.
        RunFailed: the disk refuses; AccountRefused: the account knows the run otherwise.
    """
    try:
        return account_run.settle_run(plan, ledger, release)
    except (AccountUnavailable, AccountInvalid, UsageFault) as unavailable:  # UsageFault: it is not where it was
        if not os.path.lexists(_held_of(folder)):
            _hold(plan, folder, ledger, facts, history, write)
        raise ReleaseHeldBack(
            f"the run has ended; its release is held back until its account is settled: {unavailable.message}",
            f"when dprecipe account test {shlex.quote(plan.budget.account or '')} succeeds: dprecipe account settle "
            f"{shlex.quote(str(folder.path))} (nothing more is drawn)",
        ) from None


def _hold(
    plan: Plan,
    folder: RunFolder,
    ledger: Ledger,
    facts: RunFacts,
    history: Sequence[Mapping[str, float]],
    write: Callable[[Path], None],
) -> None:
    with importing_libraries():
        from dprecipe.training.publish.draft import draft_numbers

    numbers = draft_numbers(plan)
    recorded = certificate.to_json(certificate.assemble_predicate(plan, SpentBudget.of(ledger), facts, numbers))
    chosen = None if plan.tuning is None or plan.tuning.chosen is None else dict(plan.tuning.chosen)
    with release_folder.open_draft(_held_of(folder)) as draft:
        write(draft)
        (draft / DRAFT).write_bytes(to_bytes(recorded))
        (draft / WAITING).write_bytes(to_bytes({"schema": SCHEMA, "chosen": chosen, "history": [*history]}))
    for entry in _held_of(folder).iterdir():
        entry.chmod(durable.FILE_MODE)
    _held_of(folder).chmod(durable.FOLDER_MODE)


@phase("verify")
def check_verified(draft: Path, folder: RunFolder, ledger: Ledger) -> None:
    """Checks that the release in `draft` verifies, except for its fixed randomness where an attempt's was fixed.

    Raises:
        RunFailed: it does not; it is moved to `private/`, for inspection.
    """
    try:
        verify(draft, max_seconds=None, max_memory=None)  # it was made here
    except CertificateInvalid as invalid:
        insecure = ledger.insecure_seed is not None
        failures = [line for line in invalid.failures if not insecure or not line.startswith(INSECURE)]
        if not failures:
            return
        rejected = folder.private / "unverified-release"
        shutil.rmtree(rejected, ignore_errors=True)
        os.rename(draft, rejected)
        raise RunFailed(
            f"the release does not verify, so there is none: {'; '.join(failures)}",
            f"don't publish it (it is in {rejected}); fix what is named, then continue with --resume, which spends "
            "nothing more; if it stays, please report this",
        ) from None


def discard(folder: RunFolder) -> None:
    """Deletes what was held back: the release is there."""
    shutil.rmtree(_held_of(folder), ignore_errors=True)


def complete_run(path: Path) -> Completed:
    """Settles a run in its account from its folder, and writes the release that was held back. A run that has drawn
    nothing gives its reservation back. A repeated call goes on where the last one stopped.

    Raises:
        UsageFault: no run that is charged to an account; one that goes on, or that has its release.
        RunFailed: a file is damaged, the disk refuses, or the release does not verify.
        AccountRefused: the account knows the run otherwise.
        AccountUnavailable: it still can't be reached; nothing has changed.
        RecipeError, PlanRefused: a policy above the recipe is wrong, or does not allow the release.
    """
    folder, source = RunFolder(path), _read_source(RunFolder(path))
    if os.path.lexists(folder.release):
        discard(folder)  # a kill may have come before this
        raise UsageFault(f"{path}: this run is settled, and has its release", "verify it: dprecipe verify")
    with lock_ledger(folder.ledger) as ledger:
        waiting = _read_waiting(folder)
        planner, chosen = planner_of(source), None if waiting is None else waiting["chosen"]
        plan = planner.whole if chosen is None else planner.plan_chosen(chosen)
        if ledger.plan_digest != plan.digest:
            raise RunFailed(
                f"{path}: the ledger belongs to another plan", "put the run's own files back, or use its version"
            )
        if not ledger.charges:
            account_run.void_run(plan, ledger)
            return Completed(folder, None, None)
        if ledger.stop_reason in (None, "interrupted"):
            raise UsageFault(
                f"{path}: this run has not ended; until it has, the account counts all that it reserved",
                "continue it with --resume, which settles it; or leave it: what it reserved stays counted",
            )
        if waiting is None:
            return Completed(folder, account_run.settle_run(plan, ledger, None), None)
        facts = _read_facts(folder)
        completed = _release(_hold_again(plan, folder, facts), folder, ledger, facts, waiting["history"])
    if plan.tuning is not None:
        _remove_losers(plan, folder)  # which locks the ledger itself
    return completed


def _hold_again(plan: Plan, folder: RunFolder, facts: RunFacts) -> Plan:
    """Returns the plan, with the policies above its recipe today: a release that waited is one of today. Where the data
    lay was looked at when the run began.

    Raises:
        RecipeError, PlanRefused: see `enforce_on_run`.
    """
    from_python = ["model"] if facts.model == "python" else []
    from_python += ["data.train", "data.test", "data.public"] if facts.data == "python" else []
    from_python += ["trainer"] if facts.trainer == "python" else []
    return enforce_on_run(plan, None, from_python, folder.policies)


def _release(
    plan: Plan, folder: RunFolder, ledger: Ledger, facts: RunFacts, history: Sequence[Mapping[str, float]]
) -> Completed:
    kept = _held_of(folder)

    def write(draft: Path) -> None:
        for entry in sorted(kept.iterdir()):
            if entry.name not in (DRAFT, WAITING):
                shutil.copyfile(entry, draft / entry.name)

    told: list[ChargedAccount | None] = []

    def settle(recorded: RunFacts, release: str) -> RunFacts:
        told.append(account_run.settle_run(plan, ledger, release))
        return replace(recorded, account=told[-1])

    def check(draft: Path) -> None:
        check_verified(draft, folder, ledger)

    epsilon = release_folder.publish_draft(folder.release, plan, ledger, facts, history, write, check, settle)
    discard(folder)
    return Completed(folder, told[-1], epsilon)


def _remove_losers(plan: Plan, folder: RunFolder) -> None:
    with importing_libraries():
        from dprecipe.training.tuning.losers import load_recipient, locate_trials, remove_losers
        from dprecipe.training.tuning.trials import Trials

    if locate_trials(folder).exists():
        remove_losers(plan, folder, Trials(plan.source, locate_trials(folder), Path()), load_recipient(plan))


def _read_source(folder: RunFolder) -> RecipeSource:
    path = _source_of(folder)
    if not os.path.lexists(path):
        raise UsageFault(f"{folder.path}: no run that is charged to an account", "give the folder of such a run")
    try:
        content = json.loads(durable.read_bytes(path))
        if content["schema"] != SCHEMA:
            raise ValueError(content["schema"])
        parents, attachments = ([(str(a), str(b)) for a, b in content[key]] for key in ("parents", "attachments"))
        overrides = tuple(str(each) for each in content["overrides"])
        return RecipeSource(str(content["text"]), str(content["file"]), overrides, tuple(parents), tuple(attachments))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise RunFailed(f"{path}: can't be read", "put the run's own file back, or continue with --resume") from None


def _read_waiting(folder: RunFolder) -> dict[str, Any] | None:
    """Reads what is held back beside the files; None where nothing is."""
    if not os.path.lexists(_held_of(folder)):
        return None
    try:
        content = json.loads(durable.read_bytes(_held_of(folder) / WAITING))
        if content.keys() != {"schema", "chosen", "history"} or content["schema"] != SCHEMA:
            raise ValueError("not of a held release")
    except (OSError, ValueError, AttributeError, RecursionError):
        raise _damaged(folder) from None
    return dict(content)


def _read_facts(folder: RunFolder) -> RunFacts:
    try:
        path = _held_of(folder) / DRAFT
        return read_run(validate_document(Predicate, parse_object(read_bytes(path), DRAFT), DRAFT))
    except (OSError, ContentError, Fault):
        raise _damaged(folder) from None


def _damaged(folder: RunFolder) -> RunFailed:
    return RunFailed(
        f"{_held_of(folder)}: what was held back is not whole",
        "delete this folder, and continue with --resume, which makes the release again and draws nothing more",
    )
