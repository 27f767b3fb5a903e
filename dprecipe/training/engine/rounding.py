"""Rounding in clipped sums: what single precision may add up, norms that are rounded up, and kinks.

`Reserve` says how many records may be added up in single precision, so that a clipped sum stays within `SLACK` of its
bound. Squared norms of rows are rounded up where they were added in single precision. At the kinks of a network (of a
ReLU, of a pool) a gradient jumps, and rounding may have any effect.

Legend: R records, P numbers of a row.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from dprecipe.training.engine.fused import Fused

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


MOVED = 1e-6
"""The relative change of a record's numbers: single precision rounds about as much after some layers."""
KINKS = 4.0
"""Another correct computation may differ by this many times what `MOVED` moves a gradient, or a sum of gradients."""
MAX_DIFFERENCE = 0.1
"""An upper limit on that difference, relative to the size."""


def move_records(features: Tensor) -> Tensor:
    """Returns the records (N, …), each number moved by `MOVED` of the one before it: about what rounding does."""
    return features + MOVED * features.roll(1, -1)


def limit_difference(moved: float) -> float:
    """Returns the allowed difference of another correct computation, where moved records change this one by `moved`;
    both relative."""
    return min(KINKS * moved, MAX_DIFFERENCE)


BLOCK = 128
"""Numbers whose squares are added in single precision; twice as many if there are no more. In any order, adding them,
taking the root and squaring it loses at most (their number + 6) 2^-24 of the sum."""
TINY = 2.0**-125
"""A bound on the loss from a square that is too small for single precision."""


def _row_squares(rows_RP: Tensor, block: int = BLOCK) -> Tensor:
    """Returns (R,) float64: squared norms, rounded up where they were added in single precision, `block` numbers at a
    time.

    Non-finite if a number is non-finite or larger than 2^60: such a gradient is treated as non-finite.
    """
    if rows_RP.dtype != torch.float32:
        norms_R: Tensor = torch.linalg.vector_norm(rows_RP.double(), dim=1)
        return norms_R.square()
    size = rows_RP.shape[1]
    whole = size // block * block if size > 2 * block else 0
    squares_R: Tensor
    if not whole:
        squares_R = torch.linalg.vector_norm(rows_RP, dim=1).double().square()
    else:
        norms_RB = torch.linalg.vector_norm(torch.unflatten(rows_RP[:, :whole], 1, (-1, block)), dim=2)
        squares_R = norms_RB.double().square().sum(1)
        if whole < size:
            squares_R += torch.linalg.vector_norm(rows_RP[:, whole:], dim=1).double().square()
    factor = 1 + (min(size, block if whole else 2 * block) + 6) * 2.0**-24
    if squares_R.device.type == "cpu":
        return squares_R.mul_(factor).add_(size * TINY)
    return torch.rsub(squares_R, size * TINY, alpha=-factor)  # the same by one kernel, which may round once


row_squares = Fused(_row_squares)
