"""Which places in a file are shown, where a record's place decides what protects it."""

from __future__ import annotations

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent


def choose_positions(event: ProjectedDescent, most: int, some: int) -> tuple[int, ...]:
    """All positions from 1 where there are at most `most`, else at most `some` (3 or more): both ends, and one of a
    batch each, the closer to each other the later they were used last, since there guarantees differ most."""
    size, batches = event.size, event.batches
    if size <= most:
        return tuple(range(1, size + 1))
    last, distance, chosen = (event.steps - 1) % batches, 0, []
    for index in range(min(some, batches)):
        distance = max(distance + 1, round(batches ** (index / max(min(some, batches) - 1, 1))))
        chosen.append((last + 1 - distance) % batches * event.batch + 1)
    inner = [position for position in chosen if position not in (1, size)]
    return tuple(sorted({1, *inner[: some - 2], size}))
