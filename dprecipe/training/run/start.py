"""`dprecipe run`: carry out a plan, stop within the budget, publish what the certificate covers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import Role
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.progress import report_progress
from dprecipe.release.folder import load_signing_key
from dprecipe.screen import write_note
from dprecipe.timeline import measure_run, phase
from dprecipe.training.audit.kept import find_audit, keep_audit
from dprecipe.training.audit.run import audit_before
from dprecipe.training.loggers.run import check_loggers
from dprecipe.training.processes.cluster import LOCAL, check_address, open_cluster
from dprecipe.training.processes.launch import describe_wait, is_of_launch
from dprecipe.training.program.file_digests import holding_still
from dprecipe.training.program.gather import gather_records
from dprecipe.training.run.account_run import check_account, digest_data
from dprecipe.training.run.folder import RunFolder, hold_to_policies
from dprecipe.training.run.runner import (
    EndedWithoutModel,
    PythonInputs,
    Rehearsal,
    Run,
    Start,
    check_has_teachers,
    runner_of,
)

if TYPE_CHECKING:
    from torch import nn


@measure_run()
def run(
    plan: Plan,
    out: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    train: object | None = None,
    public: object | None = None,
    test: object | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    accept_lost_steps: bool = False,
    teachers: Sequence[str | Path] = (),
    cluster: str | None = None,
) -> Run:
    """Train by `plan` and write the run folder.

    `model`, `train`, `public` and `test` replace what the recipe names; `dprecipe.data.python_records` says what the
    last three may be. They, and all files, are checked before torch is imported. If several processes run together
    (`torchrun`), only the first of them writes; a run that `torchrun` starts again continues (`training.launch`).
    `accept_lost_steps`: release the model even if interruptions or missing files cost it more than half of the planned
    steps. `teachers`: folders of `dprecipe teachers`, which together hold the votes of all. `cluster`: an address as of
    `training.cluster`, where teachers are trained.

    Guarantees: every draw of noise is in the ledger before its result is used; the ledger never holds more than the
    budget; `release/` appears whole, at the end, verified, or not at all.

    Raises:
        ClaimRefuted: the audit that the plan asks for accuses the program; nothing was read or spent.
        UsageFault: the folder exists (or, with `resume`, does not); the plan is that of a tuned run; shards of teachers
            are missing, or of another run; or no cluster is reachable.
        AccountRefused, AccountUnavailable: the account of the plan has no room, or can't be reached; nothing was drawn.
        ReleaseHeldBack: the run has ended, and the account can't be reached: see `dprecipe.training.publish.held`.
        BudgetSpent: so many steps were lost, or a kept result of a paid step, and that was not accepted.
        RecipeError, PlanRefused: a policy above the recipe is wrong, or does not allow the run; nothing was spent.
        DataFault, PlanRefused, RunFailed: see `Runner.prepare`; nothing was spent, or the ledger says what.
        Interrupted: stopped by the user; `resume` continues.
    """
    if plan.tuning is not None:
        raise UsageFault("this recipe trains several times", "start it with: dprecipe tune")
    given = {"model": model, "data.train": train, "data.public": public, "data.test": test}
    path = Path(out) if out is not None else RunFolder.default(plan)
    resume = resume or is_of_launch(path)
    plan = hold_to_policies(plan, path, resume, data_root, [key for key, each in given.items() if each is not None])
    load_signing_key(plan)  # one that can't be used should be known before anything is spent
    root = find_data_root(data_root, plan.source.file)
    moment = datetime.now(UTC)
    if waits := describe_wait():
        write_note(waits)
    several, follows = "WORLD_SIZE" in os.environ, int(os.environ.get("RANK", "0")) > 0
    if several and "processes" not in mechanism_of(plan.mechanism).runtime_options:
        raise UsageFault(f"{plan.mechanism} runs in one process", "start it without torchrun")
    folder = None if several and follows else RunFolder.open(path, plan) if resume else RunFolder.absent(path)
    PythonInputs(model, train, public, test).check_used(plan)
    if teachers or cluster is not None:
        check_has_teachers(plan)
    if teachers and cluster is not None:
        raise UsageFault("those of --teachers have voted, so --ray has nothing to train", "leave one of them out")
    if cluster is not None:
        check_address(cluster)
    check_loggers(plan)
    if folder is not None:
        check_account(plan, is_new=not resume)
    audit = None
    if folder is not None and (not resume or find_audit(plan, folder) is None):
        audit = audit_before(plan, PythonInputs(model, train))
    objects: dict[Role, object | None] = {"train": train, "public": public, "test": test}
    with ExitStack() as stack:
        with holding_still(plan.data.train if train is None else None, root):
            with phase("read"):
                gathered = gather_records(plan, root, objects)
            data = digest_data(plan, root) if folder is not None and train is None else None
            start = Start(moment, accept_lost_steps, data=data)
            with phase("import"):
                runner = runner_of(plan)  # imports torch: what is wrong with the data has been told
            machines = None
            if cluster is not None:
                report_progress("starting Ray" if cluster == LOCAL else "joining the cluster")
                machines = stack.enter_context(open_cluster(cluster, None, _count_gpus(plan)))
            with phase("prepare"):
                folders = tuple(map(Path, teachers))
                inputs = PythonInputs(model, train, public, test, gathered, folders, machines)
                with _explaining_memory(before=True):
                    program = runner.prepare(plan, root, inputs)
        if folder is None:
            return runner.follow(plan, program)
        if not resume:
            RunFolder.create(path, plan)
        if audit is not None:
            keep_audit(folder, audit)
        gathered.write(folder.private)
        try:
            with _explaining_memory(before=False):
                return runner.attempt(plan, folder, program, start)
        except EndedWithoutModel as ended:
            return ended.run


def rehearse(plan: Plan) -> Rehearsal:
    """Try a little of a run on synthetic records of the declared shape: reads no data, spends nothing, leaves nothing.

    Raises:
        PlanRefused, RunFailed: as `run` would, before any data is at stake.
    """
    return runner_of(plan).rehearse(plan)


def _explaining_memory(*, before: bool) -> AbstractContextManager[None]:
    """See `training.memory_meter`. `before`: anything is spent."""
    with importing_libraries():
        from dprecipe.training.checks.memory_meter import SMALLER_PARTS, explain_out_of_memory

    if before:
        remedy = "take a smaller model, a larger device, or runtime.device: cpu"
        return explain_out_of_memory("before the first step, and nothing was spent", remedy)
    return explain_out_of_memory("in the run", SMALLER_PARTS)


def _count_gpus(plan: Plan) -> int:
    """GPUs of a task on a cluster, which trains on a device like this machine's."""
    with importing_libraries():
        from dprecipe.training.program.program import device_of

    return int(device_of(plan.runtime.device).type == "cuda")
