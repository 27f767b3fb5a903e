"""Rows of several parameters in one memory: one norm and one sum for all of them.

A GPU takes longer to start a kernel than to run a small one: parameters with few numbers cost what their kernels do.

Legend: N records, P numbers of all the parameters, padded to whole blocks of `rounding.BLOCK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard, final

import torch
from torch import Tensor

from dprecipe.training.engine.rounding import BLOCK, row_squares
from dprecipe.training.engine.standardised import SumStandardisation, squares_of
from dprecipe.training.engine.strategies import GradientStore, Weights, chunk_size, parts_of, weighted_sum
from dprecipe.training.engine.terms import Products, Rows, Term

VECTORS = 1 << 14
"""Products with vectors of at most this many numbers are multiplied out."""


def is_joinable(terms: Sequence[Term], like: Tensor) -> TypeGuard[Sequence[Products | Rows]]:
    """Returns True for the terms of a parameter whose rows can be columns of a larger memory."""
    term = terms[0]
    if len(terms) > 1 or not isinstance(term, (Products, Rows)):
        return False
    if isinstance(term, Rows):
        return term.values.dtype == like.dtype
    return term.right.dtype == like.dtype and term.groups == 1


def is_cheap(term: Products | Rows) -> bool:
    """Returns True if rows are there, or take less time than to start the kernels of anything better."""
    return isinstance(term, Rows) or (term.of_vectors and term.size <= VECTORS)


def standardisation_of(term: Products | Rows) -> SumStandardisation | None:
    return term.slabs.standardised if isinstance(term, Products) and term.slabs is not None else None


@final
class Joined:
    """Rows of all records, of parameters that are all standardised, or none of them; see `strategies`."""

    def __init__(
        self, products: Sequence[Products], rows: Sequence[Rows], count: int, like: Tensor, store: GradientStore
    ) -> None:
        self._terms: list[Products | Rows] = [*products, *rows]
        self._sizes = [*[term.size for term in products], *[term.values.shape[1] for term in rows]]
        size, first = sum(self._sizes), sum(self._sizes[: len(products)])
        self._rows_NP = store.rows(count, size + -size % BLOCK, like.dtype, like.device)
        self._standardised: list[tuple[SumStandardisation, Tensor]] = []
        columns = torch.split(self._rows_NP[:, :first], self._sizes[: len(products)], 1)
        for term, columns_NP in zip(products, columns, strict=True):
            for part in parts_of(count, chunk_size(term.per_record, like.device)):
                term.rows(part, columns_NP[part])
            if (standardised := standardisation_of(term)) is not None:
                self._standardised.append((standardised, columns_NP))
        if rows:
            self._rows_NP[:, first:size] = torch.cat([term.values for term in rows], 1)
        if size % BLOCK:
            self._rows_NP[:, size:] = 0.0

    def squares(self) -> Tensor:
        return squares_of(self._standardised, self._rows_NP) if self._standardised else row_squares(self._rows_NP)

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        if self._standardised:  # rows are longer than what becomes of them: they are added in double precision
            weights = replace(weights, block_size=1)
        sums = torch.split(weighted_sum(self._rows_NP, weights, owned=True)[: sum(self._sizes)], self._sizes)
        torch._foreach_add_(list(totals), [term.ordered(each) for term, each in zip(self._terms, sums, strict=True)])
