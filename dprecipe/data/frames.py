"""Tables in memory, as people hold them, to columns as readers pass them: a chunk at a time, and only declared columns.

A table is a pandas or polars DataFrame, a pyarrow Table or RecordBatch, a mapping of column names to values, or rows
(a sequence of mappings).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import numpy as np

from dprecipe.data.files import DataFile
from dprecipe.data.raw import record_number
from dprecipe.data.values import NumberText, Value, Values
from dprecipe.data.words import Header
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_text

PASSED = "the records passed"
EMPTY = ("NaT", "nan", "<NA>")
"""Texts that libraries print for a missing value."""
ACCEPTED = (
    "pass a DataFrame, a pyarrow Table, a dict of columns, or a list of rows, each a dict of column name to value"
)


def chunk_table(table: object, names: Sequence[str], rows: int) -> Iterator[tuple[int, int, dict[str, Values]]]:
    """Yields the number of each chunk's first row, how many rows it has (at most `rows`), and its columns of these
    names.

    Numbers become masked arrays, dates texts in ISO 8601, missing values None: as a reader of Parquet passes them.

    Raises:
        DataFault: it is no table, a column is missing, or columns have different lengths.
    """
    kind = type(table).__module__.partition(".")[0]
    if kind == "polars" and hasattr(table, "to_arrow"):
        table, kind = table.to_arrow(), "pyarrow"
    if kind == "pandas" and hasattr(table, "iloc") and hasattr(table, "columns"):
        yield from _chunk_frame(table, names, rows)
    elif kind == "pyarrow" and hasattr(table, "schema"):
        yield from _chunk_arrow(table, names, rows)
    elif isinstance(table, Mapping):
        yield from _chunk_columns(table, names, rows)
    elif isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        yield from _chunk_rows(table, names, rows)
    else:
        raise DataFault(f"the records passed are {_describe(table)}, and the model takes a table", ACCEPTED)


def place_of(first: int, row: int) -> str:
    """Returns the place of a row of a chunk."""
    return f"{PASSED}, {record_number(first + row)}"


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    return f"of type {kind}" + (f" and shape {list(shape)}" if isinstance(shape, tuple) else "")


def _find_columns(names: Sequence[str], present: Sequence[Any]) -> dict[str, Any]:
    """Returns the names that a table has for columns: texts, or others, as numbers.

    Raises:
        DataFault: one is not there, or more than once.
    """
    known = Header([str(name) for name in present])
    absent = [name for name in names if not known.places(name)]
    twice = [name for name in names if len(known.places(name)) > 1]
    if absent:
        meant = known.nearest(absent[0])
        raise DataFault(
            f"{PASSED} have no column {', '.join(map(repr, absent))}" + (f" (they have {meant!r})" if meant else ""),
            "name the columns as the recipe does, and pass each of them, None where a value is missing",
        )
    if twice:
        raise DataFault(f"{PASSED} have more than one column {twice[0]!r}", "keep one of them")
    return {name: present[known.places(name)[0]] for name in names}


def _chunk_frame(frame: Any, names: Sequence[str], rows: int) -> Iterator[tuple[int, int, dict[str, Values]]]:
    keys = _find_columns(names, list(frame.columns))
    for first in range(0, len(frame), rows):
        part = frame.iloc[first : first + rows]
        yield first, len(part), {name: _series_values(part[keys[name]], name) for name in names}


def _series_values(series: Any, name: str) -> Values:
    with importing_libraries("a DataFrame"):
        import pyarrow as pa

    try:
        return _arrow_values(pa.Array.from_pandas(series), name)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
    ):  # of several types, or long
        return _plain_values(series.astype(object).tolist())


def _chunk_arrow(table: Any, names: Sequence[str], rows: int) -> Iterator[tuple[int, int, dict[str, Values]]]:
    keys = _find_columns(names, table.schema.names)
    for first in range(0, table.num_rows, rows):
        part = table.slice(first, rows)
        yield first, part.num_rows, {name: _arrow_values(part.column(keys[name]), name) for name in names}


def _arrow_values(column: Any, name: str) -> Values:
    with importing_libraries("a DataFrame"):
        import pyarrow as pa

        from dprecipe.data.arrow import column_values

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # it had no chunk
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column_values(column, name, DataFile(Path(), PASSED, PASSED))


def _chunk_columns(
    columns: Mapping[Any, Any], names: Sequence[str], rows: int
) -> Iterator[tuple[int, int, dict[str, Values]]]:
    keys = _find_columns(names, list(columns))
    columns = {name: columns[keys[name]] for name in names}
    lengths = {len(columns[name]) for name in names}
    if len(lengths) > 1:
        raise DataFault(f"{PASSED} have columns of different lengths", "give each column a value for each record")
    for first in range(0, lengths.pop() if lengths else 0, rows):
        part = {name: _sequence_values(columns[name][first : first + rows], name) for name in names}
        yield first, len(part[names[0]]), part


def _sequence_values(values: Any, name: str) -> Values:
    if type(values).__module__.partition(".")[0] == "pandas":
        return _series_values(values, name)
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        return np.ma.MaskedArray(values)
    return _plain_values(values.tolist() if hasattr(values, "tolist") else list(values))


def _chunk_rows(
    table: Sequence[Mapping[str, object]], names: Sequence[str], rows: int
) -> Iterator[tuple[int, int, dict[str, Values]]]:
    for first in range(0, len(table), rows):
        part = [_with_names(row, names) for row in table[first : first + rows]]
        for number, row in enumerate(part, first):
            missing = [name for name in names if name not in row]
            if missing:
                raise DataFault(
                    f"row {number} has no {', '.join(map(repr, missing))}", "pass each column, None if empty"
                )
        yield first, len(part), {name: _plain_values([row[name] for row in part]) for name in names}


def _with_names(row: Mapping[str, object], names: Sequence[str]) -> Mapping[str, object]:
    """Returns a row by the names that the recipe has for its columns."""
    if all(name in row for name in names):
        return row
    keys = {normalise_text(str(key)): key for key in row}
    return {name: row[keys[normalise_text(name)]] for name in names if normalise_text(name) in keys}


def _plain_values(values: Sequence[object]) -> list[Value]:
    return list(map(plain_value, values))


def plain_value(value: object) -> Value:
    """Returns a value as a reader of files passes it: None where it is missing, a text where it is neither text nor
    number.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str | int | float | bool | bytes):
        return cast(Value, value)
    if isinstance(value, Decimal):  # 7 and 7.00 are one number, and so one name
        return _plain_decimal(value)
    text = str(value)  # a date in ISO 8601
    return None if text in EMPTY else text


def _plain_decimal(value: Decimal) -> str | None:
    if value.is_nan():
        return None
    text = f"{value:f}"
    return NumberText(text.rstrip("0").rstrip(".") if "." in text else text)
