"""Ranks of a gradient's coordinates among the magnitudes of their group, which decide the level each may reach.

Cells are runs of ranks. A coordinate gets the bound of the LOWEST rank of its cell, so that its gradient's magnitudes
are dominated rank by rank by the codeword however coarse the cells are, and whatever decides who is in which.

Legend: R gradients, D coordinates of a group, C cells, K levels.
Source: dprecipe docs/explanation/encoding.md, the box: any ranking is sound whose bounds are dominated by the codeword.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

MAX_SORTED = 4096
"""Largest number of coordinates that are sorted: their ranks are exact."""
OCTAVES = 24
"""Number of octaves below the largest magnitude; all smaller magnitudes share the lowest cell."""
CELLS_PER_OCTAVE = 512
CELLS = OCTAVES * CELLS_PER_OCTAVE
SPREAD = CELLS_PER_OCTAVE // 8
"""Number of cells over which equal magnitudes are spread."""
LARGEST = 0x7F7FFFFF
"""The bits of the largest float32."""
SHIFT = 23 - (CELLS_PER_OCTAVE.bit_length() - 1)
"""Number of the lowest bits of a float32 that do not distinguish cells."""


@final
@dataclass(frozen=True, slots=True)
class Ranking:
    """The cells of R gradients in one group of coordinates, ascending in rank."""

    cells: Tensor
    """(R, D) int32: each coordinate's cell, numbered through: r · C + c."""
    widths: Tensor
    """(R, K) int64: the number of cells that each level covers, those whose lowest rank is one of the level's."""
    weights: Tensor
    """(R, K) float64: approximate sum of the magnitudes at each level, the factor of a codeword's levels."""
    size: int
    """R · C: the number of all cells."""

    def bounds(self, levels_RK: Tensor, out_RD: Tensor) -> Tensor:
        """Returns each coordinate's bound, (R, D), for the levels of each gradient's codeword; written to `out_RD`,
        which is contiguous."""
        bounds = repeat_numbers(levels_RK.reshape(-1), self.widths.reshape(-1), self.size)
        torch.index_select(bounds, 0, self.cells.view(-1), out=out_RD.view(-1))
        return out_RD


def rank_by_sorting(bits_RD: Tensor, ranks_K: Tensor) -> Ranking:
    """Ranks coordinates with a cell for each rank. Among equal magnitudes the first coordinate ranks lowest.

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
    sums_RD = (packed_RD >> 32).int().view(torch.float32).double().cumsum(1)
    sums_RK = sums_RD[:, widths_K.cumsum(0) - 1]
    return Ranking(
        torch.empty_like(cells_RD).scatter_(1, order_RD, cells_RD),
        widths_K.expand(count, -1),
        torch.diff(sums_RK, dim=1, prepend=sums_RK.new_zeros(count, 1)),
        count * size,
    )


def spread_ranks(size: int, device: torch.device) -> Tensor:
    """Returns offsets to the bits of each magnitude, (D,) int32 in [0, SPREAD cells), which spread equal magnitudes.

    Without them, equal magnitudes would share a cell and all get the bound of its lowest rank. Multiples of the golden
    ratio spread any run of them evenly over `SPREAD` cells, at the price that magnitudes less than an eighth of an
    octave apart may change places.
    """
    turns = (torch.arange(size, dtype=torch.int64) * 2654435769) & 0xFFFFFFFF
    return ((turns * (SPREAD << SHIFT)) >> 32).int().to(device)


def count_numbers(cells: Tensor, size: int) -> Tensor:
    """Returns how often each number below `size` occurs, (size,) int64. The order of addition does not matter: these
    are integers."""
    if cells.device.type == "cpu":
        return torch.bincount(cells, minlength=size)
    return count_by_scatter(cells, size)


def count_by_scatter(cells: Tensor, size: int) -> Tensor:
    """Returns the same as `count_numbers`, without reading the largest number, for which the CPU would have to wait for
    a GPU."""
    return torch.zeros(size, dtype=torch.int64, device=cells.device).scatter_add_(
        0, cells.long(), torch.ones((), dtype=torch.int64, device=cells.device).expand(len(cells))
    )


def repeat_numbers(numbers: Tensor, times: Tensor, size: int) -> Tensor:
    """Repeats each number `times` times, (size,); `size` is the total. On a CPU numpy takes a sixth of torch's time."""
    if numbers.device.type == "cpu":
        return torch.from_numpy(np.repeat(numbers.numpy(), times.numpy()))
    return numbers.repeat_interleave(times, output_size=size)


def find_cells(ends_RC: Tensor, ranks_K: Tensor) -> Tensor:
    """Returns the first cell in each row up to which there are at least this many coordinates, for each rank: (R, K)
    int64; ranks ascend."""
    if ends_RC.device.type == "cpu":
        ranks = ranks_K.numpy()
        return torch.from_numpy(np.stack([row_C.searchsorted(ranks) for row_C in ends_RC.numpy()]))
    return torch.searchsorted(ends_RC, ranks_K.expand(len(ends_RC), -1).contiguous())


def rank_by_counting(bits_RD: Tensor, ranks_K: Tensor, spread_D: Tensor) -> Ranking:
    """Ranks coordinates by cells of nearly equal magnitude, counted and not sorted: `CELLS` of them, below the largest
    magnitude.

    `bits_RD`: (R, D) int32, contiguous, of magnitudes in float32, overwritten; `ranks_K`: (K,) int64, the first rank of
    each level; `spread_D`: of `spread_ranks`.
    """
    count, size = bits_RD.shape
    # The bits of a float ascend with its magnitude, in the same number of steps in each octave.
    top_R1 = bits_RD.amax(1, keepdim=True).bitwise_right_shift_(SHIFT)
    firsts_R1 = CELLS * torch.arange(count, dtype=torch.int32, device=bits_RD.device)[:, None]
    # A shifted sum is at most one above the sum of the shifted numbers: this bounds the largest, however it is spread.
    cells_RD = bits_RD.add_(spread_D).bitwise_right_shift_(SHIFT).add_(firsts_R1 - top_R1 + (CELLS - 1 - SPREAD))
    torch.maximum(cells_RD, firsts_R1, out=cells_RD)
    counts_RC = count_numbers(cells_RD.view(-1), count * CELLS).view(count, CELLS)
    # The cell of the last rank of each level; the next level begins with the cell above it.
    ends_K = torch.cat([ranks_K[1:], ranks_K.new_full((1,), size)])
    last_RK = find_cells(counts_RC.cumsum_(1), ends_K)
    first_RK = torch.nn.functional.pad(last_RK[:, :-1] + 1, (1, 0))
    return Ranking(
        cells_RD,
        torch.diff(first_RK, append=first_RK.new_full((count, 1), CELLS)),
        _add_between(_typical(last_RK, top_R1), torch.diff(ends_K, prepend=ends_K.new_zeros(1))),
        count * CELLS,
    )


def _typical(cells_RK: Tensor, top_R1: Tensor) -> Tensor:
    """Returns the approximate magnitude of these cells, (R, K) float64."""
    bits_RK = (cells_RK - (CELLS - 1 - SPREAD // 2) + top_R1 << SHIFT).clamp_(0, LARGEST)
    return bits_RK.int().view(torch.float32).double()


def _add_between(magnitudes_RK: Tensor, counts_K: Tensor) -> Tensor:
    """Returns the sum of the magnitudes of each level, (R, K), as if they were evenly spaced between those of last
    ranks."""
    steps_RK = torch.diff(magnitudes_RK, dim=1, prepend=magnitudes_RK.new_zeros(len(magnitudes_RK), 1))
    return magnitudes_RK * counts_K - steps_RK * ((counts_K - 1) / 2)
