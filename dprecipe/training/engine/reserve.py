"""How many records may be added up in single precision, so that a clipped sum stays within `SLACK` of its bound."""

from __future__ import annotations

import math
from typing import final

SLACK = 9 * 2.0**-12
"""Of the clip norm: sums in single precision move by no more, on both sides of two neighbouring batches together."""
FEWEST = 16
"""Sums of fewer records are not worth single precision."""
BLOCKS = 4
"""Sums of so many blocks of records may be added up in single precision too."""


@final
class Reserve:
    """How many records may be added up in single precision, so that a batch stays within `SLACK`.

    Let c records be added up in any order, and u = 2^-24. A partial sum of k of them is no longer than k C, and is
    rounded by u of itself: together that is less than c²/2 · u C. A weight, a weighted number and a product are
    rounded too: 3 c u C. Of `BLOCKS` blocks, m, the sums may be added up as well: m/2 u C for each record. So a batch
    of n records is off by less than n (c/2 + m/2 + 3) u C, and so may be each of two neighbouring batches: n (c + m +
    6) u C in all. What is counted, (n + 1)(c + m + 8) u C, has room for the record more, and for partial sums and norms
    that were rounded themselves.
    """

    def __init__(self, records: int, processes: int = 1) -> None:
        """`records`: of the whole batch, or of this process's part of it, of so many."""
        self._records = records
        self._left = SLACK * 2**24 / processes
        self._begun = False

    def begin(self) -> bool:
        """Whether nothing of the batch was added yet: the sum is zero. To be asked once for each part."""
        begun, self._begun = self._begun, True
        return not begun

    def together(self, count: int) -> int:
        """For the next `count` records of the batch; 1: double precision is needed."""
        most = self._most(count)
        if most < min(count, FEWEST) or not count:
            return 1
        result = math.ceil(count / math.ceil(count / most))
        self._spend(count, result)
        return result

    def holds(self, count: int, together: int) -> bool:
        """Whether the next `count` records may be added up so many at a time; where they may, they are to be."""
        if min(count, together) > max(1, self._most(count)):
            return False
        if together > 1:
            self._spend(count, together)
        return True

    def _most(self, count: int) -> int:
        share = self._left * min(1.0, count / max(1, self._records))
        most = int(share / (count + 1)) - BLOCKS - 8
        if most < FEWEST:  # not enough for all of the batch: enough for some of it
            most = min(FEWEST, int(self._left / (count + 1)) - BLOCKS - 8)
        return min(count, most)

    def _spend(self, count: int, together: int) -> None:
        self._left -= (count + 1) * (together + BLOCKS + 8)
        self._records = max(0, self._records - count)
