"""Files of records that a model has written: CSV, JSON lines or Parquet. Their fields are anybody's text."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, final

from dprecipe.data.columns import Columns
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.models.synthetic import Record

ENDINGS = (".csv", ".jsonl", ".parquet")
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a field that a spreadsheet takes for a formula."""


class RecordFile(Protocol):
    """Takes records, a chunk at a time."""

    def write(self, records: Sequence[Record]) -> None: ...


@contextmanager
def open_records(
    path: Path, names: Sequence[str], columns: Columns, *, guard_formulas: bool = False
) -> Iterator[RecordFile]:
    """Yields a file of these columns, its form by the ending of `path`. Raises `OSError`."""
    texts = list_texts(names, columns)
    if path.suffix == ".parquet":
        with importing_libraries("a .parquet file"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        types = {"double": pa.float64(), "integer": pa.int64(), "string": pa.string()}
        schema = pa.schema([(name, types[_type_of(columns, name)]) for name in names])
        with pq.ParquetWriter(path, schema) as writer:
            yield _ParquetRecords(writer, schema, texts)
        return
    with path.open("x", encoding="utf-8", newline="") as stream:
        if path.suffix == ".jsonl":
            yield _LineRecords(stream)
            return
        yield _CsvRecords(stream, names, texts if guard_formulas else ())


def list_texts(names: Sequence[str], columns: Columns) -> list[str]:
    """Returns the columns that hold texts; declared values among them, which the recipe's author has chosen."""
    return [name for name in names if _type_of(columns, name) == "string"]


def count_formulas(records: Sequence[Record], names: Collection[str]) -> int:
    """Counts the fields of these columns that a spreadsheet would take for formulas."""
    return sum(str(record[name]).startswith(FORMULAS) for record in records for name in names)


def _type_of(columns: Columns, name: str) -> str:
    kind = getattr(columns.get(name), "kind", "text")
    return {"numeric": "double", "integer": "integer"}.get(kind, "string")


@final
class _CsvRecords:
    """Fields with separators, quotes or line breaks stand in quotes, as RFC 4180 has it."""

    def __init__(self, stream: TextIO, names: Sequence[str], guarded: Collection[str]) -> None:
        self._names, self._guarded = list(names), set(guarded)
        self._writer = csv.writer(stream, lineterminator="\n")
        self._writer.writerow([_guard(name) if guarded else name for name in self._names])

    def write(self, records: Sequence[Record]) -> None:
        """See `RecordFile`."""
        self._writer.writerows([self._field(record, name) for name in self._names] for record in records)

    def _field(self, record: Mapping[str, Any], name: str) -> Any:
        value = record[name]
        return _guard(value) if name in self._guarded else value


def _guard(value: Any) -> Any:
    return f"'{value}" if str(value).startswith(FORMULAS) else value


@final
class _LineRecords:
    """One object a line, in ASCII."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, records: Sequence[Record]) -> None:
        """See `RecordFile`."""
        self._stream.writelines(json.dumps(dict(record), allow_nan=False) + "\n" for record in records)


@final
class _ParquetRecords:
    """Numbers as numbers, all else as text."""

    def __init__(self, writer: Any, schema: Any, texts: Collection[str]) -> None:
        self._writer, self._schema, self._texts = writer, schema, set(texts)

    def write(self, records: Sequence[Record]) -> None:
        """See `RecordFile`."""
        with importing_libraries("a .parquet file"):
            import pyarrow as pa

        rows = [{k: str(v) if k in self._texts else v for k, v in record.items()} for record in records]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._schema))
