"""Encoded sums of per-unit gradients: each gradient is clipped, rank by rank, into the box of one codeword.

Legend: U units of a physical batch, R of them at a time, P parameters, D coordinates of a group, n codewords, K levels.
Source: Nasr, Shokri and Houmansadr 2020, Algorithms 1 and 2; docs/explanation/encoding.md lists what was repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.mechanisms.encoded.train.ranks import (
    CELLS,
    LARGEST,
    MAX_SORTED,
    Ranking,
    rank_by_counting,
    rank_by_sorting,
    spread_ranks,
)
from dprecipe.training.engine.bookkeeping import pad_records
from dprecipe.training.engine.clipped_sum import Batch, BatchPart, ClippedSum, Loss, parameters_of
from dprecipe.training.engine.gradient_rows import gradient_rows
from dprecipe.training.engine.sizes import free_bytes, one_size, widest_type

BELOW = 1.0 - 2.0**-30
"""Factor that keeps scaled codewords below their norm by more than float64 can round them up."""
BLOCK = 1 << 21
"""Number of coordinates that are encoded at a time on a CPU: few enough to stay in its cache, and enough gradients for
their codewords to be chosen in one product. Elsewhere it is 16 times as many, or as many as fit in a part of the free
memory."""
AT_ONCE = 16
"""Number of gradients that are ranked, and of codes that are clipped, at a time on a CPU, while they stay in its
cache."""
ADDED = 8
"""Number of codes that are added at a time on a CPU, while their sum stays in its cache."""
MAX_BLOCK = 1 << 28
"""Largest number of coordinates that are encoded at a time: the cells of a block are numbered in 32 bits."""
BLOCK_SHARE = 16
"""Divisor of the free memory: a block takes at most this fraction."""
BLOCK_BYTES = 64
"""Memory for one coordinate while it is encoded on a GPU, an upper bound."""


class RankGroup(Protocol):
    """Coordinates `start` to `start + size`, ranked and clipped among themselves."""

    @property
    def start(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> NDArray[np.int64]:
        """(K,): the first rank of each level; ranks count from 0, the smallest magnitude."""

    @property
    def levels(self) -> NDArray[np.float64]:
        """(n, K): the bound at these ranks, ascending, >= 0."""


class CodebookLike(Protocol):
    """Codewords of L2 norm 1, as steps of the rank; its groups cover all parameters, in order."""

    @property
    def groups(self) -> Sequence[RankGroup]: ...


@final
class _Scratch:
    """Memory that the blocks of one call reuse: fresh pages cost as much as the work on them."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str | int, ...], Tensor] = {}

    def like(self, values_RD: Tensor, *use: str | int) -> Tensor:
        """Returns (R, D) float32, contiguous, with any content; an earlier array for the same use is overwritten."""
        numbers = self._numbers.get(use)
        if numbers is None or len(numbers) < values_RD.numel():
            numbers = self._numbers[use] = values_RD.new_empty(values_RD.numel(), dtype=torch.float32)
        return numbers[: values_RD.numel()].view(values_RD.shape)


@final
class _Part:
    """One group, ready to rank and to clip."""

    def __init__(self, group: RankGroup, norm: float, device: torch.device) -> None:
        levels_nK = torch.from_numpy(np.asarray(group.levels, dtype=np.float64))
        self.columns = slice(group.start, group.start + group.size)
        self.levels_nK = levels_nK.to(device)
        self.bounds_nK = _round_down_to_float32(levels_nK * (norm * BELOW)).to(device)
        self._size = group.size
        self._ranks_K = torch.from_numpy(np.asarray(group.ranks, dtype=np.int64)).to(device)
        self._spread_D = spread_ranks(group.size, device) if group.size > MAX_SORTED else None

    @property
    def cells(self) -> int:
        """Number of values that a gradient's ranking takes, an upper bound."""
        return self._size if self._spread_D is None else max(self._size, CELLS)

    def ranking(self, bits_RD: Tensor) -> Ranking:
        if self._spread_D is None:
            return rank_by_sorting(bits_RD, self._ranks_K)
        return rank_by_counting(bits_RD, self._ranks_K, self._spread_D)

    def magnitudes(self, grads_RP: Tensor, number: int, scratch: _Scratch) -> Tensor:
        """Returns (R, D) float32, contiguous; they stay until those of another block have the same `number`."""
        grads_RD = grads_RP[:, self.columns]
        out_RD = scratch.like(grads_RD, "magnitudes", number, self.columns.start)
        return torch.abs(grads_RD, out=out_RD) if grads_RD.dtype == out_RD.dtype else out_RD.copy_(grads_RD.abs())

    def clip(self, grads_RP: Tensor, ranking: Ranking, chosen_R: Tensor, scratch: _Scratch) -> Tensor:
        """Returns this group's part of the codes, (R, D), in the precision of the gradients, or single precision."""
        grads_RD = grads_RP[:, self.columns]
        bounds_RD = ranking.bounds(self.bounds_nK[chosen_R], scratch.like(grads_RD, "bounds", self.columns.start))
        codes_RD = None  # in double precision they must not be rounded
        if grads_RD.dtype == bounds_RD.dtype:
            codes_RD = scratch.like(grads_RD, "codes", self.columns.start)
        codes_RD = torch.minimum(grads_RD, bounds_RD, out=codes_RD)
        return torch.maximum(codes_RD, bounds_RD.neg_(), out=codes_RD)


@final
class Encoder:
    """Clips gradients into the boxes of a codebook's codewords, scaled to L2 norm `norm`.

    `exchanged`: a neighbour changes a unit's gradient instead of adding a unit, so one code replaces another.

    Memory beyond the gradients: the codebook's levels as float64 and float32, 4 bytes a parameter, and for each
    coordinate of a block (`block_size`, or one gradient) about 8 bytes on a CPU, `BLOCK_BYTES` elsewhere.

    Guarantees: in each group the magnitudes of an encoded gradient, sorted, are at most `norm` times those of one
    codeword, the same for all groups, whatever the gradient; so its L2 norm is at most `norm`. It depends on that
    gradient alone.

    Raises:
        ValueError: a codebook that bounds nothing: its groups leave gaps, a codeword does not ascend from zero or
            above, or its norm is above 1.
    """

    def __init__(self, codebook: CodebookLike, norm: float, device: torch.device, *, exchanged: bool = False) -> None:
        self.device = widest_type(device)
        self.dimension = _check_codebook(codebook)
        self.bound = 2 * norm if exchanged else norm
        """Largest L2 distance that one neighbour moves a sum of encoded gradients."""
        self._parts = [_Part(group, norm, self.device) for group in codebook.groups]
        self._words = len(self._parts[0].levels_nK)
        self._rows = max(1, block_size(self.device) // sum(part.cells for part in self._parts))
        self._few = AT_ONCE if self.device.type == "cpu" else self._rows

    @property
    def at_once(self) -> int:
        """Number of gradients that are encoded at a time."""
        return self._rows

    def encode(self, grads_UP: Tensor) -> Tensor:
        """Returns the encoded gradients, (U, P) float64; one that is not finite as float32 becomes zero."""
        self.check(grads_UP.shape[1])
        encoded_UP = torch.empty(grads_UP.shape, dtype=torch.float64, device=self.device)
        for rows, columns, codes_RD in self._codes(grads_UP, _Scratch()):
            into_RD = encoded_UP[rows, columns]
            into_RD[:] = codes_RD[: len(into_RD)]
        return encoded_UP

    def sum(self, gradients: Iterable[Tensor]) -> Tensor:
        """Returns the sum of the encoded gradients of all (U, P), (P,) float64."""
        total, scratch = torch.zeros(self.dimension, dtype=torch.float64, device=self.device), _Scratch()
        for grads_UP in gradients:
            self.check(grads_UP.shape[1])
            for _, columns, codes_RD in self._codes(grads_UP, scratch):
                for added_RD in torch.split(codes_RD, ADDED if self.device.type == "cpu" else self._rows):
                    total[columns] += added_RD.sum(0, dtype=torch.float64)
        return total

    def _codes(self, grads_UP: Tensor, scratch: _Scratch) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yields rows and columns, and their codes, (R, D). If all parts have one size, so have the blocks: zeros
        follow the last gradients.

        The codewords of a block are chosen in one product. Before and after, its gradients are ranked and clipped a few
        at a time, which stay in a CPU's cache.
        """
        for start in range(0, len(grads_UP), self._rows):
            grads_RP = grads_UP[start : start + self._rows].to(self.device)
            if one_size(self.device):
                grads_RP = pad_records(grads_RP, self._rows)
            parts = torch.split(grads_RP, self._few)
            few = [self._rank(few_RP, number, scratch) for number, few_RP in enumerate(parts)]
            chosen = torch.split(self._nearest([rankings for _, rankings in few]), self._few)
            for number, ((few_RP, rankings), chosen_R) in enumerate(zip(few, chosen, strict=True)):
                rows = slice(start + number * self._few, start + number * self._few + len(few_RP))
                for part, ranking in zip(self._parts, rankings, strict=True):
                    yield rows, part.columns, part.clip(few_RP, ranking, chosen_R, scratch)

    def _rank(self, grads_RP: Tensor, number: int, scratch: _Scratch) -> tuple[Tensor, list[Ranking]]:
        """Returns the gradients, with zeros for those that are not finite as float32, and the ranking of each group."""
        bits = [part.magnitudes(grads_RP, number, scratch).view(torch.int32) for part in self._parts]
        finite_R1 = torch.stack([bits_RD.amax(1) for bits_RD in bits]).amax(0)[:, None] <= LARGEST
        # Asking a GPU takes longer than replacing nothing.
        if one_size(self.device) or not bool(finite_R1.all()):
            grads_RP = torch.where(finite_R1, grads_RP, 0)
            bits = [torch.where(finite_R1, bits_RD, 0) for bits_RD in bits]
        return grads_RP, [part.ranking(bits_RD) for part, bits_RD in zip(self._parts, bits, strict=True)]

    def _nearest(self, rankings: list[list[Ranking]]) -> Tensor:
        """Returns the codeword of largest cosine similarity, (R,); in float64, for they are nearly alike. `rankings`:
        of a few gradients each, of each group."""
        products_Rn = torch.zeros(
            sum(len(groups[0].cells) for groups in rankings), self._words, dtype=torch.float64, device=self.device
        )
        if self._words > 1:
            for part, *of_part in zip(self._parts, *rankings, strict=True):
                products_Rn.addmm_(torch.cat([ranking.weights for ranking in of_part]), part.levels_nK.T)
        return products_Rn.argmax(1)

    def check(self, parameters: int) -> None:
        """Raises ValueError if the codebook is for another number of parameters."""
        if parameters != self.dimension:
            raise ValueError(f"a codebook for {self.dimension:,} parameters can't encode gradients of {parameters:,}")


def encoded_sum(
    model: nn.Module, loss: Loss, batch: BatchPart | Batch, encoder: Encoder, physical_batch: int
) -> ClippedSum:
    """Encodes each unit's gradient and adds them up, `physical_batch` records at a time.

    A unit's gradient is the mean of its records' gradients. A unit with a non-finite gradient contributes zero.

    Guarantees: adding or removing one unit moves the result by a vector in the box of one codeword (see `Encoder`), but
    for the rounding of float64 sums, and by at most the bound in L2 norm; an empty batch gives exactly zero, and the
    model is not called; memory is that of one physical batch and the encoder's.
    """
    encoder.check(sum(p.numel() for p in parameters_of(model).values()))
    gradients = gradient_rows(model, loss, batch, physical_batch, encoder.at_once)
    return ClippedSum(encoder.sum(gradients), encoder.bound)


def block_size(device: torch.device) -> int:
    """Returns the number of coordinates that are encoded at a time: a function of the device and its free memory."""
    if device.type == "cpu":
        return BLOCK
    return min(MAX_BLOCK, max(BLOCK << 4, free_bytes(device) // BLOCK_SHARE // BLOCK_BYTES))


def _round_down_to_float32(values: Tensor) -> Tensor:
    """Returns the largest float32 that are at most these float64."""
    single = values.float()
    return torch.where(single.double() > values, torch.nextafter(single, torch.zeros_like(single)), single)


def _check_codebook(codebook: CodebookLike) -> int:
    """Checks a codebook and returns the number of parameters that it covers."""
    covered = 0
    squares_n: Any = 0.0
    for group in codebook.groups:
        starts = np.append(group.ranks, group.size)
        if group.start != covered or starts[0] != 0 or (np.diff(starts) <= 0).any():
            raise ValueError("the groups or the ranks of a codebook leave gaps")
        if not (np.diff(group.levels, axis=1, prepend=0) >= 0).all():
            raise ValueError("a codeword does not ascend from zero or above")
        squares_n = squares_n + group.levels**2 @ np.diff(starts)
        covered += group.size
    if not (squares_n <= 1 + 1e-12).all():
        raise ValueError("a codeword has a norm above 1")
    return covered
