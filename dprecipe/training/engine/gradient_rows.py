"""Gradients of single units, a few at a time: from one backward pass where the model allows it.

Layers keep the factors of their gradients (`backward`), and rows are multiplied out when they are asked for. So one
pass serves a whole physical batch, and only the rows at hand are in memory.

Legend: N records in a physical batch, U units among them, R rows at a time, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.training.engine.backward import Loss, find_terms
from dprecipe.training.engine.bookkeeping import MIN_ROWS, pad_records
from dprecipe.training.engine.clipped_sum import Batch, BatchPart, mean_by_unit, per_unit_gradients
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.shares import collect_terms, places_of
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.engine.strategies import chunk_size
from dprecipe.training.engine.taps import Unplanned, trained_of
from dprecipe.training.engine.terms import Products, Term


def gradient_rows(
    model: nn.Module, loss: Loss, batch: BatchPart | Batch, physical_batch: int, at_once: int
) -> Iterator[Tensor]:
    """Yields (R, P), for at most `at_once` units, in turn: the mean of the gradients of each unit's records. Where
    units have several records, or the model has no plan, all units of a physical batch come at once.

    Each result may be overwritten by the next.

    Guarantees: rows are those of `clipped_sum.per_unit_gradients`, to rounding; memory is that of a backward pass, and
    of the rows at hand.
    """
    for part in batch.parts(physical_batch):
        try:
            gradients = _PassGradients(model, loss, part, physical_batch)
        except Unplanned:
            yield from per_unit_gradients(model, loss, part, physical_batch)
            continue
        if part.units is None:
            yield from gradients.rows(at_once)
        else:
            for rows_NP in gradients.rows(gradients.padded):
                yield mean_by_unit(rows_NP, part.units)


@final
class _PassGradients:
    """The gradients of the records of one pass.

    Raises:
        Unplanned: the model can't be differentiated in this way.
    """

    def __init__(self, model: nn.Module, loss: Loss, part: BatchPart, physical_batch: int) -> None:
        features, labels = part.features, part.labels
        plan = plan_of(model, loss, features, labels)
        self._count, self._device = len(labels), features.device
        # As many rows as for sums: see `bookkeeping.MIN_ROWS`, and `sizes`.
        least = physical_batch if one_size(self._device) else min(MIN_ROWS, physical_batch)
        size = math.ceil(least / labels[0].numel())
        self.padded = max(size, self._count)
        """The number of records in the pass."""
        calls = find_terms(model, loss, pad_records(features, size), pad_records(labels, size), plan)
        self._by_name = collect_terms(calls, self.padded, self._device, plan.storable)
        self._places = {name: place for name, (place, _) in places_of(model, None).items()}
        trained = list(trained_of(model).values())
        self._dtype = torch.float64 if any(p.dtype == torch.float64 for p in trained) else torch.float32
        self._size = sum(p.numel() for p in trained)

    def rows(self, at_once: int) -> Iterator[Tensor]:
        """Yields (R, P) for at most `at_once` records, in turn; each overwrites the one before."""
        # Where parts have one size, products have one too, whatever share of them is padding.
        end = self.padded if one_size(self._device) else self._count
        # Parameters that no loss depends on keep their zeros.
        rows_RP = torch.zeros(min(at_once, end), self._size, dtype=self._dtype, device=self._device)
        for start in range(0, self._count, at_once):
            stop = min(start + at_once, end)
            for name, terms in self._by_name.items():
                step = chunk_size(sum(term.per_record for term in terms), self._device)
                for first in range(start, stop, step):
                    few = slice(first, min(first + step, stop))
                    _write(terms, few, rows_RP[first - start : few.stop - start, self._places[name]])
            yield rows_RP[: min(stop, self._count) - start]


def _write(terms: list[Term], part: slice, into_RP: Tensor) -> None:
    """Writes the sum of one parameter's terms, in its own order."""
    first, *more = terms
    if isinstance(first, Products) and first.of_vectors:
        left, right = (vectors[part] for vectors in first.vectors())
        torch.mul(right[:, :, None], left[:, None, :], out=into_RP.view(len(into_RP), right.shape[1], left.shape[1]))
    else:
        into_RP.copy_(first.ordered(first.rows(part)))
    for term in more:
        into_RP += term.ordered(term.rows(part))
