"""Records in memory, brought to the device a physical batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from dprecipe.data.load import Records
from dprecipe.training.engine.clipped_sum import Batch, physical

Augment = Callable[[Tensor], Tensor]


@final
class Store:
    """The private records, ordered by unit."""

    def __init__(self, records: Records, device: torch.device, augment: Augment | None = None) -> None:
        order = None if records.units is None else np.argsort(records.units, kind="stable")
        features = records.features if order is None else records.features[order]
        labels = records.labels if order is None else records.labels[order]
        self._features = torch.from_numpy(np.ascontiguousarray(features))
        self._labels = torch.from_numpy(np.ascontiguousarray(labels))
        self._device = device
        self._augment = augment
        self._starts: np.ndarray | None = None
        self.units = len(labels)
        if records.units is not None and order is not None:
            counts = np.bincount(records.units)
            self.units = len(counts)
            self._starts = np.concatenate([[0], np.cumsum(counts)])

    def lot(self, units: np.ndarray) -> StoredLot:
        """The records of these units (increasing unit numbers), not yet in memory."""
        if self._starts is None:
            return StoredLot(self, torch.from_numpy(units), None)
        starts, ends = self._starts[units], self._starts[units + 1]
        counts = ends - starts
        # 0 … n-1 within each unit, shifted to where the unit starts.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = np.repeat(starts, counts) + within
        return StoredLot(self, torch.from_numpy(indices), torch.from_numpy(np.repeat(np.arange(len(units)), counts)))

    def batch(self, indices: Tensor, units: Tensor | None) -> Batch:
        """These records on the device, augmented."""
        features = self._features[indices].to(self._device)
        if self._augment is not None:
            features = self._augment(features)
        return Batch(
            features, self._labels[indices].to(self._device), None if units is None else units.to(self._device)
        )


@final
@dataclass(frozen=True, slots=True)
class StoredLot:
    """A lot of a `Store`; `parts` is what the engine reads."""

    store: Store
    indices: Tensor
    units: Tensor | None

    def parts(self, size: int) -> Iterator[Batch]:
        for part, units in physical(self.units, len(self.indices), size):
            yield self.store.batch(self.indices[part], units)
