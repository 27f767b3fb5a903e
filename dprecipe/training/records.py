"""Records in memory, brought to the device a physical batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.data.records import Records
from dprecipe.data.records import RecordSource as RecordSource
from dprecipe.training.engine.clipped_sum import Batch, count_of, physical
from dprecipe.training.engine.several import FILLED
from dprecipe.training.engine.sizes import keeps_records, one_size, room_for_records

Augment = Callable[[Tensor], Tensor]
Indices = NDArray[np.int64]
AT_ONCE = 4096
"""Records that are brought to a device together."""


def resident(records: RecordSource, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """The prepared records on the device, where that is a GPU and they take at most a part of its memory: fetched one
    batch at a time from the machine's, they keep it waiting. `None`: they are fetched."""
    if not keeps_records(device) or not isinstance(records, Records) or not len(records):
        return None
    first, label = records.batch(slice(0, 1))
    if len(records) * (first.nbytes + label.nbytes) > room_for_records(device):
        return None
    features = torch.empty((len(records), *first.shape[1:]), dtype=torch.from_numpy(first).dtype, device=device)
    labels = torch.empty(len(records), dtype=torch.from_numpy(label).dtype, device=device)
    for start in range(0, len(records), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        some, of_them = records.batch(part)
        features[part], labels[part] = torch.from_numpy(some).to(device), torch.from_numpy(of_them).to(device)
    return features, labels


@final
class Store:
    """The private records, numbered by unit."""

    def __init__(
        self,
        records: RecordSource,
        device: torch.device,
        augmented: Callable[[torch.Generator], Augment | None] = lambda generator: None,
    ) -> None:
        """`augmented` makes the augmentation that draws from a generator; the generator is seeded lot by lot."""
        self._records = records
        self._generator = torch.Generator(device=device)
        self.device = device
        self._augment = augmented(self._generator)
        self.units = records.unit_count
        self._resident = resident(records, device)
        self._of_units: tuple[Indices, Indices] | None = None
        if records.units is not None:
            # The records of unit u are order[starts[u]:starts[u + 1]].
            counts = np.bincount(records.units, minlength=self.units)
            order = np.argsort(records.units, kind="stable")
            self._of_units = (order, np.concatenate([[0], np.cumsum(counts)]))

    def lot(self, units: Indices, seed: int, groups: Indices | None = None) -> StoredLot:
        """The records of these units, not yet on the device; increasing unit numbers, or else with `groups`.

        `groups`: for each unit the group, increasing from 0 without gaps, whose records' gradients are averaged;
        each unit is a group of its own when left out.

        `seed` has to be secret and fresh: augmentation draws from one generator record after record, so a seed that
        is known in advance would let one record decide what is drawn for all that follow it.
        """
        self._generator.manual_seed(seed)
        if self._of_units is None:
            return StoredLot(self, units, None if groups is None else torch.from_numpy(groups))
        order, starts = self._of_units
        counts = starts[units + 1] - starts[units]
        # 0 … n-1 within each unit, shifted to where the unit starts.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        numbers = torch.from_numpy(np.repeat(np.arange(len(units)) if groups is None else groups, counts))
        return StoredLot(self, order[np.repeat(starts[units], counts) + within], numbers)

    def batch(self, indices: Indices, units: Tensor | None = None, copies: int = 1) -> Batch:
        """These records on the device, each `copies` times in a row, each copy augmented by itself."""
        if self._resident is None:
            features, labels = (torch.from_numpy(array).to(self.device) for array in self._records.batch(indices))
        else:
            chosen = torch.from_numpy(indices).to(self.device)
            features, labels = (held.index_select(0, chosen) for held in self._resident)
        if copies > 1:
            features, labels = features.repeat_interleave(copies, 0), labels.repeat_interleave(copies, 0)
        if self._augment is not None:
            features = self._augment(features)
        return Batch(features, labels, None if units is None else units.to(self.device))


@final
@dataclass(frozen=True, slots=True)
class StoredLot:
    """A lot of a `Store`; `parts` is what the engine reads."""

    store: Store
    indices: Indices
    units: Tensor | None

    @property
    def gradients(self) -> int:
        return count_of(self.units, len(self.indices))

    def parts(self, size: int) -> Iterator[Batch]:
        for part, units in physical(self.units, len(self.indices), size):
            yield self.store.batch(self.indices[part], units)


@final
@dataclass(frozen=True, slots=True)
class LotOfSeveral:
    """A lot in which each unit is one record of several rows, for `engine.several`: its records, each `copies` times.

    `parts` counts rows. Units come by their number of records, and are filled up to the longest beside them, and on to
    a number of the form 2^k or 3·2^k: the engine makes a plan for each. Where parts have one size, units of another
    such number are in parts of their own.
    """

    lot: StoredLot
    copies: int = 1

    @property
    def gradients(self) -> int:
        return self.lot.gradients

    def parts(self, size: int) -> Iterator[Batch]:
        indices = self.lot.indices
        if self.lot.units is None:
            starts_U, counts_U = np.arange(len(indices)), np.ones(len(indices), dtype=np.int64)
        else:
            counts_U = np.bincount(self.lot.units.numpy())
            starts_U = np.cumsum(counts_U) - counts_U
        longest_first = np.argsort(-counts_U, kind="stable")
        start = 0
        while start < len(longest_first):
            records = _rounded_up(int(counts_U[longest_first[start]]))
            units = longest_first[start : start + max(1, size // (records * self.copies))]
            if one_size(self.lot.store.device):  # a unit's shape is its own: another's does not decide it
                units = units[[_rounded_up(int(count)) == records for count in counts_U[units]]]
            within_UR = np.minimum(np.arange(records), counts_U[units][:, None] - 1)
            batch = self.lot.store.batch(indices[starts_U[units][:, None] + within_UR].ravel(), copies=self.copies)
            shape = (len(units), records * self.copies)
            filled_UR = torch.from_numpy(np.arange(records) >= counts_U[units][:, None])
            filled_UR = filled_UR.repeat_interleave(self.copies, 1).to(batch.labels.device)
            labels_UR = torch.unflatten(batch.labels, 0, shape).masked_fill(filled_UR, FILLED)
            yield Batch(torch.unflatten(batch.features, 0, shape), labels_UR)
            start += len(units)


def _rounded_up(count: int) -> int:
    """The next number of the form 2^k or 3·2^k."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= count else power
