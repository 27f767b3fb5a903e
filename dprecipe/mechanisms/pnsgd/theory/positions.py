"""The choice of positions to show, if the guarantee depends on a record's position in the file."""

from __future__ import annotations

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent


def choose_positions(event: ProjectedDescent, max_positions: int, max_chosen: int) -> tuple[int, ...]:
    """Returns all positions from 1 if there are at most `max_positions`; else at most `max_chosen` (3 or more): both
    ends, and one position in each of some batches, closer together where the last use is later and guarantees differ
    most."""
    size, batches = event.size, event.batches
    if size <= max_positions:
        return tuple(range(1, size + 1))
    last, distance, chosen = (event.steps - 1) % batches, 0, []
    for index in range(min(max_chosen, batches)):
        distance = max(distance + 1, round(batches ** (index / max(min(max_chosen, batches) - 1, 1))))
        chosen.append((last + 1 - distance) % batches * event.batch + 1)
    inner = [position for position in chosen if position not in (1, size)]
    return tuple(sorted({1, *inner[: max_chosen - 2], size}))
