"""Files of predictions: CSV, JSON lines or Parquet by their names; on the standard output CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from dprecipe import screen
from dprecipe.cli.files import check_absent, writing_new
from dprecipe.cli.formulas import count_formulas, guard
from dprecipe.faults import DataFault, UsageFault
from dprecipe.libraries import check_libraries, importing_libraries

Columns: TypeAlias = "Mapping[str, Sequence[Any] | NDArray[Any]]"
"""Columns of a chunk: arrays of predictions, masked where there is none, and copied values."""
CSV, JSON_LINES, PARQUET = ".csv", (".jsonl", ".ndjson"), ".parquet"


class Writer(Protocol):
    """A writer of predictions, a chunk of columns at a time; the first call says which columns there are.

    `formulas`: the number of fields that a spreadsheet would run as formulas; of CSV alone.
    """

    formulas: int

    def write(self, columns: Columns) -> None: ...
    def close(self) -> None: ...


def check_out(out: Path | None) -> None:
    """Checks, before any work is done, that a file of predictions can have this name.

    Raises:
        UsageFault: it exists, ends in no known way, or pyarrow is not installed for Parquet.
    """
    if out is None:
        return
    check_absent(out)
    ending = out.suffix.lower()
    if ending not in (CSV, *JSON_LINES, PARQUET):
        raise UsageFault(
            f"{out}: predictions are written as CSV (.csv), JSON lines (.jsonl or .ndjson) or Parquet (.parquet)",
            "choose one of these endings with --out",
        )
    if ending == PARQUET:
        check_libraries("a .parquet file", "pyarrow")


@contextmanager
def open_writer(out: Path | None, guarded: bool = False) -> Iterator[Writer]:
    """Yields a writer whose file gets its name when the block succeeds. `out`: None is the standard output. `guarded`:
    an apostrophe stands before formulas in CSV."""
    if out is None:
        yield CsvWriter(None, guarded)
        return
    ending = out.suffix.lower()
    with writing_new(out) as draft:
        if ending == PARQUET:
            parquet = ParquetWriter(draft)
            try:
                yield parquet
            finally:
                parquet.close()
            return
        # Half a letter (a lone surrogate), which JSON may hold and UTF-8 does not, is escaped.
        with draft.open("x", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            yield CsvWriter(stream, guarded) if ending == CSV else JsonLinesWriter(stream)


@final
class CsvWriter:
    """CSV into a stream of text; nothing where there is no prediction."""

    def __init__(self, stream: io.TextIOBase | None, guarded: bool) -> None:
        """`stream`: None is the standard output. `guarded`: an apostrophe stands before formulas."""
        self._stream, self._guarded = stream, guarded
        self._begun = False
        self.formulas = 0

    def write(self, columns: Columns) -> None:
        """Appends rows; before the first, the names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        lists = _as_lists(columns)
        if not self._begun:
            lists = [[name, *fields] for name, fields in zip(columns, lists, strict=True)]
            self._begun = True
        found = [count_formulas(fields) for fields in lists]
        self.formulas += sum(found)
        if self._guarded:
            lists = [list(map(guard, fields)) if count else fields for fields, count in zip(lists, found, strict=True)]
        writer.writerows(zip(*lists, strict=True))
        if self._stream is None:
            screen.show_document(text.getvalue())
        else:
            self._stream.write(text.getvalue())

    def close(self) -> None:
        """Does nothing: the stream is another's."""


@final
class JsonLinesWriter:
    """One JSON object a line into a stream of text; null where there is no prediction."""

    formulas = 0

    def __init__(self, stream: io.TextIOBase) -> None:
        self._stream = stream

    def write(self, columns: Columns) -> None:
        """Appends rows."""
        names = list(columns)
        for row in zip(*_as_lists(columns), strict=True):
            values = (None if isinstance(value, float) and not math.isfinite(value) else value for value in row)
            self._stream.write(f"{json.dumps(dict(zip(names, values, strict=True)), allow_nan=False, default=str)}\n")

    def close(self) -> None:
        """Does nothing: the stream is another's."""


@final
class ParquetWriter:
    """Parquet into a file; null where there is no prediction."""

    formulas = 0

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, columns: Columns) -> None:
        """Appends rows. Copied columns are whole numbers if the first chunk has nothing else, and otherwise texts.

        Raises:
            DataFault: a later chunk has something else.
        """
        with importing_libraries("a .parquet file"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        types = {} if self._writer is None else {field.name: field.type for field in self._writer.schema}
        table = pa.table({name: _arrow(pa, name, values, types.get(name)) for name, values in columns.items()})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Writes the footer."""
        if self._writer is not None:
            self._writer.close()


def _as_lists(columns: Columns) -> list[Sequence[Any]]:
    return [values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values()]


def _arrow(pa: Any, name: str, values: Sequence[Any] | NDArray[Any], kind: Any) -> Any:
    """Predictions and probabilities with their own types, copied columns as whole numbers or texts; `kind`: of earlier
    chunks."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "UO":
            return pa.array(values)
        values = values.tolist()
    present = [value for value in values if value is not None]
    are_whole = all(type(value) is int and -(2**63) <= value < 2**63 for value in present)
    if kind == pa.int64() and not are_whole:
        raise DataFault(
            f"the kept column {name!r} holds whole numbers, and then other values", "write CSV or JSON lines, by --out"
        )
    if kind == pa.int64() or (kind is None and present and are_whole):
        return pa.array(values, pa.int64())
    return pa.array([None if value is None else _encodable(str(value)) for value in values], pa.string())


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
