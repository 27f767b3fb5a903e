"""`dprecipe tune`: several runs under one ledger, and the best of them released.

Paid steps of preprocessing are run first, once; every run starts from what they released (`privacy.tuning.events`). One
event covers all runs. It is reserved before their number is drawn, and settled once all have ended; what happens in
between is seen by no one. An attempt that broke off is therefore continued, and charged once. The number of runs, the
losers and their scores stay in `private/`; the losers are deleted once the release is there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.contract.stages import PaidStage
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import Interrupted, PlanRefused, RunFailed, UsageFault
from dprecipe.language.tuning import Tuning
from dprecipe.planning.candidates import list_points
from dprecipe.planning.trials import planner_of
from dprecipe.planning.verifiable import find_unverifiable
from dprecipe.privacy.events import Event
from dprecipe.privacy.ledger import Ledger
from dprecipe.progress import report_progress
from dprecipe.release.facts import PublicScore
from dprecipe.release.folder import load_signing_key
from dprecipe.release.stages import digest_constants
from dprecipe.screen import is_watched, write_note
from dprecipe.training.processes.cluster import LOCAL, check_address
from dprecipe.training.program.evaluate import METRICS
from dprecipe.training.program.file_digests import holding_still
from dprecipe.training.program.gather import Gathered, gather_records
from dprecipe.training.publish.private_report import write_private_report
from dprecipe.training.publish.provenance import RunProvenance, private_of
from dprecipe.training.run.account_run import check_account, digest_data
from dprecipe.training.run.attempt import Attempt, open_attempt
from dprecipe.training.run.folder import RunFolder, enforce_policies
from dprecipe.training.run.runner import EndedWithoutModel, PythonInputs, Start, runner_of, show_run
from dprecipe.training.run.spend_once import check_affordable, is_reserved, is_settled, spend_once
from dprecipe.training.run.stages import list_missing
from dprecipe.training.tuning.draws import DRAWS, DrawnRuns, load_or_draw
from dprecipe.training.tuning.losers import load_recipient, locate_trials, remove_losers
from dprecipe.training.tuning.pool import TrialPool
from dprecipe.training.tuning.ray_pool import RayPool, open_ray_pool
from dprecipe.training.tuning.trials import Trials
from dprecipe.training.tuning.winner import choose_winner, describe_losses, list_models, publish_winner


@dataclass(frozen=True, slots=True)
class TunedRun:
    """A finished tuned run."""

    folder: Path
    release: Path
    plan: Plan
    """Plan of what is released: `plan.tuning.chosen` has its values."""
    epsilon: float
    score: PublicScore | None
    """Score of the released model, on the public records by which it was chosen."""
    remarks: tuple[str, ...] = ()
    """Remarks in words; of a tuned run without a model, why it has none."""

    def __repr__(self) -> str:
        return f"TunedRun({str(self.folder)!r}: ε = {self.epsilon:g})"

    def _repr_html_(self) -> str:
        return show_run(self.plan, self.folder, self.release, self.epsilon, self.remarks, True)

    @property
    def has_model(self) -> bool:
        """True if a model is in the release: all runs may have been lost."""
        return self.plan.tuning is not None and self.plan.tuning.chosen is not None


def tune(
    plan: Plan,
    out: str | Path | None = None,
    *,
    data_root: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = None,
    cluster: str | None = None,
) -> TunedRun:
    """Makes the runs of a tuned plan, up to `jobs` at once, and releases the best.

    `cluster`: its address; None: in processes of this machine. `jobs`: 1 by default, and of a cluster as many as it can
    hold.

    Guarantees: the ledger holds the tuned run before the number of runs is drawn; `release/` appears whole, at the end,
    verified, or not at all, and holds the winner alone; where no run has a model, it says so and holds none.

    Raises:
        UsageFault: the plan is not of a tuned run; torchrun has started several processes; the folder exists (or, with
            `resume`, does not); `jobs` below 1; no cluster is reachable, or one of its machines can't make runs.
        DataFault, PlanRefused, RunFailed: see `Runner.prepare`; nothing was spent, or the ledger says what.
        Interrupted: stopped by the user; `resume` continues.
    """
    path = Path(out) if out is not None else RunFolder.default(plan)
    plan = enforce_policies(plan, path, resume, data_root)
    if plan.tuning is None:
        raise UsageFault("this recipe has no block `tuning`", "start it with: dprecipe run")
    if "WORLD_SIZE" in os.environ:
        raise UsageFault("a tuned run starts processes of its own", "start it without torchrun; see --jobs and --ray")
    if jobs is not None and jobs < 1:
        raise UsageFault(f"expected --jobs >= 1, got {jobs}", "leave it out")
    if cluster is not None:
        check_address(cluster)
    recipient = load_recipient(plan)
    load_signing_key(plan)  # one that can't be used should be known before anything is spent
    root = find_data_root(data_root, plan.source.file).absolute()
    check_account(plan, is_new=not resume)
    folder = _reopen(path, plan, root, recipient) if resume else RunFolder.absent(path)
    findings = find_unverifiable(plan)
    if findings:
        raise PlanRefused(findings)
    with holding_still(plan.data.train, root):
        start = Start(datetime.now(UTC), data=digest_data(plan, root))
        gathered = gather_records(plan, root)
        _prepare_models(plan, plan.tuning.block, root, gathered)
    provenance = RunProvenance((), torch.device("cpu"))
    event = plan.tuning.charge.event

    def check(before: Ledger | None) -> None:
        _check_drawn(folder, event, before)
        _check_affordable(plan, event, before, list_missing(plan, folder.stages))

    try:
        with _open_pool(plan, folder, root, gathered, jobs, cluster) as pool:
            if not resume:
                RunFolder.create(path, plan)
            gathered.write(folder.private)
            private = {"commitment": private_of(gathered.prepared("train"))}
            commitment = provenance.identity(folder, private)["commitment"]
            with open_attempt(plan, folder, start, provenance, private, check, gathered.prepared("train")) as attempt:
                stages = tuple(map(digest_constants, attempt.constants))
                pool.start_from(attempt.constants)
                drawn = _make(plan, folder, event, attempt, pool, stages)
                if not list_models(pool.trials, drawn):
                    done = attempt.publish_nothing(f"no run has a model; {describe_losses(folder)}")
                    return TunedRun(folder.path, done.release, plan, done.epsilon, None, done.remarks)
                attempt.ledger.close("completed")
    except EndedWithoutModel as ended:
        return TunedRun(folder.path, folder.release, plan, ended.run.epsilon, None, ended.run.remarks)
    winner = choose_winner(plan, pool.trials, drawn)
    report_progress("computing the certificate, and verifying the release from its folder alone")
    chosen, epsilon = publish_winner(plan, folder, winner, commitment, start.moment, stages)
    _keep_scores(folder, pool.trials.folder(winner.number))
    remove_losers(plan, folder, pool.trials, recipient)
    folder.write_timing()
    if plan.release.report:
        write_private_report(folder, plan, plan.publishes_scores)
    return TunedRun(folder.path, folder.release, chosen, epsilon, winner.facts.score)


def _keep_scores(folder: RunFolder, winner: RunFolder) -> None:
    """Keeps all scores of the run that is released, in `private/`. A file that isn't there, or can't be written, does
    not stop the run."""
    with suppress(OSError):
        durable.replace_file(folder.private / METRICS, durable.read_bytes(winner.private / METRICS))


def _prepare_models(plan: Plan, tuning: Tuning, root: Path, gathered: Gathered) -> None:
    """Prepares a run of the recipe as it is, and one with each candidate of a key of the model: a file that is missing,
    or a model that can't be trained, has to be known before the runs are paid for.

    Raises:
        DataFault, PlanRefused, RunFailed: see `Runner.prepare`.
    """
    planner = planner_of(plan.source)
    others = [point for _, point in list_points(tuning) if len(point) == 1 and next(iter(point)).startswith("model.")]
    for point in ({}, *others):
        if planner.makes_model(point):  # what makes none is drawn again
            trial = planner.plan_trial(point)
            runner_of(trial).prepare(trial, root, PythonInputs(gathered=gathered))


def _reopen(path: Path, plan: Plan, root: Path, recipient: object | None) -> RunFolder:
    """Returns an existing folder, to be resumed. Where the release is there and the losers still are, too, they are
    removed.

    Raises:
        UsageFault: see `RunFolder.open`; the run is complete.
    """
    folder = RunFolder.find(path, plan)
    if os.path.lexists(folder.release) and locate_trials(folder).exists():
        remove_losers(plan, folder, Trials(plan.source, locate_trials(folder), root), recipient)
    return RunFolder.open(path, plan)


@contextmanager
def _open_pool(
    plan: Plan, folder: RunFolder, root: Path, gathered: Gathered, jobs: int | None, cluster: str | None
) -> Iterator[TrialPool | RayPool]:
    place = locate_trials(folder)
    if cluster is None:
        yield TrialPool(plan.source, place, root, jobs or 1)
        return
    report_progress("starting Ray" if cluster == LOCAL else "joining the cluster")
    with open_ray_pool(plan, place, root, gathered, cluster, jobs) as pool:
        yield pool


def _make(
    plan: Plan,
    folder: RunFolder,
    event: Event,
    attempt: Attempt,
    pool: TrialPool | RayPool,
    stages: tuple[str, ...],
) -> DrawnRuns:
    """Reserves the tuned run or continues it, makes all runs, settles."""
    path = folder.private / DRAWS

    def make_all() -> None:
        drawn = load_or_draw(path, plan, attempt.secrets, stages, planner_of(plan.source).makes_model)
        _make_place(locate_trials(folder))
        report_progress("training; how many runs there are is secret")

        def report(done: int) -> None:
            if is_watched():  # in a log, it would be no secret
                write_note(f"{done} of {len(drawn.points)} runs have ended")

        try:
            pool.make_all(drawn, report)
        except (Interrupted, KeyboardInterrupt):
            raise attempt.interrupted("some of the runs, or none") from None

    spend_once(attempt.ledger, event, make_all)
    return load_or_draw(path, plan, attempt.secrets, stages)


def _make_place(place: Path) -> None:
    """Makes the folder of all runs, on disk before the first one begins: with it, nothing is drawn again."""
    try:
        durable.make_folders(place)
    except OSError as error:
        raise RunFailed(
            f"{place}: can't be created: {error.strerror}", "free space on the disk, then continue with --resume"
        ) from None


def _check_drawn(folder: RunFolder, event: Event, before: Ledger | None) -> None:
    """Checks that what was drawn is there if any run may have begun with it: one event pays for one number of runs.

    Raises:
        RunFailed: it is not; nothing more is spent.
    """
    path = folder.private / DRAWS
    begun = is_settled(event, before) or (is_reserved(event, before) and os.path.lexists(locate_trials(folder)))
    if begun and not os.path.lexists(path):
        raise RunFailed(
            f"{path} is missing, and runs were made with the values in it; they are not drawn again; nothing more was "
            "spent",
            "put this file back, or start again in another folder, which spends a second budget",
        )


def _check_affordable(plan: Plan, event: Event, before: Ledger | None, missing: Sequence[PaidStage]) -> None:
    """The budget holds the tuned run, or an attempt before has reserved it. `missing`: paid steps of preprocessing
    without a result, which are looked at when they are run (`StageRuns`).

    Raises:
        BudgetSpent: it does not.
        RunFailed: runs were made with results of paid steps that are gone: others would make them unlike.
    """
    if missing and (is_settled(event, before) or is_reserved(event, before)):
        raise RunFailed(
            f"what {missing[0].path} released is not in private/stages, and runs were made with it",
            "put private/stages back, if there is a copy; or start a new run, which spends a second budget",
        )
    check_affordable(plan, event, before)
