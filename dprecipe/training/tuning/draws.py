"""How many runs there are and which values each has: drawn once, after the reservation and before the first run.

It is secret: kept in `private/` and printed nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.plan import Plan
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.candidates import Point, may_draw, value_at
from dprecipe.privacy.tuning.runs import draw_runs, make_runs

DRAWS = "draws.json"


@dataclass(frozen=True, slots=True)
class DrawnRuns:
    """The runs of a tuned run."""

    points: tuple[Point, ...]
    """The values of each."""
    ties: tuple[int, ...]
    """A random number of each, which decides between equal scores."""


def draw(plan: Plan, secrets: Secrets) -> DrawnRuns:
    """Draw the number of runs, and the values of each independently of all others.

    Guarantees: the number has the planned distribution up to 1e-12 in total variation (`draw_runs`); each draw is from
    a secret stream that draws nothing else.
    """
    if plan.tuning is None:
        raise RunFailed("internal fault: a plan of one run draws no number of runs", "please report this")
    block = plan.tuning.block
    count = draw_runs(make_runs(*block.runs.selection), secrets.stream("tuning", 0))
    uniforms = [secrets.stream("tuning", index + 1).uniform(len(block.over)) for index in range(count)]
    points = tuple(
        {each.key: value_at(each, float(u)) for each, u in zip(block.over, row, strict=True)} for row in uniforms
    )
    ties = secrets.stream("tuning", count + 1).words(max(count, 1))
    return DrawnRuns(points, tuple(int(word) >> 11 for word in ties[:count]))


def load_or_draw(path: Path, plan: Plan, secrets: Secrets, stages: Sequence[str] = ()) -> DrawnRuns:
    """What was drawn, by this attempt or an earlier one; on disk before it is used.

    `stages`: digests of what the paid steps of preprocessing released: all runs start from the same.

    Raises:
        RunFailed: the file is damaged or of another plan, or the disk refuses.
    """
    try:
        content = durable.read_bytes(path)
    except FileNotFoundError:
        drawn = draw(plan, secrets)
        _save(path, plan, drawn, stages)
        return drawn
    except OSError as error:
        raise RunFailed(f"{path}: can't be read: {error.strerror}", "put the run's own files back") from None
    try:
        return _parse(content, plan, stages)
    except (ValueError, KeyError, TypeError):
        raise RunFailed(
            f"{path}: damaged, or of another run", "put the run's own files back, or start anew in another folder"
        ) from None


def _save(path: Path, plan: Plan, drawn: DrawnRuns, stages: Sequence[str]) -> None:
    content = {
        "plan": plan.digest,
        "stages": list(stages),
        "points": list(drawn.points),
        "ties": list(drawn.ties),
    }
    try:
        durable.replace_file(path, json.dumps(content).encode())
    except OSError as error:
        raise RunFailed(
            f"{path}: can't be written: {error.strerror}", "make room on the disk, then continue with --resume"
        ) from None


def _parse(content: bytes, plan: Plan, stages: Sequence[str]) -> DrawnRuns:
    data = json.loads(content)
    points, ties = data["points"], data["ties"]
    if data["plan"] != plan.digest or len(points) != len(ties) or plan.tuning is None:
        raise ValueError("of another plan")
    if data["stages"] != list(stages):
        raise ValueError("of other constants of preprocessing")
    over = plan.tuning.block.over
    if not all(set(point) == {each.key for each in over} for point in points):
        raise ValueError("other keys")
    if not all(may_draw(each, point[each.key]) for point in points for each in over):
        raise ValueError("values that are not drawn")
    return DrawnRuns(tuple(points), tuple(int(tie) for tie in ties))


def choose(scores: Sequence[float | None], ties: Sequence[int], *, largest: bool) -> int:
    """The run with the best score; those without one come last, and ties are broken at random. At least one run.

    `largest`: the best score is the largest, not the smallest.
    """

    def rank(index: int) -> tuple[bool, float, int]:
        score = scores[index]
        if score is None:
            return (False, 0.0, ties[index])
        return (True, score if largest else -score, ties[index])

    return max(range(len(scores)), key=rank)
