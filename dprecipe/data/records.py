"""Records: features, labels, and who each record belongs to, in memory or mapped into it (`dprecipe.data.storage`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import is_slow
from dprecipe.data.paid.apply import encode_items
from dprecipe.data.paid.constants import ItemConstants, PublicConstants, StageConstants
from dprecipe.data.paid.schema import DpCategories, DpVocabulary, item_columns
from dprecipe.data.preprocess import Floats, ReadyStep, is_pending, prepare_features
from dprecipe.data.raw import Labels, TextValues
from dprecipe.data.schema import Step
from dprecipe.data.storage import IN_MEMORY_BYTES, Storage
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.progress import Progress

if TYPE_CHECKING:
    from dprecipe.data.held import HeldRecords

PREPARE_ONCE_BYTES = IN_MEMORY_BYTES
"""Below this many bytes of prepared features they are prepared once: simpler, and each step of training is
faster. Above it the features stay as they were read, pixels a quarter of the size, in files that are mapped, and each
physical batch is prepared when it is used. Scattering, patches and whitening are too slow for that: they are done
once."""

PREPARE_ROWS = 256
QUIET_SECONDS = 2.0


class RecordSource(Protocol):
    """Source that a run reads from: `Records`, synthetic ones in a rehearsal, or objects passed from Python."""

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

    @staticmethod
    def from_pandas(frame: Any) -> HeldRecords:
        """Returns a DataFrame of pandas, as it is: a run reads it by the columns, label, unit and steps of the recipe.

            dprecipe.run(plan, train=dprecipe.Records.from_pandas(frame))

        The recipe's source declares a table (`columns`); its files are not opened. What would be refused in a file is
        refused here, and nothing is measured. How the frame was made, the certificate states as a declaration.

        Raises:
            UsageFault: it is no DataFrame.
        """
        from dprecipe.data.held import HeldTable

        _check_kind(frame, ("pandas",), ("iloc", "columns"), "from_pandas", "a DataFrame of pandas")
        return HeldTable(frame)

    @staticmethod
    def from_arrow(table: Any) -> HeldRecords:
        """Returns a table of pyarrow, or of another library that hands over Arrow's columns (polars, DuckDB); as
        `from_pandas`.

        A source that declares `image` takes a column of encoded images, as in Parquet.

        Raises:
            UsageFault: it is none.
        """
        with importing_libraries("a table of Arrow"):
            import pyarrow as pa

            from dprecipe.data.held_arrow import ArrowTable, HeldArrow

        if not hasattr(table, "schema") and hasattr(table, "__arrow_c_stream__"):
            table = pa.table(table)
        _check_kind(table, ("pyarrow",), ("schema", "num_rows", "select"), "from_arrow", "a table of pyarrow or polars")
        return HeldArrow(ArrowTable(table))

    @staticmethod
    def from_datasets(dataset: Any) -> HeldRecords:
        """Returns one split of Hugging Face's `datasets`, as it is stored; as `from_pandas`. Its selection and order of
        rows count, a transform or format of them does not. Class labels are read by their names, as from its folder.

        Raises:
            UsageFault: it is no such data set: several splits, or a stream.
        """
        with importing_libraries("a data set of `datasets`"):
            from dprecipe.data.held_arrow import DatasetTable, HeldArrow

        members = ("column_names", "features", "with_format", "select_columns", "__len__")
        whole = not isinstance(dataset, Mapping) and all(hasattr(dataset, name) for name in members)
        if not whole and type(dataset).__module__.partition(".")[0] == "datasets":
            raise UsageFault(
                f"from_datasets takes one split that has a length, and this is {describe_type(dataset)}",
                'pass one split, data["train"]; save a stream to disk first, and load it',
            )
        _check_kind(dataset, ("datasets",), members, "from_datasets", "a Dataset of `datasets`")
        stored = {name: getattr(feature, "names", None) for name, feature in dataset.features.items()}
        classes = {name: list(names) for name, names in stored.items() if isinstance(names, list | tuple)}
        return HeldArrow(DatasetTable(dataset), classes)

    @staticmethod
    def from_torch(features: Any, labels: Any = None, units: Any = None) -> HeldRecords:
        """Tensors or arrays as they are: features (N, …), labels (N,) and the unit of each record; or a map-style data
        set, whose items are (features, label) or (features, label, unit).

        As `from_pandas`, for a source that declares arrays or images (`shape`): bytes become [0, 1], other numbers stay
        as they are, channels are last, as declared, or first. Labels are class numbers from 0, or numbers in the units
        of the declared range. Public records need no labels.

        Raises:
            UsageFault: it is neither, or the parts are not of one length.
        """
        from dprecipe.data.held import DatasetItems, HeldArrays, WholeArrays

        other = type(features).__module__.partition(".")[0] in TAKERS or isinstance(features, str | bytes | Mapping)
        if other:
            what = "tensors, arrays or a map-style data set"
            raise UsageFault(f"from_torch takes {what}, and this is {describe_type(features)}", suggest_taker(features))
        if labels is None and units is None and hasattr(features, "tensors"):  # a TensorDataset
            parts = features.tensors
            if len(parts) not in (2, 3):
                raise UsageFault("from_torch takes features and labels, and this has other parts", "pass two or three")
            return HeldArrays(WholeArrays(parts[0], parts[1], parts[2] if len(parts) == 3 else None))
        if hasattr(features, "shape") and len(getattr(features, "shape", ())) > 0:
            return HeldArrays(WholeArrays(features, labels, units))
        if labels is None and units is None and hasattr(features, "__getitem__") and hasattr(features, "__len__"):
            return HeldArrays(DatasetItems(features))
        raise UsageFault(
            f"from_torch takes tensors, arrays or a map-style data set, and this is {describe_type(features)}",
            "pass from_torch(features, labels) or from_torch(dataset)",
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def unit_count(self) -> int:
        """The number of units; of records, where each is a unit."""
        return len(self) if self.units is None else int(self.units.max(initial=-1)) + 1

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[Floats, Labels]:
        """Returns the prepared features, float32 (B, …), and the labels (B,) of these records; B may be 0."""
        if isinstance(indices, slice):
            return prepare_features(self.features[indices], self.pending), self.labels[indices]
        # `take` copies whole rows, in half the time of an array as an index.
        return prepare_features(self.features.take(indices, axis=0), self.pending), self.labels.take(indices)

    def prepared(self, limit: float = PREPARE_ONCE_BYTES) -> Records:
        """Returns the same records with their constant steps applied, if that takes at most `limit` bytes.

        With a slow step among them it is done whatever it takes; where it takes long, a terminal shows progress.
        A log gets nothing: the number of records may be private.
        """
        ready = self.pending[: self.next_stage]
        slow = self.awaits_slow_steps
        if self.features.size * 4 > limit and not slow:
            return self
        result = Storage(IN_MEMORY_BYTES, expected=len(self)).rows("features")
        began, progress = time.monotonic(), None
        for start in range(0, len(self), PREPARE_ROWS):  # in parts: a step's temporaries stay small
            part = slice(start, start + PREPARE_ROWS)
            result.append(prepare_features(self.features[part], ready))
            if progress is None and slow and time.monotonic() - began > QUIET_SECONDS:
                progress = Progress("features", "record", len(self), private=True)
            if progress is not None:
                progress.show(min(part.stop, len(self)))
        if progress is not None:
            progress.end(len(self))
        features = result.finish(prepare_features(self.features[:0], ready))
        return replace(self, features=features, pending=self.pending[len(ready) :])

    def with_all_constants(self, released: Sequence[StageConstants]) -> Records:
        """Returns the same records with what the first paid steps that are pending have released, and then all steps
        applied up to the next one that is.

        Raises:
            ValueError: see `with_constants`.
        """
        records = self
        for constants in released:
            records = records.prepared().with_constants(constants)
        return records.prepared()

    @property
    def awaits_slow_steps(self) -> bool:
        """True if `scattering`, `patches` or `whiten` is among the steps that `prepared` applies."""
        return any(isinstance(step, Step) and is_slow(step) for step in self.pending[: self.next_stage])

    @property
    def next_stage(self) -> int | None:
        """Place in `pending` of the first paid step that has not released its constants; None if there is none."""
        return next((index for index, step in enumerate(self.pending) if is_pending(step)), None)

    def with_constants(self, constants: StageConstants) -> Records:
        """Returns the same records, with what the first paid step that is still pending has released.

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
        result, texts = Storage(IN_MEMORY_BYTES, expected=len(self)).rows("features"), dict(self.texts)
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


def _check_kind(value: object, packages: tuple[str, ...], members: tuple[str, ...], taker: str, expected: str) -> None:
    """Checks that an object is what a function takes, by its package and members: no package is imported for it."""
    if type(value).__module__.partition(".")[0] in packages and all(hasattr(value, name) for name in members):
        return
    raise UsageFault(f"{taker} takes {expected}, and this is {describe_type(value)}", suggest_taker(value))


TAKERS = {"pandas": "from_pandas", "polars": "from_arrow", "pyarrow": "from_arrow", "datasets": "from_datasets"}


def suggest_taker(value: object) -> str:
    """Suggests how to pass an object to a run, by its package."""
    package = type(value).__module__.partition(".")[0]
    taker = TAKERS.get(package, "from_torch" if package in ("torch", "torchvision", "numpy") else "")
    return (
        f"pass dprecipe.Records.{taker}(…)"
        if taker
        else ("pass dprecipe.Records.from_pandas, from_arrow, from_datasets or from_torch of it")
    )


def describe_type(value: object) -> str:
    """Returns an object's type, never its content."""
    kind = type(value)
    if isinstance(value, tuple | list):
        return f"a {kind.__name__} of {', '.join(sorted({type(one).__name__ for one in value[:20]})) or 'nothing'}"
    return f"a {kind.__module__.partition('.')[0]} {kind.__name__}"
