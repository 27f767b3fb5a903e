"""The audit of a run, kept in its folder until the release: `private/audit.json`."""

from __future__ import annotations

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.privacy.audit.program import make_audit
from dprecipe.privacy.audit.results import Audit
from dprecipe.training.run.folder import RunFolder

NAME = "audit.json"


def keep_audit(folder: RunFolder, audit: Audit) -> None:
    """Writes the audit into the run's folder, in place of an earlier one.

    Raises:
        RunFailed: the disk refuses.
    """
    path = folder.private / NAME
    with durable.writing(path, "free space on the disk"):
        durable.replace_file(path, audit.model_dump_json(indent=1).encode())


def read_audit(folder: RunFolder) -> Audit | None:
    """Reads what was kept; None where nothing was, or nothing that can be read: the audit is then made again."""
    try:
        return Audit.model_validate_json(durable.read_bytes(folder.private / NAME))
    except (OSError, ValueError):
        return None


def find_audit(plan: Plan, folder: RunFolder) -> Audit | None:
    """Returns the audit that was made before the run's first private record, if it is of the program that runs now;
    None where there is none: a resumed run is audited again."""
    audit = read_audit(folder)
    return audit if audit is not None and audit.program == make_audit(plan.digest).program else None


def join_audits(before: Audit | None, at_end: Audit | None) -> Audit | None:
    """Joins what was shown before the first private record with what the run itself has shown at its end."""
    if before is None or at_end is None:
        return before or at_end
    return before.model_copy(
        update={
            "tests": (*before.tests, *at_end.tests),
            "bounds": (*before.bounds, *at_end.bounds),
            "specification": at_end.specification,
        }
    )
