"""Descriptions of unexpected content in a file, by its form; its values are never quoted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import final

from dprecipe.data.columns import Quantity, write_number
from dprecipe.data.files import DataFile
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_text

MARKS = frozenset(("na", "n/a", "#n/a", "<na>", "nan", "null", "none", ".", "-", "?"))
"""Texts that count as a missing number, in any capitalisation."""

MAX_COMPARED = 500
"""A misspelt name is compared with at most this many names of a header; more take seconds."""
MAX_COMPARED_LENGTH = 100

DELIMITERS = {";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}


def describe_text(text: str, column: Quantity) -> tuple[str, str]:
    """Describes what is wrong with a text that should be a number, and the remedy."""
    if re.match(r"[<>≤≥]=?\s*[0-9]", text):
        low, high = write_number(column.min), write_number(column.max)
        return (
            "a field has < or > before its number",
            "write only the number; or declare such texts as missing: "
            f"{{kind: {column.kind}, min: {low}, max: {high}, missing: {low}, marks: ['<0.5']}}, with the text from "
            "the file",
        )
    if re.fullmatch(r"[+-]?[0-9][0-9.]*,[0-9]+", text):
        return "a field has a number with a comma", "write a decimal point, and no thousands separators"
    if re.search(r"[0-9]\s*[%€$£]|[€$£]\s*[0-9]|[0-9]\s*[A-Za-zµ]+$", text):
        return "a field has a number with a unit or a currency sign", "write only the number"
    return "a field is not a finite number", "correct the value, or declare the column as a category or as text"


def wrong_format_fault(file: DataFile, start: bytes, expected: str) -> DataFault | None:
    """Returns the fault for a file that begins like one of another format; None if it does not."""
    kinds = {
        b"\xd0\xcf\x11\xe0": ("an Excel workbook (.xls)", "save it as CSV (UTF-8)"),
        b"PK\x03\x04": ("an Excel workbook (.xlsx) or another zip archive", "save it as CSV (UTF-8)"),
        b"PAR1": ("a Parquet file", "write `source: parquet`"),
        b"\x89PNG": ("an image", "name a table"),
        b"%PDF": ("a PDF", "name a table"),
        b"\xff\xfe": ("a text in UTF-16", "convert the file to UTF-8"),
        b"\xfe\xff": ("a text in UTF-16", "convert the file to UTF-8"),
        b"SQLite format 3": ("an SQLite database", "export the table as CSV"),
        b"BZh": ("compressed by bzip2", "unpack it; gzip would do"),
        b"\xfd7zXZ": ("compressed by xz", "unpack it; gzip would do"),
        b"\x28\xb5\x2f\xfd": ("compressed by zstd", "unpack it; gzip would do"),
        b"\x93NUMPY": ("a NumPy array (.npy)", "put it into an archive with numpy.savez, and write `source: npz`"),
    }
    for magic, (kind, remedy) in kinds.items():
        if start.startswith(magic):
            return file.fault(f"is {kind}, expected {expected}", remedy)
    return None


def plain_name(name: str) -> str:
    """Returns a column's name in lower case, without blanks and punctuation."""
    return re.sub(r"[\W_]+", "", name).casefold()


@final
class Header:
    """The names of a header, to find one, or the one that was meant; other forms of them are computed on first use."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    @cached_property
    def _by_form(self) -> dict[str, str]:
        return {form: name for name in self._names if (form := plain_name(name))}

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        places: dict[str, list[int]] = {}
        for place, name in enumerate(self._names):
            places.setdefault(normalise_text(name), []).append(place)
        return places

    def places(self, name: str) -> Sequence[int]:
        """Returns the places where a name stands; several if it is there more than once."""
        return self._by_name.get(normalise_text(name), ())

    def nearest(self, name: str) -> str | None:
        """Returns the name that was meant, if one is nearly equal. Among very many or very long names, only one that
        differs in nothing but capitals and punctuation.
        """
        form = plain_name(name)
        if form in self._by_form:
            return self._by_form[form]
        if len(self._by_form) > MAX_COMPARED or len(form) > MAX_COMPARED_LENGTH:
            return None
        others = [other for other in self._by_form if len(other) <= MAX_COMPARED_LENGTH]
        close = difflib.get_close_matches(form, others, n=1, cutoff=0.8)
        return self._by_form[close[0]] if close else None


def find_delimiter(line: Sequence[str], names: Sequence[str], delimiter: str) -> str | None:
    """Returns the delimiter with which a first line without any declared name contains one; None if there is none."""
    whole, expected = delimiter.join(line), {plain_name(name) for name in names}
    for other in DELIMITERS:
        if other != delimiter and expected & {plain_name(part.strip('"')) for part in whole.split(other)}:
            return other
    return None


def find_columns(names: tuple[str, ...], present: list[str], file: DataFile, are_names: bool = True) -> dict[str, str]:
    """Returns the names that the file has for the columns that are read. `are_names`: they are no fields of a record,
    as the first line of a CSV file without a header would be; otherwise a message names only a nearly equal one.

    Raises:
        DataFault: a column is not there, or more than once.
    """
    known = Header(present)
    listed = (
        ", ".join(map(repr, present[:50])) if are_names else "others (does each CSV file begin with a header line?)"
    )
    for name in names:
        places = known.places(name)
        if len(places) != 1:
            meant = None if places else known.nearest(name)
            raise file.fault(
                f"has {'more than one' if places else 'no'} column {name!r}; "
                + (f"it has {meant!r}" if meant else f"its columns are {listed}"),
                "write the name in the recipe as the file has it",
            )
    return {name: present[known.places(name)[0]] for name in names}
