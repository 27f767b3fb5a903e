"""Columns of Arrow to fields of a table: numbers as masked arrays, everything else as Python's values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as compute
import pyarrow.types as types

from dprecipe.data.files import DataFile
from dprecipe.data.values import MAX_VALUE_BYTES, CodedTexts, Numbers, Values


@final
class ColumnTypes:
    """The types of the columns of several files: a column has one type in all of them."""

    def __init__(self) -> None:
        self._forms: dict[str, str] = {}

    def check(self, name: str, kind: Any, file: DataFile) -> None:
        """Compares a column's type with that of earlier files. Widths of integers and kinds of texts do not count, and
        a column without values fits any.

        Raises:
            DataFault: they differ.
        """
        form = _form(kind)
        other = self._forms.setdefault(name, form) if form else form
        if other != form:
            raise file.fault(
                f"column {name!r} holds {form}, and {other} in a file before it",
                "write all files with the same type of column",
            )


def select_columns(batch: Any, stored: Mapping[str, str]) -> Any:
    """Columns of a batch by the names that the recipe has for them; `stored`: those that the batch has."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([batch.column(name) for name in stored.values()], names=list(stored))


def name_type(kind: Any) -> str:
    """Returns a type in words: of a nested one no more than its kind, as the names of its fields may come from
    values.
    """
    return str(kind).partition("<")[0]


def _form(kind: Any) -> str:
    if types.is_null(kind):
        return ""
    if types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        return "texts"
    return "integers" if types.is_integer(kind) else str(kind)


def column_values(column: Any, name: str, file: DataFile) -> Values:
    """Returns a column of numbers, truth values, dates or texts; None, or masked, if missing. Dates are in ISO 8601."""
    if name_kind(column.type) == "date":
        column = column.cast(pa.string())

    stored = types.is_dictionary(column.type)
    kind = column.type.value_type if stored else column.type
    number, text = _is_number(kind), is_text(kind)
    if not holds_values(kind):
        raise file.fault(
            f"column {name!r} holds {name_type(kind)}, expected numbers, truth values, dates or text",
            "convert the column, or name another one",
        )
    if text:
        _check_lengths(column.dictionary if stored else column, name, file)
        if stored:
            return _coded(column, name, file)
    elif number and not stored:
        return _numbers(column)
    values = _listed(column, name, file)
    return [None if value is None else float(value) for value in values] if types.is_decimal(kind) else values


def _listed(column: Any, name: str, file: DataFile) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        # Python's message would quote the value.
        raise file.fault(
            f"column {name!r} has a value that can't be read: a text that is not UTF-8, or a number out of range",
            "write the file again, with texts in UTF-8",
        ) from None
    return values


def _coded(column: Any, name: str, file: DataFile) -> CodedTexts:
    """Returns a column of texts in their stored dictionary; those that no row has are left out."""
    indices = column.indices
    codes = (indices.fill_null(-1) if indices.null_count else indices).to_numpy(zero_copy_only=False)
    used = np.flatnonzero(np.bincount(codes.astype(np.int64) + 1, minlength=len(column.dictionary) + 1)[1:])
    distinct = _listed(column.dictionary.take(used), name, file)
    place = np.full(len(column.dictionary) + 1, -1)  # the last one is where -1 leads
    place[used] = [-1 if text is None else number for number, text in enumerate(distinct)]
    return CodedTexts([text or "" for text in distinct], place[codes])


def _numbers(column: Any) -> Numbers:
    """Returns a column of numbers or truth values, with its own type: nulls do not make whole numbers fractions."""
    if not column.null_count:
        return np.ma.MaskedArray(column.to_numpy(zero_copy_only=False))
    missing = column.is_null().to_numpy(zero_copy_only=False)
    filled = compute.fill_null(column, False if column.type == "bool" else 0)
    return np.ma.MaskedArray(filled.to_numpy(zero_copy_only=False), missing)


def holds_values(kind: Any) -> bool:
    """Returns True for a type whose values `column_values` returns."""
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_day = name_kind(kind) == "date"
    return is_day or _is_number(kind) or types.is_decimal(kind) or is_text(kind) or bool(types.is_null(kind))


def name_kind(kind: Any) -> Literal["date", "boolean"] | None:
    """Returns the kind of column that a type of days, moments or truth values is; None of any other."""
    if types.is_date(kind) or types.is_timestamp(kind):
        return "date"
    return "boolean" if types.is_boolean(kind) else None


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def is_text(kind: Any) -> bool:
    """Returns True for a type of texts."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _check_lengths(texts: Any, name: str, file: DataFile) -> None:
    max_bytes = compute.max(compute.binary_length(texts.cast(pa.large_binary()))).as_py()
    if max_bytes is not None and max_bytes > MAX_VALUE_BYTES:
        raise file.fault(
            f"the values of {name!r} take more than {MAX_VALUE_BYTES:,} bytes each",
            "shorten them, or name another column",
        )


def chat_texts(column: Any, name: str, file: DataFile) -> Values:
    """Returns a column of conversations as texts in JSON: lists of structs with texts `role` and `content`, or texts
    that are in JSON already; None where a row has none.

    Raises:
        DataFault: it holds anything else.
    """
    kind = column.type
    if is_text(kind) or types.is_null(kind) or types.is_dictionary(kind):
        return column_values(column, name, file)
    inner = kind.value_type if types.is_list(kind) or types.is_large_list(kind) else None
    parts = (
        {inner.field(place).name for place in range(inner.num_fields)}
        if inner is not None and types.is_struct(inner)
        else set()
    )
    if not {"role", "content"} <= parts:
        raise file.fault(
            f"column {name!r} holds {name_type(kind)}, expected lists of messages: structs of `role` and `content`",
            "convert the column, or name another one",
        )
    return [None if value is None else json.dumps(value, default=str) for value in _listed(column, name, file)]


def image_bytes(column: Any, name: str, file: DataFile, finished: bool = False) -> list[bytes | None]:
    """Returns a column of encoded images, in the layout of Hugging Face; None where a record has no bytes. `finished`:
    see `problems.Problems`.
    """
    kind = column.type
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        column = column.field("bytes")
        kind = column.type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        raise file.fault(
            f"column {name!r} holds {name_type(kind)}, expected images: a struct of bytes and path",
            "name the image column: --image-column"
            if finished
            else "name the image column, or declare `columns` for a table",
        )
    values: list[bytes | None] = column.to_pylist()
    return values
