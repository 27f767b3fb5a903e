"""Which places in a file are shown, where a record's place decides what protects it."""

from __future__ import annotations

from dprecipe.privacy.events import ProjectedDescent


def shown(event: ProjectedDescent, most: int, some: int) -> tuple[int, ...]:
    """All positions from 1 where there are at most `most`, else at most `some` (3 or more): both ends, and one of a lot
    each, the closer to each other the later they were used last, since there guarantees differ most."""
    size, lots = event.size, event.lots
    if size <= most:
        return tuple(range(1, size + 1))
    last, distance, chosen = (event.steps - 1) % lots, 0, []
    for index in range(min(some, lots)):
        distance = max(distance + 1, round(lots ** (index / max(min(some, lots) - 1, 1))))
        chosen.append((last + 1 - distance) % lots * event.lot + 1)
    inner = [position for position in chosen if position not in (1, size)]
    return tuple(sorted({1, *inner[: some - 2], size}))


def stand_in(event: ProjectedDescent, position: int, apart: int) -> int:
    """The lot that stands for a position's: itself, or of `apart` lots next to each other the one used last. Lots are
    counted from 1, and those used in the last pass are not taken together with those that were not."""
    lot, last = (position - 1) // event.lot + 1, (event.steps - 1) % event.lots + 1
    end = last if lot <= last else event.lots
    return end - (end - lot) // apart * apart
