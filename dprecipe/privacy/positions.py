"""Which places in a file are shown, where a record's place decides what protects it."""

from __future__ import annotations

from dprecipe.privacy.events import ProjectedDescent


def shown(event: ProjectedDescent, most: int, some: int) -> tuple[int, ...]:
    """All positions from 1 where there are at most `most`, else `some` (at least 3) of them with both ends, the closer
    to each other the later they were used last: there guarantees differ most."""
    size = event.size
    if size <= most:
        return tuple(range(1, size + 1))
    last = min(size, ((event.steps - 1) % event.lots + 1) * event.lot)
    chosen, distance = [], 0
    for index in range(some):
        distance = max(distance + 1, round(size ** (index / (some - 1))))
        chosen.append((last - distance) % size + 1)
    inner = [position for position in chosen if position not in (1, size)]
    return tuple(sorted({1, *inner[: some - 2], size}))
