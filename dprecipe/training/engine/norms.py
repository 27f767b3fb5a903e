"""Squared norms of rows, rounded up where they were added in single precision.

Legend: R records, P numbers of a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprecipe.training.engine.fused import Fused

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
    squares_R *= 1 + (min(size, block if whole else 2 * block) + 6) * 2.0**-24
    squares_R += size * TINY
    return squares_R


row_squares = Fused(_row_squares)
