"""`dprecipe teachers`: trains a shard of the teachers, on any machine. It spends nothing, because no query is put."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from dprecipe.screen import write_output
from dprecipe.training.run.folder import enforce_policies
from dprecipe.training.run.runner import check_has_teachers

PRIVATE = "private: votes of single teachers, without noise. Publish nothing of it; delete it after the run"


def train_teachers(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the votes go: private, never to be published.")],
    overrides: Overrides = None,
    shard: Annotated[str, typer.Option(metavar="I/N", help="Which part of the teachers to train.")] = "1/1",
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Only make the folder with its key, to be copied to every machine.")
    ] = False,
    data_root: DataRoot = None,
) -> None:
    """Plans, then trains the shard and keeps its votes; a shard that is there already is not trained again.

    Raises:
        UsageFault: the recipe trains no teachers; the folder holds shards of another plan, version or records.
        DataFault, PlanRefused, RunFailed: as a run.
        Interrupted: stopped by the user; the same command continues.
    """
    from dprecipe.mechanisms.pate.train.shards import TeacherShard  # without torch

    part = TeacherShard.parse(shard)
    plan = enforce_policies(make_plan(read(recipe, overrides or ())), None, False, data_root)
    check_has_teachers(plan)
    if plan.tuning is not None:
        raise UsageFault(
            f"{recipe} trains several times: it has a block `tuning`", f"dprecipe tune {shlex.quote(str(recipe))} --ray"
        )
    with importing_libraries():
        from dprecipe.mechanisms.pate.train.shard import prepare_folder, train_shard
    if prepare:
        prepare_folder(plan, out)
        lines = [f"made {out}: copy it, with its key, to every machine that trains a shard"]
    else:
        done = train_shard(plan, part, out, find_data_root(data_root, plan.source.file))
        teachers = f"{len(done.teachers)} teachers, {done.teachers.start} … {done.teachers.stop - 1}"
        lines = [f"{'was there already' if done.was_there else 'wrote'} {done.file}: shard {part}, {teachers}"]
        words = ["dprecipe", "run", str(recipe), "--teachers", str(out)]
        lines += [f"nothing was spent; when all shards are there: {shlex.join(words)}"]
    write_output([*lines, f"{out} is {PRIVATE}"])
