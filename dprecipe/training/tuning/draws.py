"""The number of runs and the values of each: drawn once, after the reservation and before the first run.

It is secret: kept in `private/` and printed nowhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.language.tuning import Candidates
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.planning.candidates import Point, may_draw, value_at
from dprecipe.privacy.tuning.runs import draw_runs, make_runs

DRAWS = "draws.json"
MAX_REDRAWS = 200
"""Largest number of redraws of one run's values; each value by itself makes a model."""


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """The runs of a tuned run."""

    points: tuple[Point, ...]
    """The values of each."""
    ties: tuple[int, ...]
    """A random number of each, which decides between equal scores."""


def draw(plan: Plan, secrets: Secrets, accept: Callable[[Point], bool] = lambda point: True) -> DrawnRuns:
    """Draws the number of runs, and the values of each independently of all others.

    `accept`: whether values make a model, by themselves: no record has a say. Those that do not are drawn again, so
    that a run that is the only one ends in a release, too.

    Guarantees: the number has the planned distribution up to 1e-12 in total variation (`draw_runs`); each draw is from
    a secret stream that draws nothing else; values have the recipe's distribution on the condition that they are
    accepted.
    """
    if plan.tuning is None:
        raise InternalFault("a plan of one run draws no number of runs")
    block = plan.tuning.block
    count = draw_runs(make_runs(*block.runs.selection), secrets.stream("tuning", 0))
    points = tuple(_draw_point(block.over, secrets.stream("tuning", index + 1), accept) for index in range(count))
    ties = secrets.stream("tuning", count + 1).words(max(count, 1))
    return DrawnRuns(points, tuple(int(word) >> 11 for word in ties[:count]))


def _draw_point(over: Sequence[Candidates], stream: Stream, accept: Callable[[Point], bool]) -> Point:
    """Returns the first values that are accepted; of very many that are not, the last."""
    for _ in range(MAX_REDRAWS):
        point = {each.key: value_at(each, float(u)) for each, u in zip(over, stream.uniform(len(over)), strict=True)}
        if accept(point):
            break
    return point


def load_or_draw(
    path: Path,
    plan: Plan,
    secrets: Secrets,
    stages: Sequence[str] = (),
    accept: Callable[[Point], bool] = lambda point: True,
) -> DrawnRuns:
    """Loads the runs that an earlier attempt drew, or draws and keeps them. `accept` as in `draw`.

    `stages`: digests of what the paid steps of preprocessing released: all runs start from the same.

    Raises:
        RunFailed: the file is damaged or of another plan, or the disk refuses.
    """
    if not os.path.lexists(path):
        drawn = draw(plan, secrets, accept)
        _save(path, plan, drawn, stages)
        return drawn
    return load(path, plan, stages)


def load(path: Path, plan: Plan, stages: Sequence[str] | None = None) -> DrawnRuns:
    """Loads what was drawn. `stages` as in `load_or_draw`; None: whatever they were.

    Raises:
        RunFailed: the file is missing, damaged or of another plan.
    """
    try:
        return _parse(durable.read_bytes(path), plan, stages)
    except OSError as error:
        raise RunFailed(f"{path}: can't be read: {error.strerror}", "put the run's own files back") from None
    except (ValueError, KeyError, TypeError):
        raise RunFailed(
            f"{path}: damaged, or of another run", "put the run's own files back, or start again in another folder"
        ) from None


def _save(path: Path, plan: Plan, drawn: DrawnRuns, stages: Sequence[str]) -> None:
    content = {
        "plan": plan.digest,
        "stages": list(stages),
        "points": list(drawn.points),
        "ties": list(drawn.ties),
    }
    with durable.writing(path, "free space on the disk, then continue with --resume"):
        durable.replace_file(path, json.dumps(content).encode())


def _parse(content: bytes, plan: Plan, stages: Sequence[str] | None) -> DrawnRuns:
    data = json.loads(content)
    points, ties = data["points"], data["ties"]
    if data["plan"] != plan.digest or len(points) != len(ties) or plan.tuning is None:
        raise ValueError("of another plan")
    if stages is not None and data["stages"] != list(stages):
        raise ValueError("of other constants of preprocessing")
    over = plan.tuning.block.over
    if not all(set(point) == {each.key for each in over} for point in points):
        raise ValueError("other keys")
    if not all(may_draw(each, point[each.key]) for point in points for each in over):
        raise ValueError("values that are not drawn")
    return DrawnRuns(tuple(points), tuple(int(tie) for tie in ties))


def choose(scores: Sequence[float | None], ties: Sequence[int], *, largest: bool) -> int:
    """Returns the run with the best score; those without one come last, and ties are broken at random. At least one
    run.

    `largest`: the best score is the largest, not the smallest.
    """

    def rank(index: int) -> tuple[bool, float, int]:
        score = scores[index]
        if score is None:
            return (False, 0.0, ties[index])
        return (True, score if largest else -score, ties[index])

    return max(range(len(scores)), key=rank)
