"""The columns of a sample file, as texts, and drafts of what a recipe could declare of each.

A file is CSV, JSON lines, Parquet or a NumPy archive.

Nothing here may be used on private records but the kind of a column (`Drafted.kind`): ranges, categories and missing
values would be measured on them. Ranges are rounded outward, so that no value of the sample lies outside.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from dprecipe.data.archive import open_archive
from dprecipe.data.encoders import NO_WORDS, YES_WORDS
from dprecipe.data.files import READ_ERRORS, open_file, unreadable_fault
from dprecipe.data.sources.read_json_lines import MAX_LINE_BYTES, parse_object
from dprecipe.data.targets import MAX_NAMES
from dprecipe.data.values import parse_number, text_of
from dprecipe.data.words import DELIMITERS, MARKS
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_texts

MAX_ROWS = 100_000
"""Rows of a public sample that are looked at; of a private file, `PRIVATE_ROWS`, for kinds alone."""
PRIVATE_ROWS = 100
MAX_HEADER = 1 << 20
QUOTES = 'enclose a field that contains quotes or line breaks in "…", and double the quotes in it'
SAVE = "save it with numpy.savez_compressed(path, features=…, labels=…)"


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns' fields as texts without blanks around them, of `rows` rows; `cut`: the file has more."""

    source: Literal["csv", "json_lines", "parquet"]
    columns: dict[str, list[str]]
    rows: int
    cut: bool
    delimiter: str = ","
    left_out: tuple[str, ...] = ()
    """Columns that are no numbers, truth values, dates or texts."""


@final
@dataclass(frozen=True, slots=True)
class Arrays:
    """An archive: the shape and type of each array, and the values of those with one number or text a record."""

    shapes: dict[str, tuple[int, ...]]
    values: dict[str, list[str]]


def read_sample(file: Path, max_rows: int = MAX_ROWS) -> Table | Arrays:
    """Returns the columns of a file, of at most `max_rows` rows; of an archive names and shapes alone, where these are
    `PRIVATE_ROWS`.

    Raises:
        DataFault: it is not there, damaged, or none of the formats.
    """
    if file.is_dir():
        raise DataFault(f"{file}: is a folder", "name one of its files")
    if not file.is_file():
        raise DataFault(f"{file}: there is no such file", "check the spelling of the path")
    with open_file(file) as stream:
        start = stream.read(4)
    text = start.removeprefix(b"\xef\xbb\xbf")
    if not text:
        raise DataFault(f"{file.name}: is empty", "name a file with a header line and rows")
    if start == b"PAR1":
        return _read_parquet(file, max_rows)
    if start == b"PK\x03\x04":
        return _read_archive(file, max_rows)
    if start == b"\x93NUM":
        raise DataFault(f"{file.name}: is a single NumPy array", SAVE)
    if text.startswith(b"[") and text[1:].lstrip()[:1] in (b"", b"{", b"["):  # and not a column named [a]
        raise DataFault(f"{file.name}: begins as a JSON array", "write its objects one a line, without [ and ]")
    if text.startswith(b"{"):
        return _read_json_lines(file, max_rows)
    return _read_csv(file, max_rows)


def _read_csv(file: Path, max_rows: int) -> Table:
    try:
        with open_file(file) as stream:
            line = stream.readline(MAX_HEADER).decode("utf-8-sig")
        delimiter = max(DELIMITERS, key=line.count) if any(map(line.count, DELIMITERS)) else ","
        with open_file(file) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
            rows = csv.reader(text, delimiter=delimiter, strict=True)
            header = normalise_texts(next(rows, []))
            fields = list(_take_rows(rows, len(header), max_rows + 1, file))
    except UnicodeDecodeError as error:
        raise DataFault(f"{file.name}: is not a CSV file in UTF-8", "save it as CSV UTF-8, or as Parquet") from error
    except csv.Error as error:
        raise DataFault(f"{file.name}: a row is not well-formed CSV", QUOTES) from error
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error
    if len(set(header)) != len(header) or not all(header):
        raise DataFault(f"{file.name}: its header line has an empty name, or one twice", "name each column once")
    cut, fields = len(fields) > max_rows, fields[:max_rows]
    columns = {name: [row[place].strip() for row in fields] for place, name in enumerate(header)}
    return Table("csv", columns, len(fields), cut, delimiter)


def _take_rows(rows: Iterator[list[str]], width: int, count: int, file: Path) -> Iterator[list[str]]:
    for row in rows:
        if not row:
            continue
        if len(row) != width:
            raise DataFault(f"{file.name}: a row has another number of fields than the header line", "mend the file")
        yield row
        count -= 1
        if count == 0:
            return


def _read_json_lines(file: Path, max_rows: int) -> Table:
    rows: list[dict[str, Any]] = []
    try:
        with open_file(file) as stream:
            while len(rows) <= max_rows and (line := stream.readline(MAX_LINE_BYTES + 1)):
                rows.append(parse_object(line if rows else line.removeprefix(b"\xef\xbb\xbf")))
    except ValueError:
        raise DataFault(
            f"{file.name}: is no file of one JSON object a line", "save it so, as CSV, or as Parquet"
        ) from None
    except READ_ERRORS as error:
        raise unreadable_fault(file, error) from error
    cut, rows = len(rows) > max_rows, rows[:max_rows]
    names = list(dict.fromkeys(name for row in rows for name in row))
    nested = [name for name in names if any(isinstance(row.get(name), list | dict) for row in rows)]
    columns = {name: [text_of(row.get(name)) for row in rows] for name in names if name not in nested}
    return Table("json_lines", columns, len(rows), cut, left_out=tuple(nested))


def _read_parquet(file: Path, max_rows: int) -> Table:
    with importing_libraries("a Parquet file"):
        import pyarrow as pa
        import pyarrow.parquet as pq
        import pyarrow.types as types

    def is_plain(kind: Any) -> bool:
        kind = kind.value_type if types.is_dictionary(kind) else kind
        tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_string)
        more = (types.is_large_string, types.is_date, types.is_timestamp, types.is_null)
        return any(test(kind) for test in (*tests, *more))

    try:
        with pq.ParquetFile(file) as table:
            schema = table.schema_arrow
            names = [one.name for one in schema if is_plain(one.type)]
            columns: dict[str, list[str]] = {name: [] for name in names}
            rows = 0
            for batch in table.iter_batches(batch_size=min(max_rows, 8192), columns=names):
                batch = batch.slice(0, max_rows - rows)
                for name in names:
                    columns[name] += list(map(text_of, _plain_values(batch.column(name))))
                rows += batch.num_rows
                if rows >= max_rows:
                    break
            left_out = tuple(one.name for one in schema if one.name not in columns)
            return Table("parquet", columns, rows, table.metadata.num_rows > rows, left_out=left_out)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable_fault(file, error if isinstance(error, OSError) else ValueError()) from error


def _plain_values(column: Any) -> Sequence[Any]:
    with importing_libraries("a Parquet file"):
        import pyarrow as pa
        import pyarrow.types as types

    if types.is_date(column.type) or types.is_timestamp(column.type):
        column = column.cast(pa.string())
    values: list[Any] = column.to_pylist()
    return ["" if value != value else value for value in values]  # NaN is a missing number


def _read_archive(file: Path, max_rows: int) -> Arrays:
    shapes: dict[str, tuple[int, ...]] = {}
    values: dict[str, list[str]] = {}
    with open_archive(file, SAVE) as archive:
        for name in archive.names:
            dims = archive.dims(name, None, "numbers or texts", _is_plain)
            shapes[name] = dims[1:]
            if len(dims) == 1 and max_rows > PRIVATE_ROWS:
                part = slice(0, min(dims[0], max_rows))
                values[name] = list(map(text_of, archive.array(name, (), "numbers or texts", _is_plain, part).tolist()))
    return Arrays(shapes, values)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iufbU"


MAX_CATEGORIES = 50
MAX_MARKS = 3
"""Different texts among numbers that may mean a missing one."""
MAX_CLASSES = 100
FORMATS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d",
    "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S",
)  # fmt: skip
Kind = Literal["numeric", "integer", "boolean", "date", "category", "text", "name", "empty"]


@final
@dataclass(frozen=True, slots=True)
class Drafted:
    """A column: its kind (`name`: each field differs; `empty`: none has a value), what may be declared of it, and a
    remark on it."""

    kind: Kind
    declared: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


def is_missing(text: str) -> bool:
    """Returns True if a field counts as missing without being declared so."""
    return text == "" or text.casefold() in MARKS


def draft_column(texts: Sequence[str]) -> Drafted:
    """Drafts the declaration of a column from its fields, which have no blanks around them."""
    present = [text for text in texts if not is_missing(text)]
    if not present:
        return Drafted("empty", remark="no field has a value")
    gaps = len(present) < len(texts)
    for draft in (_draft_numbers, _draft_truths, _draft_dates):
        found = draft(present, gaps)
        if found is not None:
            return found
    return _draft_texts(present)


def _draft_numbers(present: Sequence[str], gaps: bool) -> Drafted | None:
    numbers = {text: parse_number(text) for text in set(present)}
    marks = sorted(text for text, number in numbers.items() if number is None)
    values = [number for text in present if (number := numbers[text]) is not None]
    if not values or len(marks) > MAX_MARKS or (marks and (2 * len(values) < len(present) or len(set(values)) < 3)):
        return None
    if set(numbers) <= {"0", "1"} and len(numbers) == 2:
        return Drafted("boolean", {"missing": False} if gaps else {})
    whole = all(value.is_integer() for value in values)
    low, high = round_outward(min(values), max(values))
    declared: dict[str, Any] = {"min": low, "max": high}
    if gaps or marks:
        middle = statistics.median(values)
        declared["missing"] = round(middle) if whole else float(f"{middle:.3g}")
    if marks:
        declared["marks"] = marks
    integers = whole and abs(max(values, key=abs)) < 2**53 and isinstance(low, int) and isinstance(high, int)
    return Drafted("integer" if integers else "numeric", declared)


def _draft_truths(present: Sequence[str], gaps: bool) -> Drafted | None:
    words = {text.casefold() for text in present}
    if len(words) == 2 and len(words & set(NO_WORDS)) == 1 and len(words & set(YES_WORDS)) == 1:
        return Drafted("boolean", {"missing": False} if gaps else {})
    return None


def _draft_dates(present: Sequence[str], gaps: bool) -> Drafted | None:
    distinct = sorted(set(present))
    days = _parse_all(distinct, datetime.fromisoformat) if all(len(text) >= 10 for text in distinct) else None
    formats: list[str | None] = [None] if days is not None else []
    if days is None:
        for form in FORMATS:
            parsed = _parse_all(distinct, lambda text, form=form: datetime.strptime(text, form))  # type: ignore[misc]
            if parsed is not None:
                days, formats = days or parsed, [*formats, form]
    if days is None:
        return None
    low, high = date(min(days).year, 1, 1), date(max(days).year, 12, 31)
    declared: dict[str, Any] = {"min": str(low), "max": str(high)}
    if formats[0] is not None:
        declared["format"] = formats[0]
    if gaps:
        declared["missing"] = str(low)
    remark = f"or {formats[1]}: these dates fit both" if len(formats) > 1 else ""
    return Drafted("date", declared, remark)


def _parse_all(texts: Sequence[str], parse: Callable[[str], datetime]) -> list[datetime] | None:
    try:
        return [parse(text) for text in texts]
    except ValueError:
        return None


def _draft_texts(present: Sequence[str]) -> Drafted:
    distinct = set(present)
    if len(distinct) <= MAX_CATEGORIES and (len(distinct) == 1 or 2 * len(distinct) <= len(present)):
        return Drafted("category", {"values": sorted(distinct)})
    if len(distinct) == len(present) and not any(" " in text for text in distinct):
        return Drafted("name", remark="each field differs")
    return Drafted("text")


def draft_label(texts: Sequence[str]) -> dict[str, Any]:
    """Drafts the declaration of labels from their fields: `classes`, `values`, a `range` or `several`."""
    present = [text for text in texts if not is_missing(text)]
    counted, numbers = Counter(present), [parse_number(text) for text in set(present)]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers) and known:
        whole = all(number.is_integer() and number >= 0 for number in known)
        if whole and 1 <= max(known) < MAX_CLASSES and len(counted) > max(known) / 2:
            return {"classes": int(max(known)) + 1}
        if len(counted) > 2 or not whole:
            return {"range": list(round_outward(min(known), max(known)))}
    for separator in (";", "|"):
        names = Counter(name for text in present for part in text.split(separator) if (name := part.strip()))
        if any(separator in text for text in present) and 2 <= len(names) <= MAX_NAMES and min(names.values()) > 1:
            own = {} if separator == ";" else {"separator": separator}
            return {"several": sorted(names), **own, **({} if len(present) == len(texts) else {"empty": "none"})}
    return {"values": sorted(counted)}


def round_outward(low: float, high: float) -> tuple[int | float, int | float]:
    """Returns a range of round numbers around both: low is rounded down and high up, and from 0 on where it begins near
    it.

    Guarantees: the first is at most `low` and the second at least `high`, exactly; they differ.
    """
    least, most = Decimal(repr(float(low))), Decimal(repr(float(high)))
    span = most - least
    scale = span / 2 if span else max(abs(most), Decimal(1))
    step = Decimal(10) ** math.floor(scale.log10())
    first = (least / step).to_integral_value(ROUND_FLOOR) * step
    last = (most / step).to_integral_value(ROUND_CEILING) * step
    if 0 <= least < span / 2:
        first = Decimal(0)
    if first == last:
        last += step
    return _plain(first), _plain(last)


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)
