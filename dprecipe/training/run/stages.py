"""Paid steps of preprocessing, each run once: reserved, drawn, kept, settled. A later attempt reads what was kept.

    private/stages/<number of the step>.json

| when a run is killed | the step's result | what it costs |
|---|---|---|
| before the reservation is on disk | drawn by the next attempt | nothing |
| after it, before the file is | never seen; drawn again, where the budget holds a further charge | twice |
| the same, where it holds no other | never seen: the run ends without a model (`dprecipe.release.no_model`) | once |
| after the file is, before the settlement | read by the next attempt | once: a reservation counts as spent |

A file that is gone although its step was charged is another matter. Before the first step of training the step is drawn
again, as after a kill; from then on the weights depend on what it held, and the run is refused.

Formal guarantee: each file holds what was drawn under a reservation of its own, on record before the draw; so the
ledger accounts for every result that was ever drawn, used or not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.contract.stages import PaidStage
from dprecipe.data.paid.bounds import find_misfit
from dprecipe.data.paid.constants import StageConstants, dump_constants, parse_constants
from dprecipe.data.paid.stage import release_stage
from dprecipe.data.records import Records, RecordSource
from dprecipe.faults import BudgetSpent, InternalFault, RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.events import Charge, count_by_event, run_lengths
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.progress import report_progress
from dprecipe.release.no_model import holds_again

SCHEMA = "dprecipe.stage/v1"


class LostStage(BudgetSpent):
    """The result of a paid step is not there, and the budget does not hold the step again."""

    def __init__(self, message: str, remedy: str, kept: bool) -> None:
        super().__init__(message, remedy)
        self.kept = kept
        """The result was on disk once, so that there may be a copy."""


class StageRuns:
    """The paid steps of one attempt, on its open ledger."""

    def __init__(
        self, plan: Plan, folder: Path, ledger: LedgerWriter, secrets: Secrets, charged: Sequence[Charge]
    ) -> None:
        """`folder`: where results are kept. `charged`: what earlier attempts have spent."""
        self.charged = run_lengths(charged)
        """The charges so far."""
        self.constants: tuple[StageConstants, ...] = ()
        """The constants that the steps have released so far, in order."""
        self._plan = plan
        self._folder = folder
        self._ledger = ledger
        self._secrets = secrets

    def run(self, records: RecordSource | None, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Runs all steps, or reads what earlier attempts have kept; returns True if it came to the end and wasn't
        stopped.

        `records`: training records, on which all paid steps are pending. `stopped` is asked before each draw.

        Raises:
            LostStage: a result was lost, and the budget does not hold its step a second time.
            RunFailed: the disk refuses, or a file is not of this run.
        """
        for stage in self._plan.stages:
            kept = self._read(stage)
            if kept is None:
                if stopped():
                    return False
                if not isinstance(records, Records):
                    raise InternalFault("a paid step has no records to read")
                again = self._check_lost(stage)
                self._check_affordable(stage)
                report_progress(f"{stage.kind} reads the private records, with its noise{again}")
                kept = self._release(stage, records.with_all_constants(self.constants))
            self.constants = (*self.constants, kept)
        return True

    def _check_lost(self, stage: PaidStage) -> str:
        """Says what became of a step without a file; empty where it was never charged.

        Raises:
            RunFailed: training has begun.
        """
        charged = count_by_event(() if self._ledger.before is None else self._ledger.before.charges)
        if set(charged) - set(count_by_event(self._plan.stage_charges)):
            raise RunFailed(
                f"{self._path(stage)} is gone, and training has begun on records that were prepared with it; nothing "
                "more was spent",
                "put the file back, if there is a copy, and continue with --resume; or start a new run in another "
                "folder, which spends a second budget",
            )
        done = [charge for before in self._plan.stages[: len(self.constants)] for charge in before.charges]
        if count_by_event([*done, *stage.charges]) <= charged:
            return "; it was charged before, its result is not there, and it is charged again"
        return ""

    def _check_affordable(self, stage: PaidStage) -> None:
        """Checks that the budget holds the step, again if it was charged before.

        Raises:
            LostStage: it does not.
        """
        if not holds_again(self._plan, self.charged, stage):
            before = self._ledger.before
            kept = before is not None and count_by_event(stage.charges) <= count_by_event(before.settled)
            end = "" if self._plan.tuning is not None else "; or end the run without a model: --accept-lost-steps"
            raise LostStage(
                f"the result of {stage.path} was lost after it was charged, and the budget does not hold it once more",
                f"put private/stages back, if there is a copy, and write --resume{end} (a new run on the same records "
                "spends a second budget)",
                kept,
            )

    def _release(self, stage: PaidStage, records: Records) -> StageConstants:
        """Reserves, draws, keeps and settles."""
        self._make_folder()  # before anything is spent
        self._ledger.reserve_all(stage.charges)
        self.charged = run_lengths([*self.charged, *stage.charges])
        stream = self._secrets.stream("stages", stage.step)
        constants = release_stage(self._plan.data, records, stage.charges, self.constants, stream)
        self._write(stage, constants)
        self._ledger.settle_all(stage.charges)
        return constants

    def _path(self, stage: PaidStage) -> Path:
        return _path_of(self._folder, stage)

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=durable.FOLDER_MODE, exist_ok=True)
            durable.sync_folder(self._folder.parent)
        except OSError as error:
            raise RunFailed(
                f"{self._folder}: can't make this folder: {error.strerror}; nothing more was spent",
                "make room on the disk, then continue with --resume",
            ) from None

    def _write(self, stage: PaidStage, constants: StageConstants) -> None:
        head = self._ledger.head
        content = {"schema": SCHEMA, "step": stage.step, "ledger": head, "constants": dump_constants(constants)}
        path = self._path(stage)
        try:
            durable.replace_file(path, json.dumps(content).encode())
        except OSError as error:
            raise RunFailed(
                f"{path}: can't keep what {stage.kind} released: {error.strerror}",
                "make room on the disk, then continue with --resume: the step is charged again, if the budget holds it",
            ) from None

    def _read(self, stage: PaidStage) -> StageConstants | None:
        """Reads the result that an earlier attempt has kept; None where it kept nothing.

        Raises:
            RunFailed: the file is damaged, or was not drawn under a reservation of this ledger.
        """
        path, before = self._path(stage), self._ledger.before
        if not os.path.lexists(path):
            return None
        try:
            content = json.loads(durable.read_bytes(path))
            if content.keys() != {"schema", "step", "ledger", "constants"} or content["schema"] != SCHEMA:
                raise ValueError("not a result of a paid step")
            if content["step"] != stage.step:
                raise ValueError("the result of another step")
            constants = parse_constants(content["constants"])
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise RunFailed(
                f"{path}: can't be read: {str(error).splitlines()[0]}",
                "put the run's own file back; without it the step is drawn again, and charged again",
            ) from None
        if before is None or content["ledger"] not in before.heads:
            raise RunFailed(
                f"{path}: not of this ledger: what it says would be left out of the certificate",
                "put the run's own ledger back, or start again in another folder",
            )
        misfit = find_misfit(self._plan.data, stage.step, stage.charges, constants, self.constants)
        if misfit is not None:
            raise RunFailed(f"{path}: not what this step releases: {misfit}", "start again in another folder")
        return constants


def list_missing(plan: Plan, folder: Path) -> tuple[PaidStage, ...]:
    """Lists the paid steps whose results are not in `folder`."""
    return tuple(stage for stage in plan.stages if not os.path.lexists(_path_of(folder, stage)))


def _path_of(folder: Path, stage: PaidStage) -> Path:
    return folder / f"{stage.step}.json"
