"""The way from all runs to the one that is released, and to its certificate."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.planning.candidates import Point
from dprecipe.planning.trials import planner_of
from dprecipe.privacy.ledger import lock_ledger
from dprecipe.release import folder as release_folder
from dprecipe.release.facts import PublicScore, RunFacts
from dprecipe.release.scores import SMALLER_IS_BETTER
from dprecipe.release.untrusted import ContentError
from dprecipe.training.publish.publish import release_run, state_times
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.trial_result import locate_result, read_result
from dprecipe.training.tuning.draws import DrawnRuns, choose
from dprecipe.training.tuning.score import read_score
from dprecipe.training.tuning.trials import Trials


@dataclass(frozen=True, slots=True)
class Winner:
    """The run that is released."""

    number: int
    point: Point
    result: Path
    facts: RunFacts


def choose_winner(plan: Plan, trials: Trials, drawn: DrawnRuns) -> Winner:
    """Returns the best of the runs that have a model, by the recipe's score; ties are broken at random.

    Raises:
        RunFailed: no run has a model, or what one made is gone.
    """
    if plan.tuning is None:
        raise InternalFault("a plan of one run chooses among several")
    metric = plan.tuning.block.score.metric
    numbers = list_models(trials, drawn)
    if not numbers:
        raise InternalFault("a model was to be chosen, and no run has one")
    facts = {number: read_result(locate_result(trials.folder(number))) for number in numbers}
    scores = [_read_score(plan, trials, number) for number in numbers]
    best = numbers[choose(scores, [drawn.ties[number] for number in numbers], largest=metric not in SMALLER_IS_BETTER)]
    return Winner(best, drawn.points[best], locate_result(trials.folder(best)), facts[best])


def list_models(trials: Trials, drawn: DrawnRuns) -> list[int]:
    """Returns the runs that have a model: the others were lost, or their values make none."""
    return [number for number in range(len(drawn.points)) if not trials.has_no_model(number)]


def describe_losses(folder: RunFolder) -> str:
    """Says where to read why runs have no model."""
    return f"each was lost, or its values make none: the files *.lost in {folder.private / 'trials'} say why"


def score_of(score: PublicScore | None, metric: str) -> float | None:
    """Returns the figure by which runs are compared; None of a run that diverged, or of records that have no such
    figure: no AUC of a single class."""
    if score is None:
        return None
    figures: Mapping[str, float | None] = {
        **score.full,
        "accuracy": score.accuracy,
        "loss": score.loss,
        "mean_absolute_error": score.mean_absolute_error,
    }
    return figures.get(metric)


def _read_score(plan: Plan, trials: Trials, number: int) -> float | None:
    """Reads the score of a run that has a model; None if it diverged."""
    kept = locate_result(trials.folder(number))
    if plan.tuning is None or not trials.pays_for_score:
        metric = "" if plan.tuning is None else plan.tuning.block.score.metric
        return score_of(read_result(kept).score, metric)
    try:
        return read_score(kept)
    except ContentError as error:
        raise RunFailed(f"{kept}: {error}", "put the run's own files back, or start again in another folder") from None


def publish_winner(
    plan: Plan,
    folder: RunFolder,
    winner: Winner,
    commitment: str | None,
    started: datetime,
    stages: tuple[str, ...] = (),
) -> tuple[Plan, float]:
    """Writes `release/`, and verifies it with nothing but its files. Returns the plan of what is released, and the ε it
    claims. `stages`: digests of what the paid steps of preprocessing released.

    Guarantees: the ledger holds the tuned run, and nothing in `release/` tells how many runs there were, or how long
    they took.

    Raises:
        RunFailed, UsageFault: see `dprecipe.training.publish.publish.publish`.
    """
    chosen = replace(planner_of(plan.source).plan_chosen(winner.point), policies=plan.policies)
    began, ended = state_times(chosen, started)
    facts = replace(winner.facts, commitment=commitment, started=began, finished=ended, stages=stages)

    def write(path: Path) -> None:
        for name in sorted(release_folder.list_model_files(chosen)):
            shutil.copyfile(winner.result / name, path / name)
        release_folder.copy_tokenizer(chosen, folder.private, path)
        release_folder.write_library_files(chosen, path)

    with lock_ledger(folder.ledger) as ledger:
        return chosen, release_run(chosen, folder, ledger, facts, [], write).epsilon


def write_table(path: Path, plan: Plan, trials: Trials, drawn: DrawnRuns) -> list[tuple[Point, float | None]]:
    """Writes `trials.csv` in `private/`: the values and the score of every run, for its owner alone."""
    if plan.tuning is None:
        return []
    figure = plan.tuning.block.score.figure
    rows: list[tuple[Point, float | None]] = []
    for number, point in enumerate(drawn.points):
        score = None if trials.has_no_model(number) else _read_score(plan, trials, number)
        rows.append((point, score))
    durable.replace_file(path, _format_table(figure, rows).encode())
    return rows


def _format_table(figure: str, rows: Sequence[tuple[Point, float | None]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = list(rows[0][0]) if rows else []
    writer.writerow([*keys, figure])
    writer.writerows(
        [[*(point[key] for key in keys), "" if score is None else f"{score:.6g}"] for point, score in rows]
    )
    return text.getvalue()
