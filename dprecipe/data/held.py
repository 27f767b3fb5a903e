"""Records held in memory as people have them: a table, a data set, arrays. A run reads them by the recipe.

They take the place of a source's files and of nothing else: columns, ranges, categories, label, unit and steps of
preprocessing are those of the source's block, and what would be refused in a file is refused here. Nothing is measured.
No torch here: tensors are known by their members.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.collector import RecordCollector
from dprecipe.data.facts import model_shape
from dprecipe.data.frames import chunk_table, plain_value
from dprecipe.data.raw import Raw, Reading, channels_first, drop_labels, record_number
from dprecipe.data.sources.base import ColumnLabelled, Labelled
from dprecipe.data.sources.labels import Label
from dprecipe.data.sources.read_npz import as_features, check_labels
from dprecipe.data.sources.table import AnySource
from dprecipe.data.table import Collector, read_names
from dprecipe.data.targets import NumberTarget, SeveralTarget
from dprecipe.faults import DataFault, UsageFault
from dprecipe.text.spelling import normalise_texts

CHUNK_ROWS = 8192
CHUNK_ITEMS = 256


class HeldRecords(ABC):
    """Records in memory, not read yet."""

    @abstractmethod
    def read(self, source: AnySource, reading: Reading) -> Raw:
        """Returns the records as a file of the source's block would give them.

        Raises:
            UsageFault: they are of another kind than the block: no table, or no arrays.
            DataFault: they are not what the recipe declares.
        """


def label_of(source: AnySource, reading: Reading) -> Label | None:
    """Returns the label that is read; None for public records."""
    return source.read_label if reading.role != "public" and isinstance(source, ColumnLabelled) else None


def no_table_fault(source: AnySource, reading: Reading) -> UsageFault:
    return UsageFault(
        f"`{reading.role}` is a table, and the recipe's data.{reading.role} ({source.source}) declares no columns",
        "declare a csv, parquet or datasets source with `columns`, or pass arrays: dprecipe.Records.from_torch",
    )


@final
class HeldTable(HeldRecords):
    """A DataFrame of pandas."""

    def __init__(self, frame: Any) -> None:
        self._frame = frame

    def read(self, source: AnySource, reading: Reading) -> Raw:
        if source.table_columns is None:
            raise no_table_fault(source, reading)
        collector = Collector(source.table_columns, reading.data.preprocess, label_of(source, reading), reading)
        name = f"`{reading.role}`"
        part, forms = reading.span(source.records, len(self._frame), name), _NameForms(name)
        for start in range(part.start, part.stop, CHUNK_ROWS):
            some = self._frame.iloc[start : min(start + CHUNK_ROWS, part.stop)]
            some = some.set_axis(normalise_texts(list(map(str, some.columns))), axis=1)
            plain = [column for column in collector.names if column not in collector.chats]
            ((_, rows, columns),) = chunk_table(some, plain, CHUNK_ROWS)
            for column in collector.chats:
                columns[column] = _chat_texts(some, column, name)
            for column in reading.naming_columns:
                if some[column].dtype == object:
                    names = _names_of(some[column])
                    forms.check(column, names)
                    columns[column] = list(map(plain_value, names))
            collector.add(columns, rows, partial(_row_after, name, start))
        return collector.raw()


def _chat_texts(frame: Any, column: str, name: str) -> list[str | None]:
    """Conversations as texts in JSON: lists of mappings, or texts that are in JSON already."""
    if column not in frame.columns:
        raise DataFault(f"{name}: there is no column {column!r}", "name the columns as the recipe does")
    return [_chat_text(value, column, name) for value in frame[column].tolist()]


def _chat_text(value: Any, column: str, name: str) -> str | None:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if value is None or isinstance(value, str) or _is_nan(value):
        return value if isinstance(value, str) else None
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise DataFault(f"{name}: column {column!r} holds no list of messages", "hold a list of {role, content}")
    return json.dumps(value, default=str)


def _names_of(series: Any) -> list[Any]:
    """Names of units one by one: of a chunk of 7 and 8.5, pyarrow would make 7.0 and 8.5, and 7.0 is not 7."""
    return [None if gone else value for value, gone in zip(series.tolist(), series.isna(), strict=True)]


@final
class _NameForms:
    """Forms in which columns of names hold Python's own values.

    Libraries turn 7 into 7.0 where other rows of a column are empty, and one person would count as two."""

    def __init__(self, subject: str) -> None:
        self._subject, self._forms = subject, dict[str, set[str]]()

    def check(self, column: str, values: Sequence[Any]) -> None:
        """Compares the values of a chunk with each other and with those before.

        Raises:
            DataFault: whole numbers written as 7.0, dates or decimals are among values of other types.
        """
        known = self._forms.setdefault(column, set())
        known.update(_form_of(value) for value in values if not (value is None or _is_nan(value)))
        if len(known) > 1:
            raise DataFault(
                f"{self._subject}: column {column!r} names units or records by {' and '.join(sorted(known))}: one name "
                "could be written in two ways",
                f"bring the column to one type; whole numbers: frame[{column!r}] = "
                f"frame[{column!r}].astype(float).astype(int)",
            )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _form_of(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "numbers such as 7.0" if float(value).is_integer() else "whole numbers or texts"
    plain = isinstance(value, str | bytes | int | np.integer) and not isinstance(value, bool)
    return "whole numbers or texts" if plain else f"values of type {type(value).__name__}"


def _row_after(name: str, first: int, row: int) -> str:
    return f"{name}, {record_number(first + row)}"


@final
class HeldArrays(HeldRecords):
    """Arrays (N, …) of features, labels and units; or the items of a data set, which are tuples of these."""

    def __init__(self, parts: Any) -> None:
        """`parts`: an object with its length and `arrays(start, stop)`, which are features, labels and units."""
        self._parts = parts

    def read(self, source: AnySource, reading: Reading) -> Raw:
        if source.record_shape == ():
            raise UsageFault(
                f"`{reading.role}` is arrays, and the recipe's data.{reading.role} ({source.source}) is a table",
                "pass a table (dprecipe.Records.from_pandas or from_arrow), or declare a source of arrays, such as "
                "{source: npz, path: …, shape: […], classes: …}",
            )
        name, collector = f"`{reading.role}`", RecordCollector(reading)
        part, forms = reading.span(source.records, len(self._parts), name), _NameForms(name)
        for start in range(part.start, part.stop, CHUNK_ITEMS):
            stop = min(start + CHUNK_ITEMS, part.stop)
            features, labels, units = self._parts.arrays(start, stop)
            pixels = _check_features(features, source.record_shape, stop - start, name)
            texts = _unit_texts(units, stop - start, reading, start)
            for column in texts:
                forms.check(column, units.tolist() if hasattr(units, "tolist") else units)
            used = collector.choose(texts, stop - start, partial(_row_after, name, start))
            chosen = np.arange(stop - start) if used is None else used
            numbers: NDArray[Any] = drop_labels(len(chosen))
            if reading.role != "public" and isinstance(source, Labelled):
                numbers = _check_label_array(labels, stop - start, source, name)[chosen]
                numbers = check_labels(numbers, source, f"{name}, labels", reading, start + chosen)
            collector.append(as_features(pixels[chosen], reading), numbers)
        return collector.raw(np.empty((0, *model_shape(source.record_shape)), np.float32))


def _check_features(features: Any, shape: tuple[int, ...], count: int, name: str) -> NDArray[Any]:
    """Features with channels first: declared with channels last, as they are in files, or as models take them."""
    array = np.asarray(features)
    if array.dtype.kind not in "iufb" or array.shape[:1] != (count,):
        raise DataFault(
            f"{name}: the features are not numbers, one array a record, all of one shape",
            "pass arrays or tensors of numbers",
        )
    array = array.astype(np.uint8) if array.dtype.kind == "b" else array
    if array.shape[1:] == shape:
        return channels_first(array)
    if array.shape[1:] == model_shape(shape):
        return array
    raise DataFault(
        f"{name}: a record has the shape {list(array.shape[1:])}, the recipe declares {list(shape)}",
        "declare the shape that the records have, or pass records of that shape",
    )


def _check_label_array(labels: Any, count: int, source: Labelled, name: str) -> NDArray[Any]:
    array = np.asarray(labels) if labels is not None else np.empty(0, object)
    if isinstance(source.target, SeveralTarget):
        shape = (count, source.target.outputs)
        if array.shape != shape or array.dtype.kind not in "biu":
            raise DataFault(
                f"{name}: the labels are not one row of 0 and 1 a record",
                f"pass labels of shape (N, {shape[1]}): 1 where a name applies, in the order of `several`",
            )
        return array
    numeric = isinstance(source.target, NumberTarget) or source.omits_records
    if array.shape != (count,) or array.dtype.kind not in ("iuf" if numeric else "iu"):
        kind = "number" if numeric else "integer"
        raise DataFault(
            f"{name}: the labels are not one {kind} a record", "pass a label for each record, of shape (N,)"
        )
    return array


def _unit_texts(units: Any, count: int, reading: Reading, first: int) -> dict[str, list[str]]:
    """Returns the texts of the one column that names units, records or sides; empty where there is none."""
    columns = reading.naming_columns
    if not columns:
        return {}
    values = None if units is None else [*(units.tolist() if hasattr(units, "tolist") else units)]
    if values is None or len(values) != count:
        raise DataFault(
            f"`{reading.role}` does not say which {columns[0]!r} each record belongs to",
            "pass it as the third part: from_torch(features, labels, units), or items (features, label, unit)",
        )
    if len(columns) > 1:
        raise DataFault(
            f"`{reading.role}` is arrays, which have one array of names, and the recipe uses {' and '.join(columns)}",
            "use one column for the unit and the split, or pass a table",
        )
    return read_names({columns[0]: values}, partial(_row_after, f"`{reading.role}`", first), reading)


@final
class WholeArrays:
    """Arrays or tensors of all records."""

    def __init__(self, features: Any, labels: Any, units: Any) -> None:
        self._arrays = tuple(None if part is None else as_array(part) for part in (features, labels, units))
        lengths = {len(part) for part in self._arrays if part is not None}
        if len(lengths) > 1:
            raise UsageFault("features, labels and units are not of one length", "pass one of each for every record")

    def __len__(self) -> int:
        return len(self._arrays[0])  # type: ignore[arg-type]

    def arrays(self, start: int, stop: int) -> tuple[Any, ...]:
        """Returns features, labels and units of some records."""
        return tuple(None if part is None else part[start:stop] for part in self._arrays)


@final
class DatasetItems:
    """The items of a map-style data set: (features, label) or (features, label, unit)."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def arrays(self, start: int, stop: int) -> tuple[Any, ...]:
        """Returns features, labels and units of some items.

        Raises:
            DataFault: an item is none of these, or items have different shapes.
        """
        items = [self._dataset[number] for number in range(start, stop)]
        sizes = {len(item) if isinstance(item, tuple | list) else 0 for item in items}
        if len(sizes) != 1 or not sizes <= {2, 3}:
            raise DataFault(
                "an item of the data set is not (features, label) or (features, label, unit)",
                "wrap the data set in one whose items are",
            )
        columns = [[as_array(value) for value in column] for column in zip(*items, strict=True)]
        try:
            features = np.stack(columns[0])
            labels = np.array([label.item() if label.size == 1 else label for label in columns[1]])
        except ValueError:
            raise DataFault(
                "items of the data set have features of different shapes, or several labels",
                "bring them to one shape, by constants and each by itself",
            ) from None
        return features, labels, [unit.item() for unit in columns[2]] if len(columns) == 3 else None


def as_array(value: Any) -> NDArray[Any]:
    """Returns a tensor, an image of pillow, an array or a number, as an array."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
