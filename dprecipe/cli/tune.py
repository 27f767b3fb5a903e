"""`dprecipe tune`: train several times, release the best."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from dprecipe import __version__
from dprecipe.cli.arguments import DataRoot, Overrides, RayAddress, RecipePath, Resume, RunOut
from dprecipe.faults import BudgetSpent, PlanRefused, UsageFault
from dprecipe.libraries import TRAINING, check_libraries, importing_libraries
from dprecipe.screen import write_note, write_output

if TYPE_CHECKING:
    from dprecipe.release.facts import PublicScore


def tune(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: RunOut = None,
    resume: Resume = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of runs at once, each in its own process.")] = None,
    cluster: RayAddress = None,
    data_root: DataRoot = None,
) -> int:
    """Plans, then makes the runs; returns the exit code. Raises the faults of both."""
    write_note(f"dprecipe {__version__}: tuning {recipe}")
    # Imported after the first words: these take most of a second.
    from dprecipe.cli.plan import describe_spent, plan_lines
    from dprecipe.data.files import data_root as find_data_root
    from dprecipe.planning.make import plan as make_plan
    from dprecipe.planning.verifiable import find_unverifiable
    from dprecipe.recipe.files import check_files
    from dprecipe.recipe.read import read
    from dprecipe.training.run.folder import RunFolder, enforce_policies

    loaded = read(recipe, overrides or ())
    plan = enforce_policies(make_plan(loaded), out, resume, data_root)
    if plan.tuning is None:
        raise UsageFault(f"{recipe} has no block `tuning`", f"dprecipe run {shlex.quote(str(recipe))}")
    findings = find_unverifiable(plan)
    if findings:
        raise PlanRefused(loaded.located(findings))
    folder = out or RunFolder.default(plan)
    RunFolder.find(folder, plan) if resume else RunFolder.absent(folder)
    check_files(loaded, find_data_root(data_root, plan.source.file))
    check_libraries("tuning", *TRAINING)
    if cluster is not None:
        check_libraries("--ray", "ray")
    write_output(plan_lines(plan))
    with importing_libraries():
        from dprecipe.training.tuning.run import tune as tune_plan

    done = tune_plan(plan, out, data_root=data_root, resume=resume, jobs=jobs, cluster=cluster)
    spent = f"spent {describe_spent(done.epsilon, plan.budget)}"
    publish = f"publish {done.release}; check it with: dprecipe verify {shlex.quote(str(done.release))}"
    if not done.has_model:
        write_output([*done.remarks, f"no model: {spent}", publish])
        return BudgetSpent.exit_code
    chosen = {} if done.plan.tuning is None else done.plan.tuning.chosen or {}
    values = ", ".join(f"{key} = {value}" for key, value in sorted(chosen.items()))
    metric = plan.tuning.block.score.metric
    shown = "" if done.score is None else f", {describe_score(done.score, metric)} on the records it was chosen by"
    kept = done.folder / "private" / "metrics.json"
    write_output(
        [
            f"completed: {spent}{shown}",
            f"chosen: {values}",
            *([f"all scores of the chosen run are in {kept}, for your eyes alone"] if kept.exists() else []),
            f"all runs are in {done.folder / 'private' / 'trials.csv'}, for your eyes alone",
            publish,
        ]
    )
    return 0


def describe_score(score: PublicScore, metric: str) -> str:
    """Returns the score that the run was chosen by, and those that say most of it, each beside its baseline."""
    from dprecipe.release.scores import describe_scores, list_leading, select_numbers

    own = {"accuracy": score.accuracy, "mean_absolute_error": score.mean_absolute_error, "loss": score.loss}
    numbers = select_numbers({**own, **score.full})
    keys = [key for key in dict.fromkeys([metric, *list_leading(numbers)]) if key in numbers]
    return describe_scores(numbers, keys)
