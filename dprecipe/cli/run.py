"""`dprecipe run`: train, stop within the budget, write the run folder."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dprecipe import __version__
from dprecipe.cli.arguments import (
    AcceptLostSteps,
    DataRoot,
    Overrides,
    RayAddress,
    RecipePath,
    Resume,
    RunOut,
    TeacherFolders,
)
from dprecipe.faults import BudgetSpent, Interrupted, UsageFault
from dprecipe.libraries import TRAINING, check_libraries, importing_libraries
from dprecipe.screen import is_output_watched, write_note, write_output
from dprecipe.timeline import PROCESS_START, measure_run, phase
from dprecipe.training.processes.launch import LAUNCHER

if TYPE_CHECKING:
    from dprecipe.contract.plan import Plan
    from dprecipe.recipe.read import LoadedPublic
    from dprecipe.training.run.folder import RunFolder


@measure_run(PROCESS_START)
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="A few steps on synthetic data; spends nothing.")
    ] = False,
    data_root: DataRoot = None,
    teachers: TeacherFolders = None,
    cluster: RayAddress = None,
    accept_lost_steps: AcceptLostSteps = False,
) -> int:
    """Plans, then trains; returns the exit code. Raises the faults of both."""
    if int(os.environ.get("RANK", "0")) == 0 and LAUNCHER not in os.environ:
        write_note(f"dprecipe {__version__}: {'rehearsing' if rehearse else 'running'} {recipe}")
    # Imported after the first words: these take most of a second.
    from dprecipe.cli.plan import describe_spent
    from dprecipe.planning.make import plan as make_plan
    from dprecipe.recipe.files import check_files
    from dprecipe.recipe.read import LoadedPublic, read_any
    from dprecipe.training.run.folder import RunFolder, enforce_policies
    from dprecipe.training.run.request import RunOptions, request_run

    loaded = read_any(recipe, overrides or ())
    elsewhere = {"--teachers": bool(teachers), "--ray": cluster is not None}
    if isinstance(loaded, LoadedPublic):
        private = {"--rehearse": rehearse, "--accept-lost-steps": accept_lost_steps, **elsewhere}
        return _run_public(loaded, out, data_root, resume, [option for option, given in private.items() if given])
    with phase("plan"):
        plan = make_plan(loaded)
        if rehearse:
            unused = [option for option, given in elsewhere.items() if given]
            return _rehearse(enforce_policies(plan, out, resume, data_root), unused)
        options = RunOptions(out, data_root, resume, accept_lost_steps, teachers or (), cluster)
        request = request_run(plan, options)
    plan, place = request.plan, request.place
    if place == "complete":
        return _end_restart(RunFolder.find(request.path, plan))
    if place != "follower":
        check_files(loaded, request.root, plan.mechanism_plan.reads_training_records)
    check_libraries("training", *TRAINING)
    if place == "launcher":
        return _launch(plan, RunFolder(request.path))
    # Torch is imported after the data is checked: a refusal should not have to wait for it.
    with importing_libraries():
        from dprecipe.training.run import start as training

        if "WORLD_SIZE" in os.environ:
            from dprecipe.training.processes.processes import end_with_launcher

            end_with_launcher()
    if place == "follower":  # it prints nothing unless it fails
        try:
            training.run(request)
        except Interrupted as fault:
            return fault.exit_code
        return 0
    _describe_plan(plan)
    finished = training.run(request)
    score, hints, kept = "", [], finished.folder / "private" / "metrics.json"
    if finished.score is not None and plan.publishes_scores:
        score = f", {finished.score.describe()} on {finished.score.records:,} held-out records (more in {kept})"
        hints = finished.score.hints
    elif finished.score is not None:
        score = f", scores on private records are in {kept}"
    elif finished.has_model and plan.data.held_out is None:
        score = ", no score (data.test holds out no records)"
    spent = f"spent {describe_spent(finished.epsilon, plan.budget)}"
    next_step = f"publish {finished.release}; check it with: dprecipe verify {shlex.quote(str(finished.release))}"
    if not finished.verified:
        next_step = f"don't publish {finished.release}: runtime.insecure fixed its randomness, and it does not verify"
    shows_time = not plan.hides_duration or is_output_watched()
    time = f" in {finished.seconds:.0f} s" if shows_time else ""
    why = finished.stop_reason.replace("_", " ")
    write_output([*finished.remarks, f"{why}: {spent}{score}{time}", *hints, next_step])
    return 0 if finished.has_model else BudgetSpent.exit_code


def _describe_plan(plan: Plan) -> None:
    from dprecipe.cli.plan import plan_lines

    write_output(plan_lines(plan))
    if plan.release.sign is not None:
        from dprecipe.release.sign import permission_advice

        advice = permission_advice(Path(plan.source.file).parent / plan.release.sign.key)
        write_note(*([] if advice is None else [f"warning: {advice}"]))


def _rehearse(plan: Plan, unused: Sequence[str]) -> int:
    """Tries a few steps in this process. It needs neither the signing key nor several processes."""
    from dprecipe.training.run.request import check_trains_once

    check_trains_once(plan)
    if unused:
        raise UsageFault(f"--rehearse trains a few teachers here: {', '.join(unused)} is not used", "leave it out")
    check_libraries("training", *TRAINING)
    _describe_plan(plan)
    with importing_libraries():
        from dprecipe.training.run import start as training

    result = training.rehearse(plan)
    write_output([*result.remarks, result.describe()])
    return 0


def _run_public(
    loaded: LoadedPublic, out: Path | None, data_root: Path | None, resume: bool, options: Sequence[str]
) -> int:
    """Trains a recipe without privacy, and says so."""
    from dprecipe.data.files import data_root as find_data_root
    from dprecipe.models.public_record import NO_GUARANTEE
    from dprecipe.nonprivate.place import choose_folder
    from dprecipe.nonprivate.plan import make_plan as make_public_plan
    from dprecipe.policy.apply import enforce_on_recipe
    from dprecipe.recipe.files import check_files

    plan, root = make_public_plan(loaded), find_data_root(data_root, loaded.source.file)
    enforce_on_recipe(loaded, root)
    if options:
        raise UsageFault(
            f"{', '.join(options)}: a run with mechanism none spends nothing",
            "leave it out",
        )
    if "WORLD_SIZE" in os.environ:
        raise UsageFault("mechanism none runs in one process", "start it without torchrun")
    target = choose_folder(plan, out)
    check_files(loaded, root)
    check_libraries("training", *TRAINING)
    write_output(plan.describe())
    with importing_libraries():
        from dprecipe.training.run import nonprivate

    done = nonprivate.train(plan, root, target, resume)
    score, hints = "", []
    if done.score is not None:
        hints = done.score.hints
        more = done.weights / "metrics.json"
        score = f", {done.score.describe()} on {done.score.records:,} held-out records (more in {more})"
    write_output(
        [
            f"done: {plan.length.steps:,} steps{score} in {done.seconds:.0f} s",
            *hints,
            f"wrote {done.weights}: {NO_GUARANTEE}; there is no certificate, and nothing to verify",
            f"model.safetensors {done.digest}",
        ]
    )
    return 0


def _launch(plan: Plan, folder: RunFolder) -> int:
    """Runs in several processes. A process that dies after the release was written does not invalidate it."""
    from dprecipe.contract.facts import NO_MODEL
    from dprecipe.privacy.ledger import read as read_ledger

    with importing_libraries():
        from dprecipe.training.processes.processes import launch_processes

    was_complete = folder.release.exists()
    code = launch_processes(plan.runtime.processes, sys.argv[1:], plan.runtime.device)
    if code and not was_complete and folder.release.exists():
        if read_ledger(folder.ledger).stop_reason == NO_MODEL:
            return BudgetSpent.exit_code
        write_note(f"a process was lost after the release was written: {folder.release}")
        return 0
    return code


def _end_restart(folder: RunFolder) -> int:
    """Verifies the release of a run that was complete when the launcher started it again; the run's exit code.

    Raises:
        CertificateInvalid: it does not verify.
    """
    if int(os.environ.get("RANK", "0")) > 0:
        return 0  # the first process answers for all
    from dprecipe.release.no_model import has_no_model
    from dprecipe.release.verify import verify

    verified = verify(folder.release)
    write_output([f"this run was complete before it was started again, and its release verifies: {folder.release}"])
    return BudgetSpent.exit_code if has_no_model(verified.statement.predicate) else 0
