"""The number of records that may be added up in single precision, so that a clipped sum stays within `SLACK` of its
bound."""

from __future__ import annotations

import math
from typing import final

SLACK = 9 * 2.0**-12
"""A share of the clip norm: rounding in single precision moves the difference of two neighbouring sums by no more."""
MIN_BLOCK = 16
"""Sums of fewer records gain nothing by single precision."""
BLOCKS = 4
"""Sums of this many blocks of records may be added up in single precision too."""


@final
class Reserve:
    """The number of records that may be added up in single precision, so that a batch stays within `SLACK`.

    Let c records be added up in any order, and u = 2^-24. A partial sum of k of them is at most k C long, and is
    rounded by u of itself: less than c²/2 · u C for all of them. A weight, a weighted number and a product are rounded
    too: 3 c u C. The sums of m = `BLOCKS` blocks may be added up as well: m/2 u C for each record. So a batch of n
    records is off by less than n (c/2 + m/2 + 3) u C, and two neighbouring batches by less than n (c + m + 6) u C in
    all. The amount that is counted, (n + 1)(c + m + 8) u C, covers the additional record, and for partial sums
    and norms that were rounded themselves.
    """

    def __init__(self, records: int, processes: int = 1) -> None:
        """`records`: of the whole batch, or of this process's part of it, if there are several `processes`."""
        self._records = records
        self._remaining = SLACK * 2**24 / processes
        self._begun = False

    def begin(self) -> bool:
        """Returns True if nothing of the batch was added yet, so that the sum is zero. Call it once for each part."""
        begun, self._begun = self._begun, True
        return not begun

    def take_block(self, count: int) -> int:
        """Reserves a block size for the next `count` records of the batch, and returns it: how many records may be
        added up in single precision; 1: double precision is needed."""
        max_block = self._max_block(count)
        if max_block < min(count, MIN_BLOCK) or not count:
            return 1
        result = math.ceil(count / math.ceil(count / max_block))
        self._spend(count, result)
        return result

    def try_block(self, count: int, block_size: int) -> bool:
        """Reserves blocks of `block_size` for the next `count` records and returns True, or returns False if that is
        too much."""
        if min(count, block_size) > max(1, self._max_block(count)):
            return False
        if block_size > 1:
            self._spend(count, block_size)
        return True

    def _max_block(self, count: int) -> int:
        share = self._remaining * min(1.0, count / max(1, self._records))
        max_block = int(share / (count + 1)) - BLOCKS - 8
        if max_block < MIN_BLOCK:  # not enough for all of the batch: enough for some of it
            max_block = min(MIN_BLOCK, int(self._remaining / (count + 1)) - BLOCKS - 8)
        return min(count, max_block)

    def _spend(self, count: int, block_size: int) -> None:
        self._remaining -= (count + 1) * (block_size + BLOCKS + 8)
        self._records = max(0, self._records - count)
