"""Units: when the recipe protects a user or a patient, all of their records stand or fall together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def bounded(units: Sequence[str], max_records: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The records that are kept (indices, in order) and the dense unit id 0 … U-1 of each.

    Of each unit the first `max_records` in file order are kept. What is kept of a unit depends on that unit's
    own records alone, so adding or removing one unit changes nothing of another.

    Guarantees: no unit has more than `max_records` records; ids are dense, in order of first appearance.
    """
    ids: dict[str, int] = {}
    seen: list[int] = []
    kept: list[int] = []
    kept_ids: list[int] = []
    for index, unit in enumerate(units):
        unit_id = ids.setdefault(unit, len(ids))
        if unit_id == len(seen):
            seen.append(0)
        if seen[unit_id] < max_records:
            seen[unit_id] += 1
            kept.append(index)
            kept_ids.append(unit_id)
    return np.asarray(kept, dtype=np.int64), np.asarray(kept_ids, dtype=np.int64)
