"""Records in memory, brought to the device a physical batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.data.raw import Labels
from dprecipe.training.engine.clipped_sum import Batch, physical

Augment = Callable[[Tensor], Tensor]
Indices = NDArray[np.int64]


class RecordSource(Protocol):
    """What a store reads from: `dprecipe.data.records.Records`, or made-up records in a rehearsal."""

    @property
    def units(self) -> Indices | None: ...
    @property
    def unit_count(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, indices: Indices | slice) -> tuple[NDArray[np.float32], Labels]: ...


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
        self._device = device
        self._augment = augmented(self._generator)
        self.units = records.unit_count
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

    def batch(self, indices: Indices, units: Tensor | None) -> Batch:
        """These records on the device, augmented."""
        features, labels = (torch.from_numpy(array).to(self._device) for array in self._records.batch(indices))
        if self._augment is not None:
            features = self._augment(features)
        return Batch(features, labels, None if units is None else units.to(self._device))


@final
@dataclass(frozen=True, slots=True)
class StoredLot:
    """A lot of a `Store`; `parts` is what the engine reads."""

    store: Store
    indices: Indices
    units: Tensor | None

    def parts(self, size: int) -> Iterator[Batch]:
        for part, units in physical(self.units, len(self.indices), size):
            yield self.store.batch(self.indices[part], units)
