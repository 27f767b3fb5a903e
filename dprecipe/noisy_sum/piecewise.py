"""Piecewise-constant schedules: an account charges for exactly the values that a run uses.

Each piece has the value of the schedule at its first step. The schedule's last step begins the last piece, whose value
lasts to the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise


def piece_starts(schedule: int, run: int, max_pieces: int) -> set[int]:
    """Returns the first steps of the pieces of a schedule of `schedule` steps in a run of `run` steps: at most
    `max_pieces`, evenly over the part of the schedule that the run reaches, and one at the schedule's last step."""
    last = schedule - 1
    end = min(last, run)
    count = min(end, max_pieces)
    return {end * piece // count for piece in range(count)} | {last}


def split_steps(cuts: Iterable[int], steps: int) -> Iterator[tuple[int, int]]:
    """Yields (first step, first step of the next piece) for a run of `steps` steps that is cut at 0 and at `cuts`."""
    yield from pairwise(sorted({0, *(cut for cut in cuts if 0 < cut < steps), steps}))
