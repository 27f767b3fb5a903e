"""The result of one of several runs, which stays in `private/` until the best is chosen.

It is no release: its certificate is a draft whose numbers are placeholders, so that it can't be taken for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.data.paid.constants import StageConstants
from dprecipe.faults import RunFailed
from dprecipe.privacy.ledger import lock_ledger
from dprecipe.release import certificate, rebuild
from dprecipe.release import folder as release_folder
from dprecipe.release.facts import RunFacts, SpentBudget
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import ContentError, parse_object, read_bytes, to_bytes, validate_document
from dprecipe.training.publish.draft import draft_numbers
from dprecipe.training.publish.provenance import RunProvenance
from dprecipe.training.publish.publish import Finished, describe_release, run_facts, write_weights
from dprecipe.training.run.folder import RunFolder

DRAFT = "draft.json"


def locate_result(folder: RunFolder) -> Path:
    """Returns the folder of a run's result."""
    return folder.path / "result"


def write_result(
    plan: Plan,
    folder: RunFolder,
    started: datetime,
    provenance: RunProvenance,
    commitment: str | None,
    finished: Finished,
    constants: Sequence[StageConstants] = (),
) -> None:
    """Writes the weights, their description and what the run recorded about itself, whole or not at all.

    Raises:
        RunFailed: the disk refuses, or the run has no score that may be seen.
    """
    description = describe_release(plan, provenance, finished, constants)
    with lock_ledger(folder.ledger) as ledger:
        facts = run_facts(plan, ledger, started, provenance, commitment, finished, constants)
        predicate = certificate.assemble_predicate(plan, SpentBudget.of(ledger), facts, draft_numbers(plan))
        with release_folder.open_draft(locate_result(folder)) as draft:
            write_weights(draft, plan, finished, description)
            (draft / DRAFT).write_bytes(to_bytes(certificate.to_json(predicate)))


def read_result(result: Path) -> RunFacts:
    """Reads the facts that a run recorded about itself.

    Raises:
        RunFailed: it is not there, or damaged.
    """
    try:
        stated = validate_document(Predicate, parse_object(read_bytes(result / DRAFT), DRAFT), DRAFT)
    except (OSError, ContentError):
        raise RunFailed(
            f"{result}: what one of the runs made is not here, or damaged",
            "put the run's own files back, or start again in another folder",
        ) from None
    return rebuild.read_run(stated)
