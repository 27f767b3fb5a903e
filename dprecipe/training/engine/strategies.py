"""Strategies for the norms of single records' gradients, and for their weighted sum, for parameters of one layer.

Guarantees of each strategy: let g be the gradients whose norms `squares` returns. `add` adds the sum of w·g, and
nothing of records with weight zero. Numbers that belong to one record may be in single precision until their norm is
taken. Whatever adds records, or cancels after the norm was taken, is in double precision, with one exception: numbers
whose norm was taken are summed in single precision for `Weights.block_size` records at a time; `rounding.Reserve`
counts the error.

Legend: N records, R some of them, T positions, I inputs, O outputs, P numbers of the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, final

import torch
from torch import Tensor

from dprecipe.training.engine.fused import Fused
from dprecipe.training.engine.rounding import BLOCK, BLOCKS, row_squares
from dprecipe.training.engine.standardised import SumStandardisation, squares_of
from dprecipe.training.engine.terms import Lookups, OfLayer, Products, Rows, Term

CACHE = 3 << 17
"""Numbers processed at a time on a CPU, so that they stay in its cache: 1.5 MiB in single precision."""
WIDENED_NUMBERS = 1 << 20
"""Numbers converted to double precision at a time for a product."""
LARGE = 1 << 14
"""Single precision does not speed up sums of products with fewer numbers."""
MARGIN = 2.0**-53


@final
@dataclass(frozen=True)
class Weights:
    """The factor of each record's gradient."""

    exact: Tensor
    """(N,) float64."""
    sound: bool = False
    """No weight is zero: the numbers of all records are finite."""
    block_size: int = 1
    """The number of records that may be added in single precision."""
    fresh: bool = False
    """The totals are zero before the addition."""
    separate_blocks: bool = False
    """Products of blocks are added in double precision: a compiler would merge them into one, in single precision."""

    @cached_property
    def rounded(self) -> Tensor:
        """(N,) float32."""
        return self.exact.float()

    def clean(self, values: Tensor, part: slice = slice(None), *, owned: bool = False) -> Tensor:
        """Returns (R, …): the values, with zeros for records with weight zero, whose values may be non-finite. `owned`:
        the caller's own tensor, which may be overwritten; on a CPU only these records are then."""
        if self.sound:
            return values
        if owned and values.device.type == "cpu":
            values[~(self.exact[part] > 0)] = 0.0
            return values
        added = (self.exact[part] > 0).view(-1, *[1] * (values.dim() - 1))
        return values.masked_fill_(~added, 0.0) if owned else torch.where(added, values, 0.0)


class Strategy(Protocol):
    def squares(self) -> Tensor:
        """Returns (N,) float64: the squared norm of each record's gradient, increased by what rounding may have
        removed."""

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        """Adds the weighted sum to `totals`, (P,) float64 for each parameter. Call after `squares`."""


@final
class GradientStore:
    """Memory that the next sum reuses: fresh pages cost as much as writing to them."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def rows(self, count: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns (count, size), with any content; earlier results of this method are overwritten."""
        needed, numbers = count * size, self._numbers
        if numbers.numel() < needed or numbers.dtype != dtype or numbers.device != device:
            self._numbers = torch.empty(needed, dtype=dtype, device=device)
        return self._numbers[:needed].view(count, size)


@final
class Small:
    """Rows that are already computed, for any number of parameters."""

    def __init__(self, terms: Sequence[Rows | OfLayer], count: int) -> None:
        values = [term.rows(slice(0, count)) for term in terms]
        self._sizes = [rows.shape[1] for rows in values]
        self._rows_NP = values[0] if len(values) == 1 else torch.cat(values, 1)

    def squares(self) -> Tensor:
        return row_squares(self._rows_NP)

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        torch._foreach_add_(list(totals), torch.split(weighted_sum(self._rows_NP, weights), self._sizes))


@final
class StoredGradients:
    """Rows of all records, stored from the norms to the sum: in `store`, if one is given."""

    def __init__(
        self, terms: Sequence[Term], count: int, size: int, like: Tensor, store: GradientStore | None = None
    ) -> None:
        self._terms = terms
        self._parts = list(parts_of(count, chunk_size(sum(term.per_record for term in terms), like.device)))
        self._rows_NP = (GradientStore() if store is None else store).rows(count, size, like.dtype, like.device)

    def squares(self) -> Tensor:
        return torch.cat([_rows_and_squares(self._terms, part, self._rows_NP[part])[1] for part in self._parts])

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        weights = _for_rows(self._terms, weights)
        _add_ordered(self._terms, totals, weighted_sum(self._rows_NP, weights, owned=True))


@final
class Recomputed:
    """Rows of a few records at a time, discarded after their norms and computed again for the sum."""

    def __init__(self, terms: Sequence[Term], count: int, size: int, like: Tensor) -> None:
        self._terms = terms
        self._step = chunk_size(sum(term.per_record for term in terms), like.device)
        self._few_RP = like.new_empty(min(self._step, count), size)
        self._parts = list(parts_of(count, self._step))
        self._squares_N = torch.empty(0)

    def _compute_rows(self, part: slice) -> tuple[Tensor, Tensor]:
        return _rows_and_squares(self._terms, part, self._few_RP[: part.stop - part.start])

    def squares(self) -> Tensor:
        self._squares_N = torch.cat([self._compute_rows(part)[1] for part in self._parts])
        return self._squares_N

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        weights = _for_rows(self._terms, weights)
        sum_P = weights.exact.new_zeros(self._few_RP.shape[1])
        for part in self._parts:
            rows_RP, squares_R = self._compute_rows(part)
            # A product that is computed again may have other bits. If its norm has grown, it is scaled back.
            grown_R = (self._squares_N[part] / squares_R).sqrt().nan_to_num(1.0).clamp(max=1.0)
            again = Weights(weights.exact[part] * grown_R, weights.sound, weights.block_size)
            sum_P += weighted_sum(rows_RP, again, owned=True)
        _add_ordered(self._terms, totals, sum_P)


@final
class Vectors:
    """A product with vectors, and its bias: norms from two lengths, and one matrix product for the sum.

    Source: I. Goodfellow, "Efficient Per-Example Gradient Computations", 2015.
    """

    def __init__(self, left_NI: Tensor, right_NO: Tensor, *, bias: bool) -> None:
        self._left_NI, self._right_NO = left_NI, right_NO
        self._bias = bias

    def squares(self) -> Tensor:
        squares_N = row_squares(self._left_NI, BLOCK // 2)
        return (squares_N.add_(1.0) if self._bias else squares_N) * row_squares(self._right_NO, BLOCK // 2)

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        left_NI, right_NO = weights.clean(self._left_NI), weights.clean(self._right_NO)
        total_OI = totals[0].view(right_NO.shape[1], -1)
        few = weights.block_size > 1 and len(left_NI) <= BLOCKS * weights.block_size
        if few and left_NI.dtype == torch.float32 and total_OI.numel() >= LARGE:
            blocks = list(parts_of(len(left_NI), weights.block_size))
            weighted_NO = right_NO * weights.rounded[:, None]
            sum_OI = weighted_NO[blocks[0]].T @ left_NI[blocks[0]]
            for block in blocks[1:]:
                if weights.separate_blocks:
                    total_OI += sum_OI.double()
                    sum_OI = weighted_NO[block].T @ left_NI[block]
                else:
                    sum_OI += weighted_NO[block].T @ left_NI[block]
            if weights.fresh and not weights.separate_blocks:
                total_OI.copy_(sum_OI)
            else:
                total_OI += sum_OI.double()
            if self._bias:
                totals[1] += weighted_NO.sum(0, dtype=torch.float64)
            return
        weighted_NO = right_NO * weights.exact[:, None]
        total_OI.addmm_(weighted_NO.T, left_NI.double())
        if self._bias:
            totals[1] += weighted_NO.sum(0)


@final
class Ghost:
    """Norms from products of inputs, and of gradients, at pairs of positions; one matrix product for the sum.

    Source: X. Li et al., "Large Language Models Can Be Strong Differentially Private Learners", ICLR 2022.
    """

    def __init__(self, term: Products, count: int) -> None:
        self._term = term
        self._count = count

    def squares(self) -> Tensor:
        term = self._term
        per_record = term.positions * (term.inputs + term.outputs + 2 * term.positions)
        return torch.cat(
            [self._squares(part) for part in parts_of(self._count, chunk_size(per_record, term.right.device))]
        )

    def _squares(self, part: slice) -> Tensor:
        term = self._term
        left_RTI, right_ROT = term.left(part)[:, 0].double(), term.right[part, 0].double()
        left_RTT, right_RTT = left_RTI @ left_RTI.mT, right_ROT.mT @ right_ROT
        lengths_R = (left_RTT.diagonal(dim1=1, dim2=2) * right_RTT.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        # Positions can cancel: the rounding error of their products is added.
        operations = term.inputs + term.outputs + term.positions**2 + 8
        return left_RTT.mul_(right_RTT).sum((1, 2)).clamp(min=0.0) + 2 * operations * MARGIN * lengths_R.square()

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        term = self._term
        sum_P = torch.zeros_like(totals[0])
        step = chunk_size(term.positions * (term.inputs + term.outputs), sum_P.device, WIDENED_NUMBERS)
        for part in parts_of(self._count, step):
            left = weights.clean(term.left(part)[:, 0].double(), part).flatten(0, 1)
            right = weights.clean(term.right[part, 0].double(), part) * weights.exact[part, None, None]
            sum_P.view(term.outputs, -1).addmm_(right.movedim(0, 1).flatten(1), left)
        totals[0].add_(term.contracted(sum_P))


@final
class Sparse:
    """Lookups in a table: only the rows that a record looked up are stored for it."""

    def __init__(self, term: Lookups) -> None:
        self._term = term

    def squares(self) -> Tensor:
        indices_NT, gradients = self._term.indices, self._term.gradients.double()
        # Equal lookups of a record are added at the position of the first of them.
        sorted_NT, order_NT = torch.sort(indices_NT, 1)
        starts_NT = torch.nn.functional.pad(sorted_NT[:, 1:] != sorted_NT[:, :-1], (1, 0)).cumsum(1)
        cells_NT = torch.empty_like(starts_NT).scatter_(1, order_NT, starts_NT)
        count, positions = indices_NT.shape
        cells_NT += torch.arange(count, device=indices_NT.device)[:, None] * positions
        sums = gradients.new_zeros(count * positions, gradients.shape[2])
        sums.index_add_(0, cells_NT.flatten(), gradients.flatten(0, 1))
        return row_squares(sums.view(count, -1))

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        rows = weights.clean(self._term.gradients).double() * weights.exact[:, None, None]
        totals[0].view(self._term.entries, -1).index_add_(0, self._term.indices.flatten(), rows.flatten(0, 1))


def _rows(terms: Sequence[Term], part: slice, out_RP: Tensor) -> Tensor:
    """Returns (R, P), written to `out_RP`: in the term's order, or in the parameter's order for several terms."""
    if len(terms) == 1:
        return terms[0].rows(part, out_RP)
    out_RP.copy_(terms[0].ordered(terms[0].rows(part)))
    for term in terms[1:]:
        out_RP += term.ordered(term.rows(part))
    return out_RP


def _rows_and_squares(terms: Sequence[Term], part: slice, out_RP: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `_rows`, and (R,) float64: the squared norms of what `_add_ordered` makes of them."""
    rows_RP, standardised = _rows(terms, part, out_RP), _standardised(terms)
    return rows_RP, row_squares(rows_RP) if standardised is None else squares_of([(standardised, rows_RP)], rows_RP)


def _for_rows(terms: Sequence[Term], weights: Weights) -> Weights:
    """Weights for a sum of `_rows`: those that are longer than what becomes of them are added in double precision."""
    return weights if _standardised(terms) is None else replace(weights, block_size=1)


def _standardised(terms: Sequence[Term]) -> SumStandardisation | None:
    term = terms[0] if len(terms) == 1 else None
    return term.slabs.standardised if isinstance(term, Products) and term.slabs is not None else None


def _add_ordered(terms: Sequence[Term], totals: Sequence[Tensor], sum_P: Tensor) -> None:
    """Adds a sum of `_rows` in the parameter's order."""
    totals[0].add_(sum_P if len(terms) > 1 else terms[0].ordered(sum_P))


def weighted_sum(rows_NP: Tensor, weights: Weights, *, owned: bool = False) -> Tensor:
    """Returns (P,) float64: the weighted sum of the rows. `owned`: see `Weights.clean`."""
    if weights.block_size > 1 and rows_NP.dtype == torch.float32 and len(rows_NP):
        if rows_NP.device.type != "cpu":
            return _sum_blocks(weights.clean(rows_NP, owned=owned), weights)
        rounded_N = weights.rounded
        blocks = list(parts_of(len(rows_NP), weights.block_size))
        sums = ((weights.clean(rows_NP[at], at, owned=owned).T @ rounded_N[at]).double() for at in blocks)
        total_P = next(sums)
        for each_P in sums:
            total_P += each_P
        return total_P
    columns = [
        sum_in_double(weights.clean(rows_NP[:, at], owned=owned), weights.exact)
        for at in parts_of(rows_NP.shape[1], chunk_size(2 * len(rows_NP), rows_NP.device))
    ]
    return columns[0] if len(columns) == 1 else torch.cat(columns)


def _sum_in_double(rows_NP: Tensor, weights_N: Tensor) -> Tensor:
    """Returns (P,) float64: the weighted sum of finite rows."""
    return rows_NP.double().T @ weights_N


sum_in_double = Fused(_sum_in_double, lambda rows_NP, weights_N: (rows_NP.double() * weights_N[:, None]).sum(0))


def _sum_blocks(rows_NP: Tensor, weights: Weights) -> Tensor:
    """Computes `weighted_sum` of rows that are finite, in single precision within a block: one product for all whole
    blocks, since a GPU takes longer to start products than to make them."""
    size, rounded_N = _even_block(len(rows_NP), weights.block_size), weights.rounded
    whole = len(rows_NP) // size * size
    blocks_BcP = torch.unflatten(rows_NP[:whole], 0, (-1, size))
    sum_P = torch.bmm(rounded_N[:whole].view(-1, 1, size), blocks_BcP)[:, 0].sum(0, dtype=torch.float64)
    if whole < len(rows_NP):
        sum_P += rounded_N[whole:] @ rows_NP[whole:]
    return sum_P


def _even_block(count: int, largest: int) -> int:
    """Returns a size of blocks that divides `count`, if there is one that is large enough; else `largest`."""
    largest = min(largest, count)
    return next((size for size in range(largest, largest // 2, -1) if count % size == 0), largest)


def chunk_size(per_record: int, device: torch.device, numbers: int = CACHE) -> int:
    """Returns the number of records to process at a time, given how many numbers each one takes."""
    return max(1, (numbers if device.type == "cpu" else numbers << 10) // max(1, per_record))


def parts_of(count: int, step: int) -> Iterator[slice]:
    """Yields slices of at most `step` of `count` records."""
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
