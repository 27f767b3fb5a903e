"""Records: features, labels, and who each record belongs to, in memory or mapped into it (`dprecipe.data.storage`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.paid.apply import encode_items
from dprecipe.data.paid.constants import ItemConstants, PublicConstants, StageConstants
from dprecipe.data.paid.schema import DpCategories, DpVocabulary, item_columns
from dprecipe.data.preprocess import Floats, ReadyStep, is_pending, prepare_features
from dprecipe.data.raw import Labels, TextValues
from dprecipe.data.schema import Step
from dprecipe.data.storage import IN_MEMORY_BYTES, SPILLING
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault
from dprecipe.progress import Progress

PREPARE_ONCE_BYTES = IN_MEMORY_BYTES
"""Below this many bytes of prepared features they are prepared once: simpler, and each step of training is
faster. Above it the features stay as they were read, pixels a quarter of the size, in files that are mapped, and each
physical batch is prepared when it is used. Scattering is too slow for that: it is always done once."""

PREPARE_ROWS = 256
QUIET_SECONDS = 2.0


class RecordSource(Protocol):
    """What a run reads from: `Records`, synthetic ones in a rehearsal, or what Python brings along."""

    @property
    def units(self) -> NDArray[np.int64] | None: ...
    @property
    def unit_count(self) -> int: ...
    def __len__(self) -> int: ...
    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """N records, aligned: row i of each array is record i.

    `features` is (N, D) or (N, C, H, W): float32, or uint8 for pixels that are not prepared yet; in
    memory or mapped. `labels` is int64
    (N,), or float32 in [-1, 1] where a number is to be predicted; zeros for public records, whose labels are never
    read. `units` is int64 (N,), dense ids 0 … U-1, or None where each record is a unit. `pending` are the steps that
    `batch` has still to apply, and `texts` the columns whose items one of them will release. `identities` name
    training records for good: what deals them to teachers. `fields` are the names of the arrays that `of_fields` has
    stacked.
    """

    features: NDArray[np.generic]
    labels: Labels
    units: NDArray[np.int64] | None = None
    pending: tuple[ReadyStep, ...] = ()
    identities: Identities | None = None
    fields: tuple[str, ...] = ()
    texts: Mapping[str, TextValues] = field(default_factory=dict)

    @staticmethod
    def of_fields(
        fields: Mapping[str, NDArray[np.generic]], labels: Labels, units: NDArray[np.int64] | None = None
    ) -> Records:
        """Records of several arrays of whole numbers, each (N, …) of one shape, which a module from Python takes by
        name: `{"input_ids": …, "attention_mask": …}`.

        Raises:
            DataFault: there are none, they are not of one shape, or not of whole numbers.
        """
        arrays = {name: np.asarray(array) for name, array in fields.items()}
        if len({array.shape for array in arrays.values()}) != 1:
            shapes = ", ".join(f"{name}: {list(array.shape)}" for name, array in arrays.items())
            raise DataFault(f"fields are not of one shape: {shapes or 'there are none'}", "pad them to one length")
        wrong = [name for name, array in arrays.items() if array.dtype.kind not in "iub"]
        if wrong:
            raise DataFault(
                f"field {wrong[0]!r} has numbers of type {arrays[wrong[0]].dtype}, fields are whole numbers",
                "pass token numbers and masks as integers",
            )
        stacked = np.stack([array.astype(np.int64) for array in arrays.values()], 1)
        return Records(stacked, labels, units, fields=tuple(arrays))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def unit_count(self) -> int:
        """The number of units; of records, where each is a unit."""
        return len(self) if self.units is None else int(self.units.max(initial=-1)) + 1

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[Floats, Labels]:
        """The prepared features, float32 (B, …), and the labels (B,) of these records; B may be 0."""
        if isinstance(indices, slice):
            return prepare_features(self.features[indices], self.pending), self.labels[indices]
        # `take` copies whole rows, in half the time of an array as an index.
        return prepare_features(self.features.take(indices, axis=0), self.pending), self.labels.take(indices)

    def prepared(self, limit: int = PREPARE_ONCE_BYTES) -> Records:
        """The same records with their constant steps applied, if that takes at most `limit` bytes.

        With `scattering` among the steps it is done whatever it takes; where it takes long, a terminal shows progress.
        A log gets nothing: the number of records may be private.
        """
        ready = self.pending[: self.next_stage]
        slow = self.awaits_scattering
        if self.features.size * 4 > limit and not slow:
            return self
        result = SPILLING.rows("features")
        began, progress = time.monotonic(), None
        for start in range(0, len(self), PREPARE_ROWS):  # in parts: a step's temporaries stay small
            part = slice(start, start + PREPARE_ROWS)
            result.append(prepare_features(self.features[part], ready))
            if progress is None and slow and time.monotonic() - began > QUIET_SECONDS:
                progress = Progress("scattering", "record", len(self), private=True)
            if progress is not None:
                progress.show(min(part.stop, len(self)))
        if progress is not None:
            progress.end(len(self))
        features = result.finish(prepare_features(self.features[:0], ready))
        return replace(self, features=features, pending=self.pending[len(ready) :])

    def with_all_constants(self, released: Sequence[StageConstants]) -> Records:
        """The same records with what the first paid steps that are pending have released, and then all steps applied up
        to the next one that is.

        Raises:
            ValueError: see `with_constants`.
        """
        records = self
        for constants in released:
            records = records.prepared().with_constants(constants)
        return records.prepared()

    @property
    def awaits_scattering(self) -> bool:
        """Whether `scattering` is among the steps that `prepared` applies."""
        return any(isinstance(step, Step) and step.scattering is not None for step in self.pending[: self.next_stage])

    @property
    def next_stage(self) -> int | None:
        """Where in `pending` the first paid step stands that has not released its constants; None: there is none."""
        return next((index for index, step in enumerate(self.pending) if is_pending(step)), None)

    def with_constants(self, constants: StageConstants) -> Records:
        """The same records, with what the first paid step that is still pending has released.

        Raises:
            ValueError: no paid step is pending, or another kind of it.
        """
        if self.next_stage is None:
            raise ValueError("no paid step is pending")
        step = self.pending[self.next_stage]
        if isinstance(step, PublicConstants) or getattr(step, constants.kind) is None:
            raise ValueError(f"the pending step is no {constants.kind}")
        pending = (*self.pending[: self.next_stage], constants, *self.pending[self.next_stage + 1 :])
        if not isinstance(constants, ItemConstants):
            return replace(self, pending=pending)
        operation = step.operation
        if not isinstance(operation, DpCategories | DpVocabulary):
            raise ValueError("a step of items has columns")
        names = item_columns(operation)
        result, texts = SPILLING.rows("features"), dict(self.texts)
        columns = [texts.pop(name) for name in names]
        own = [constants.model_copy(update={"items": (items,)}) for items in constants.items]
        for start in range(0, len(self), PREPARE_ROWS):
            part = slice(start, start + PREPARE_ROWS)
            features = self.features[part].copy()
            for column, released in zip(columns, own, strict=True):
                encoded = encode_items([column.values[part]], released)
                features[:, column.start : column.start + constants.width + 1] = encoded
            result.append(features)
        return replace(self, features=result.finish(self.features[:0]), texts=texts, pending=pending)
