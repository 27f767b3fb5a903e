"""Which level of a codeword each coordinate of a gradient may reach: its rank among the magnitudes of its group.

Cells are runs of ranks. A coordinate gets the bound of the LOWEST rank of its cell, so that its gradient's magnitudes
are dominated rank by rank by the codeword however coarse the cells are, and whatever decides who is in which.

Legend: R gradients, D coordinates of a group, C cells, K levels.
Source: dprecipe docs/encoding.md, the box: any ranking is sound whose bounds are dominated by the codeword.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

MAX_SORTED = 4096
"""Up to this many coordinates are sorted: their ranks are exact."""
OCTAVES = 24
"""Magnitudes further below the largest one than this share the lowest cell."""
CELLS_PER_OCTAVE = 512
CELLS = OCTAVES * CELLS_PER_OCTAVE
SPREAD = CELLS_PER_OCTAVE // 8
"""Over how many cells equal magnitudes are spread."""
LARGEST = 0x7F7FFFFF
"""The bits of the largest float32."""
SHIFT = 23 - (CELLS_PER_OCTAVE.bit_length() - 1)
"""Of the bits of a float32, the lowest that tell no cells apart."""


@final
@dataclass(frozen=True, slots=True)
class Ranking:
    """The cells of R gradients in one group of coordinates, ascending in rank."""

    cells: Tensor
    """(R, D) int32: each coordinate's cell, numbered through: r · C + c."""
    widths: Tensor
    """(R, K) int64: how many cells each level covers: those whose lowest rank is one of the level's."""
    sums: Tensor
    """(R, C) float64: the magnitudes of each cell added up, nearly."""

    def weights(self) -> Tensor:
        """(R, K) float64: the magnitudes at each level added up: what a codeword's levels are multiplied with."""
        # The lowest level covers a cell at least.
        sums_RK = self.sums.cumsum(1).gather(1, self.widths.cumsum(1).sub_(1))
        return torch.diff(sums_RK, dim=1, prepend=sums_RK.new_zeros(len(sums_RK), 1))

    def bounds(self, levels_RK: Tensor) -> Tensor:
        """(R, D): each coordinate's bound, given the levels of the codeword of each gradient."""
        bounds = levels_RK.flatten().repeat_interleave(self.widths.flatten(), output_size=self.sums.numel())
        return bounds.index_select(0, self.cells.flatten()).view(self.cells.shape)


def rank_by_sorting(bits_RD: Tensor, ranks_K: Tensor) -> Ranking:
    """A cell for each rank. Of equal magnitudes the first coordinate ranks lowest.

    `bits_RD`: (R, D) int32, of magnitudes in float32; `ranks_K`: (K,) int64, the first rank of each level.
    """
    count, size = bits_RD.shape
    # Magnitude and index in one number: numpy's vectorised sort is then many times faster than an argsort.
    packed_RD = bits_RD.long() << 32 | torch.arange(size, device=bits_RD.device)
    if packed_RD.device.type == "cpu":
        packed_RD = torch.from_numpy(np.sort(packed_RD.numpy(), axis=1))
    else:
        packed_RD = packed_RD.sort(dim=1).values
    order_RD = packed_RD & 0xFFFFFFFF
    cells_RD = torch.arange(count * size, dtype=torch.int32, device=bits_RD.device).view(count, size)
    widths_K = torch.diff(ranks_K, append=ranks_K.new_full((1,), size))
    return Ranking(
        torch.empty_like(cells_RD).scatter_(1, order_RD, cells_RD),
        widths_K.expand(count, -1),
        (packed_RD >> 32).int().view(torch.float32).double(),
    )


def spread_ranks(size: int, device: torch.device) -> Tensor:
    """(D,) int32: what is added to the bits of each magnitude, in [0, SPREAD cells), before they are told apart.

    Equal magnitudes would share a cell and all get the bound of its lowest rank. Multiples of the golden ratio spread
    any run of them evenly over `SPREAD` cells, at the price that magnitudes less than an eighth of an octave apart may
    change places.
    """
    turns = (torch.arange(size, dtype=torch.int64) * 2654435769) & 0xFFFFFFFF
    return ((turns * (SPREAD << SHIFT)) >> 32).int().to(device)


def count_numbers(cells: Tensor, size: int) -> Tensor:
    """(size,) int64: how often each number below `size` occurs. In whatever order they are added: these are whole."""
    if cells.device.type == "cpu":
        return torch.bincount(cells, minlength=size)
    return count_by_scatter(cells, size)


def count_by_scatter(cells: Tensor, size: int) -> Tensor:
    """As `count_numbers`, without asking which number is the largest: a GPU would have to be waited for."""
    return torch.zeros(size, dtype=torch.int64, device=cells.device).scatter_add_(
        0, cells.long(), torch.ones((), dtype=torch.int64, device=cells.device).expand(len(cells))
    )


def rank_by_counting(bits_RD: Tensor, ranks_K: Tensor, spread_D: Tensor) -> Ranking:
    """Cells of nearly equal magnitude, counted and not sorted: `CELLS` of them, below the largest magnitude.

    `bits_RD`: (R, D) int32, of magnitudes in float32, overwritten; `ranks_K`: (K,) int64, the first rank of each level;
    `spread_D`: of `spread_ranks`.
    """
    count = len(bits_RD)
    # The bits of a float ascend with its magnitude, each octave in as many steps.
    largest_R1 = bits_RD.amax(1, keepdim=True)
    cells_RD = bits_RD.sub_(largest_R1).add_(spread_D).bitwise_right_shift_(SHIFT).add_(CELLS - SPREAD).clamp_(min=0)
    cells_RD += CELLS * torch.arange(count, dtype=torch.int32, device=bits_RD.device)[:, None]
    counts_RC = count_numbers(cells_RD.flatten(), count * CELLS).view(count, CELLS)
    lowest_RC = counts_RC.cumsum(1).sub_(counts_RC)
    first_RK = torch.searchsorted(lowest_RC, ranks_K.expand(count, -1).contiguous())
    below_C = torch.arange(-CELLS, 0, dtype=torch.int32, device=bits_RD.device).add_(SPREAD // 2) << SHIFT
    typical_RC = (largest_R1 + below_C).clamp_(0, LARGEST).view(torch.float32)
    return Ranking(
        cells_RD,
        torch.diff(first_RK, append=first_RK.new_full((count, 1), CELLS)),
        typical_RC.double().mul_(counts_RC),
    )
