"""Records in memory, brought to the device a physical batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.data.augment import Augment
from dprecipe.data.records import Records
from dprecipe.data.records import RecordSource as RecordSource
from dprecipe.training.engine.clipped_sum import BatchPart, count_of, physical_slices
from dprecipe.training.engine.sizes import bytes_for_records, keeps_records, one_size
from dprecipe.training.engine.unit_rows import mark_padding
from dprecipe.training.program.prefetch import carry_to_device, pin_array, prefetch_results, runs_asynchronously

Indices = NDArray[np.int64]
Fetched = tuple[Tensor, Tensor]
"""Features and labels of some records: on the device, or about to be copied there."""
CHUNK_RECORDS = 4096
"""Records that are brought to a device together."""


def resident_batch(records: RecordSource, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Returns the prepared records on the device, where that is a GPU and they take at most a part of its memory:
    fetching them from the machine's memory batch by batch would keep it waiting. `None`: they are fetched."""
    if not keeps_records(device) or not isinstance(records, Records) or not len(records):
        return None
    if records.next_stage is not None:  # what they will be is not known yet
        return None
    first, label = records.batch(slice(0, 1))
    if len(records) * (first.nbytes + label.nbytes) > bytes_for_records(device):
        return None
    features = torch.empty((len(records), *first.shape[1:]), dtype=torch.from_numpy(first).dtype, device=device)
    labels = torch.empty(len(records), dtype=torch.from_numpy(label).dtype, device=device)
    for start in range(0, len(records), CHUNK_RECORDS):
        part = slice(start, start + CHUNK_RECORDS)
        some, some_labels = records.batch(part)
        features[part], labels[part] = torch.from_numpy(some).to(device), torch.from_numpy(some_labels).to(device)
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
        """`augmented` makes the augmentation that draws from a generator; the generator is seeded batch by batch."""
        self.records = records
        self._generator = torch.Generator(device=device)
        self.device = device
        self._augment = augmented(self._generator)
        self.augments = self._augment is not None
        """True if records are augmented: if not, nothing is drawn for them, and `batch` uses no seed."""
        self.units = records.unit_count
        self._resident = resident_batch(records, device)
        self._of_units: tuple[Indices, Indices] | None = None
        if records.units is not None:
            # The records of unit u are order[starts[u]:starts[u + 1]].
            starts = np.zeros(self.units + 1, np.int64)
            np.cumsum(np.bincount(records.units, minlength=self.units), out=starts[1:])
            self._of_units = (np.argsort(records.units, kind="stable"), starts)

    def batch(self, units: Indices, seed: int, groups: Indices | None = None) -> StoredBatch:
        """Returns the records of these units, not yet on the device; increasing unit numbers, or else with `groups`.

        `groups`: for each unit the group, increasing from 0 without gaps, whose records' gradients are averaged;
        each unit is a group of its own when left out.

        `seed` has to be secret and fresh: augmentation draws from one generator record after record, so a seed that
        is known in advance would let one record decide what is drawn for all that follow it.
        """
        if self.augments:
            self._generator.manual_seed(seed)
        if self._of_units is None:
            return StoredBatch(self, units, None if groups is None else torch.from_numpy(groups))
        order, starts = self._of_units
        counts = starts[units + 1] - starts[units]
        # 0 … n-1 within each unit, shifted to where the unit starts.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        numbers = torch.from_numpy(np.repeat(np.arange(len(units)) if groups is None else groups, counts))
        return StoredBatch(self, order[np.repeat(starts[units], counts) + within], numbers)

    def fetched(self, parts: Iterable[Indices]) -> Iterator[Fetched]:
        """Returns the records of each part, for `build_part`: where a device computes by itself and they are not there
        yet, one part ahead, in a thread. Records that come from somewhere else than memory may not like another
        thread."""
        if self._resident is None and runs_asynchronously(self.device) and isinstance(self.records, Records):
            return prefetch_results(self._fetch, parts)
        return map(self._fetch, parts)

    def build_part(self, fetched: Fetched, units: Tensor | None = None, copies: int = 1) -> BatchPart:
        """Puts fetched records on the device, each `copies` times in a row, each copy augmented by itself. To be called
        in the order of the parts: augmentation draws here."""
        features, labels = (carry_to_device(tensor, self.device) for tensor in fetched)
        if copies > 1:
            features, labels = features.repeat_interleave(copies, 0), labels.repeat_interleave(copies, 0)
        if self._augment is not None:
            features = self._augment(features, copies)
        return BatchPart(features, labels, None if units is None else carry_to_device(units, self.device))

    def _fetch(self, indices: Indices) -> Fetched:
        if self._resident is None:
            features, labels = self.records.batch(indices)
            return pin_array(features, self.device), pin_array(labels, self.device)
        features_on, labels_on = self._resident
        chosen = carry_to_device(torch.from_numpy(indices), self.device)
        return features_on.index_select(0, chosen), labels_on.index_select(0, chosen)


@final
@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch of a `Store`; `parts` is what the engine reads."""

    store: Store
    indices: Indices
    units: Tensor | None

    @property
    def gradients(self) -> int:
        return count_of(self.units, len(self.indices))

    def parts(self, size: int) -> Iterator[BatchPart]:
        parts = list(physical_slices(self.units, len(self.indices), size))
        fetched = self.store.fetched(self.indices[part] for part, _ in parts)
        for (_, units), records in zip(parts, fetched, strict=True):
            yield self.store.build_part(records, units)


@final
@dataclass(frozen=True, slots=True)
class UnitRowsBatch:
    """A batch in which each unit is one record of several rows, for `engine.unit_rows`: its records, each repeated
    `copies` times.

    `parts` counts rows. Units are sorted by their number of records and padded to the longest in their part, and on to
    a number of the form 2^k or 3·2^k, because the engine makes a plan for each number. On devices where parts have one
    size, units of different padded numbers are in different parts.
    """

    batch: StoredBatch
    copies: int = 1

    @property
    def gradients(self) -> int:
        return self.batch.gradients

    def parts(self, size: int) -> Iterator[BatchPart]:
        cut = list(self._cut(size))
        for (_, counts_U, records), fetched in zip(
            cut, self.batch.store.fetched(part for part, *_ in cut), strict=True
        ):
            batch = self.batch.store.build_part(fetched, copies=self.copies)
            shape = (len(counts_U), records * self.copies)
            filled_UR = torch.from_numpy(np.arange(records) >= counts_U[:, None])
            filled_UR = carry_to_device(filled_UR.repeat_interleave(self.copies, 1), batch.labels.device)
            labels_UR = mark_padding(torch.unflatten(batch.labels, 0, shape), filled_UR)
            yield BatchPart(torch.unflatten(batch.features, 0, shape), labels_UR)

    def _cut(self, size: int) -> Iterator[tuple[Indices, Indices, int]]:
        """Yields for each part its records, unit after unit; how many each unit has; and to how many each is
        filled up, by repetition of its last one."""
        indices = self.batch.indices
        if self.batch.units is None:
            starts_U, counts_U = np.arange(len(indices)), np.ones(len(indices), dtype=np.int64)
        else:
            counts_U = np.bincount(self.batch.units.numpy())
            starts_U = np.cumsum(counts_U) - counts_U
        longest_first = np.argsort(-counts_U, kind="stable")
        start = 0
        while start < len(longest_first):
            records = _round_up(int(counts_U[longest_first[start]]))
            units = longest_first[start : start + max(1, size // (records * self.copies))]
            if one_size(self.batch.store.device):  # a unit's shape is its own: another's does not decide it
                units = units[[_round_up(int(count)) == records for count in counts_U[units]]]
            within_UR = np.minimum(np.arange(records), counts_U[units][:, None] - 1)
            yield indices[starts_U[units][:, None] + within_UR].ravel(), counts_U[units], records
            start += len(units)


def _round_up(count: int) -> int:
    """Returns the next number of the form 2^k or 3·2^k."""
    power = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= count else power
