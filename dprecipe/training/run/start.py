"""`dprecipe run`: carry out a plan, stop within the budget, publish what the certificate covers."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import Role
from dprecipe.faults import InternalFault
from dprecipe.libraries import importing_libraries
from dprecipe.privacy.audit.results import Audit
from dprecipe.progress import report_progress
from dprecipe.screen import write_note
from dprecipe.timeline import measure_run, phase
from dprecipe.training.audit.kept import find_audit, keep_audit
from dprecipe.training.audit.run import audit_before
from dprecipe.training.processes.cluster import LOCAL, open_cluster
from dprecipe.training.processes.launch import describe_wait
from dprecipe.training.program.file_digests import holding_still
from dprecipe.training.program.gather import Gathered, gather_records
from dprecipe.training.run.account_run import check_account, digest_data
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.request import RunRequest
from dprecipe.training.run.runner import (
    EndedWithoutModel,
    PythonInputs,
    Rehearsal,
    Run,
    Runner,
    Start,
    runner_of,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to begin: its program was tried, its records are read, and nothing is spent."""

    request: RunRequest
    runner: Runner[object]
    program: object
    """Program of the mechanism, as its runner has prepared it."""
    start: Start
    audit: Audit | None
    gathered: Gathered

    def open_folder(self) -> RunFolder:
        """Returns the run's folder, which is made if this is no resumed run.

        Raises:
            UsageFault: another run has made it since.
            RunFailed: the disk refuses.
        """
        path, plan = self.request.path, self.request.plan
        folder = RunFolder.open(path, plan) if self.request.resume else RunFolder.create(path, plan)
        if self.audit is not None:
            keep_audit(folder, self.audit)
        self.gathered.write(folder.private)
        return folder


@measure_run()
def run(request: RunRequest) -> Run:
    """Carries out a request; returns the finished run.

    If several processes run together, only the leader writes; a run that `torchrun` starts again continues
    (`training.processes.launch`).

    Guarantees: every draw of noise is in the ledger before its result is used; the ledger never holds more than the
    budget; `release/` appears whole, at the end, verified, or not at all.

    Raises:
        ReleaseHeldBack: the run has ended, and the account can't be reached: see `dprecipe.training.publish.held`.
        BudgetSpent: most of the paid steps were lost, or a kept result of a paid step, and that was not accepted.
        Interrupted: stopped by the user; `resume` continues.
        ClaimRefuted, UsageFault, AccountRefused, AccountUnavailable, DataFault, PlanRefused, RunFailed: see `prepare`;
            nothing was spent, or the ledger says what.
    """
    plan = request.plan
    with ExitStack() as stack:
        prepared = prepare(request, stack)
        if request.place == "follower":
            return prepared.runner.follow(plan, prepared.program)
        folder = prepared.open_folder()
        try:
            with explain_memory(before=False):
                return prepared.runner.attempt(plan, folder, prepared.program, prepared.start)
        except EndedWithoutModel as ended:
            return ended.run


def prepare(request: RunRequest, stack: ExitStack) -> Prepared:
    """Checks all files, and what came from Python, before torch is imported; then reads the records and tries the
    program. Spends nothing. A cluster is left with `stack`.

    Raises:
        ClaimRefuted: the audit that the plan asks for accuses the program; nothing was read.
        UsageFault: the folder exists (or, with `resume`, does not); shards of teachers are missing, or of another run;
            or no cluster is reachable.
        AccountRefused, AccountUnavailable: the account of the plan does not cover it, or can't be reached.
        DataFault, PlanRefused, RunFailed: see `Runner.prepare`.
    """
    plan, options, path, resume, root = request.plan, request.options, request.path, request.resume, request.root
    moment = datetime.now(UTC)
    if waits := describe_wait():
        write_note(waits)
    folder = None
    if request.place != "follower":
        folder = RunFolder.open(path, plan) if resume else RunFolder.absent(path)
    if request.place == "complete":
        raise InternalFault("a run that was complete is to go on, and no policy was asked about it")
    if folder is not None:
        check_account(plan, is_new=not resume)
    audit = None
    if folder is not None and (not resume or find_audit(plan, folder) is None):
        audit = audit_before(plan, PythonInputs(options.model, options.train))
    objects: dict[Role, object | None] = {"train": options.train, "public": options.public, "test": options.test}
    with holding_still(plan.data.train if options.train is None else None, root):
        with phase("read"):
            gathered = gather_records(plan, root, objects)
        data = digest_data(plan, root) if folder is not None and options.train is None else None
        start = Start(moment, options.accept_lost_steps, data=data, trainer=options.trainer)
        with phase("import"):
            runner = runner_of(plan)  # imports torch, so faults of the data come first
        machines = None
        if options.cluster is not None:
            report_progress("starting Ray" if options.cluster == LOCAL else "joining the cluster")
            machines = stack.enter_context(open_cluster(options.cluster, None, _count_gpus(plan)))
        with phase("prepare"):
            teachers = tuple(map(Path, options.teachers))
            inputs = replace(request.inputs, gathered=gathered, teachers=teachers, cluster=machines)
            with explain_memory(before=True):
                program = runner.prepare(plan, root, inputs)
    return Prepared(request, runner, program, start, audit, gathered)


def rehearse(plan: Plan) -> Rehearsal:
    """Tries a little of a run on synthetic records of the declared shape: reads no data, spends and leaves nothing.

    Raises:
        PlanRefused, RunFailed: as `run` would, before any data is at stake.
    """
    return runner_of(plan).rehearse(plan)


def explain_memory(*, before: bool) -> AbstractContextManager[None]:
    """Explains a lack of memory: see `training.checks.memory_meter`. `before`: nothing is spent yet."""
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
