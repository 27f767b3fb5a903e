"""Schedules as staircases: whole steps with one value each, so that an account can charge for what a run takes.

Each stair has the value that the schedule has at its first step; the schedule's last step begins a stair of its own,
whose value lasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise


def schedule_starts(schedule: int, run: int, most: int) -> set[int]:
    """Where stairs of a schedule of so many steps begin, at most one more than `most`: evenly over as much of it as a
    run of `run` steps sees, and at its last step."""
    last = schedule - 1
    end = min(last, run)
    count = min(end, most)
    return {end * stair // count for stair in range(count)} | {last}


def schedule_pieces(cuts: Iterable[int], steps: int) -> Iterator[tuple[int, int]]:
    """(first step, next piece's first) of a run of `steps` steps that is cut at these and at 0."""
    yield from pairwise(sorted({0, *(cut for cut in cuts if 0 < cut < steps), steps}))
