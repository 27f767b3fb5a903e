"""Descriptions of unexpected content in a file, by its form; its values are never quoted."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import final

from dprecipe.data.columns import Quantity, write_number
from dprecipe.data.files import DataFile
from dprecipe.data.writing import Decimal, Writing
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_text

NULLS = frozenset(("na", "n/a", "#n/a", "<na>", "nan", "null"))
"""Texts by which programs write a missing value, in any capitalisation."""
MARKS = NULLS | {"none", ".", "-", "?"}
"""Texts that count as a missing number, in any capitalisation: programs' and people's."""

MAX_NUMBER = 100
"""Characters of a field that may look like a number."""
CURRENCIES = "$€£¥₣₤₦₩₪₫₱₴₸₹₺₽₿"
NUMBER_BESIDE = re.compile(
    rf"(?P<before>[-+\u2212]?\s*(?:[A-Z]{{0,2}}[{CURRENCIES}]|[A-Z]{{3}}|Fr\.?|kr\.?|Rs\.?)\s*)?"
    r"(?P<number>[-+\u2212]?(?:\d[\d.,'\u2019\s]*|[.,]\d+))"
    rf"(?P<after>(?![eE][-+]?\d)(?:[^\W\d_]|[%‰°{CURRENCIES}])\S{{0,19}})?"
)
"""A number, however its digits are written, with a sign or a unit beside it."""
MAX_COMPARED = 500
"""A misspelt name is compared with at most this many names of a header; more take seconds."""
MAX_COMPARED_LENGTH = 100

DELIMITERS = {";": "a semicolon", "\t": "a tab", "|": "a bar", ",": "a comma"}


def describe_text(text: str, column: Quantity) -> tuple[str, str]:
    """Describes what is wrong with a text that should be a number, and the remedy."""
    declared = f"{{kind: {column.kind}, min: {write_number(column.min)}, max: {write_number(column.max)}, "
    missing = f"missing: {column.write_missing()}, "
    if re.match(r"[<>≤≥]=?\s*[0-9]", text):
        marks = ", ".join(f"'{mark}'" for mark in (*(column.marks or ()), "<0.5"))
        return (
            "a field has < or > before its number",
            f"write only the number; or declare such texts as missing: {declared}{missing}marks: [{marks}]}}, with the "
            "text from the file, and what it counts as from domain knowledge",
        )
    described = describe_writing(text, column.writing)
    if described is not None:
        problem, keys, note = described
        known = "" if column.missing is None else missing
        return f"a field has {problem}", f"declare how numbers are written: {declared}{known}{keys}}}{note}"
    return "a field is not a finite number", "correct the value, or declare the column as a category or as text"


def describe_writing(text: str, writing: Writing | None) -> tuple[str, str, str] | None:
    """Describes a number that is written otherwise than declared: the problem, the keys that declare such numbers, and
    a note on them. None for a text that does not look like a number.
    """
    match = NUMBER_BESIDE.fullmatch(text) if len(text) <= MAX_NUMBER else None
    if match is None:
        return None
    own, number = Writing() if writing is None else writing, match["number"].strip()
    decimals: tuple[Decimal, ...] = ("point", "comma")
    fits = [] if own.parse(number) is not None else [one for one in decimals if Writing(one).parse(number) is not None]
    keys, note, problem = [], "", ""
    if fits:
        keys.append(f"decimal: {fits[0]}")
        note = "" if len(fits) == 1 else "; or decimal: comma where the comma stands before the fraction"
        problem = "a number with " + (
            "a comma" if "," in number else "a point" if "." in number else "digits in groups"
        )
    elif own.parse(number) is None:
        return None
    if {part.strip() for part in match.group("before", "after") if part} - {*own.affixes, ""}:
        keys.append("affixes: ['kg']")
        note = f", with the text of the file{note}"
        problem = "a number with a unit or a currency sign"
    return (problem, ", ".join(keys), note) if keys else None


def wrong_format_fault(file: DataFile, start: bytes, expected: str, finished: bool = False) -> DataFault | None:
    """Returns the fault for a file that begins like one of another format; None if it does not. `finished`: see
    `problems.Problems`."""
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
            own = "save the records as CSV (UTF-8) or as Parquet" if finished and "`" in remedy else remedy
            return file.fault(f"is {kind}, expected {expected}", own)
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
        if (
            other in whole
            and other != delimiter
            and expected & {plain_name(part.strip('"')) for part in whole.split(other)}
        ):
            return other
    return None


def describe_rename(are_near: bool, columns: int = 1) -> str:
    """Returns the remedy for columns that a finished release reads and a file has not, by their names."""
    what = "the column" if columns == 1 else "the columns"
    return f"rename {what} in the file: a release is not changed" if are_near else f"add {what} to the file"


def find_columns(
    names: tuple[str, ...], present: list[str], file: DataFile, are_names: bool = True, finished: bool = False
) -> dict[str, str]:
    """Returns the names that the file has for the columns that are read. `are_names`: they are no fields of a record,
    as the first line of a CSV file without a header would be; otherwise a message names only a nearly equal one.
    `finished`: see `problems.Problems`.

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
                describe_rename(bool(meant)) if finished else "write the name in the recipe as the file has it",
            )
    return {name: present[known.places(name)[0]] for name in names}
