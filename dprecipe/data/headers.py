"""Names and kinds of a file's columns beside what an unfinished recipe declares. No value is measured or shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dprecipe.data.encoders import NO_WORDS, YES_WORDS
from dprecipe.data.files import locate_files
from dprecipe.data.sample import draft_column, is_missing
from dprecipe.data.sample_files import PRIVATE_ROWS, Arrays, Table, read_sample
from dprecipe.data.values import parse_number
from dprecipe.data.words import Header
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_text

ROLES = ("train", "public", "test")
FILES = ("csv", "json_lines", "parquet", "npz")
"""Sources whose names and kinds can be read before their recipe is complete."""
READ_AS = {
    "numeric": "numbers", "boolean": "no and yes", "date": "dates", "category": "texts",
    "text": "texts", "name": "texts",
}  # fmt: skip


def check_headers(data: Mapping[str, Any], root: Path) -> tuple[list[str], list[DataFault]]:
    """Compares names and kinds of the first file of each source with an unfinished `data` block.

    Returns the sources that were read, in words, and the faults. Of values, only the kinds of the first
    `PRIVATE_ROWS` rows matter, as for `dprecipe init --private`; nothing is quoted.
    """
    read: list[str] = []
    faults: list[DataFault] = []
    for role in ROLES:
        source = data.get(role)
        if not isinstance(source, Mapping) or source.get("source") not in FILES:
            continue
        try:
            place = f"data.{role}"
            faults += _check_source(source, data.get("unit"), root, place)
            read.append(f"{place}: read names{'' if source['source'] == 'npz' else ' and kinds'} of its columns")
        except DataFault as fault:
            faults.append(fault)
    return read, faults


def _check_source(source: Mapping[str, Any], unit: object, root: Path, place: str) -> Iterator[DataFault]:
    path = source.get("path")
    paths = [text for text in (path if isinstance(path, list) else [path]) if isinstance(text, str)]
    if not paths:
        return
    file = locate_files(paths, root)[0]
    sample = read_sample(file, PRIVATE_ROWS)
    columns = source.get("columns")
    declared = columns if isinstance(columns, Mapping) else {}
    label = source.get("label")
    names = [str(name) for name in declared]
    asked = [block.get("column") for block in (label, unit) if isinstance(block, Mapping)]
    names += [name for name in asked if isinstance(name, str)]
    if isinstance(sample, Arrays):
        yield from _check_arrays(source, sample, place)
        return
    if sample.source != source["source"]:
        yield DataFault(
            f"{place}: its file is {sample.source}, not {source['source']}", f"write source: {sample.source}"
        )
        return
    delimiter = source.get("delimiter", ",")
    if sample.source == "csv" and sample.delimiter != delimiter and len(sample.columns) > 1:
        yield DataFault(
            f"{place}: the fields of its header line are separated by {sample.delimiter!r}, not {delimiter!r}",
            f"write delimiter: {sample.delimiter!r}",
        )
    yield from _find_absent(names, sample, place)
    for name, block in declared.items():
        texts = _find_texts(sample, str(name))
        if texts is not None and isinstance(block, Mapping):
            yield from _check_kind(f"{place}: column {str(name)!r}", block, texts, sample.typed.get(str(name)))


def _find_absent(names: Sequence[str], table: Table, place: str) -> Iterator[DataFault]:
    header = Header([*table.columns, *table.left_out])
    for name in dict.fromkeys(names):
        if not header.places(name):
            nearest = header.nearest(name)  # no other name: the first line of a file without a header is a record
            meant = "correct the name, or remove the column" if nearest is None else f"write {nearest!r}"
            yield DataFault(f"{place}: there is no column {name!r}", meant)


def _find_texts(table: Table, name: str) -> list[str] | None:
    wanted = normalise_text(name)
    return next((texts for other, texts in table.columns.items() if normalise_text(other) == wanted), None)


def _check_kind(column: str, block: Mapping[str, Any], texts: Sequence[str], typed: str | None) -> Iterator[DataFault]:
    """Yields the fault of a column whose first fields are of another kind than declared. A key that says how they are
    written, such as `format`, leaves the question to the reader, but where the column's own type is that of dates."""
    if typed == "date" == block.get("kind"):
        if "format" in block:
            yield DataFault(f"{column} has the type of dates, which are not written in a format", "remove format")
        return
    kind, present = block.get("kind"), [text for text in texts if not is_missing(text)]
    if (
        not present
        or {"marks", "format", "decimal", "affixes"} & set(block)
        or (kind == "boolean" and "values" in block)
    ):
        return
    made = draft_column(texts)
    digits = made.kind in ("name", "row_number") and all(text.isdecimal() for text in present)
    if digits or (kind in ("numeric", "integer") and made.kind == "numeric"):
        return  # digits of no known meaning; numbers as people write them
    remedy = "correct its kind"
    if kind in ("numeric", "integer"):
        numbers = [number for text in present if (number := parse_number(text)) is not None]
        if 2 * len(numbers) < len(present):
            found = READ_AS.get(made.kind, "texts")
        elif kind == "integer" and not all(map(float.is_integer, numbers)):
            found, remedy = READ_AS["numeric"], "write kind: numeric"
        else:
            return
    elif kind == "boolean" and not {text.casefold() for text in present} <= {*NO_WORDS, *YES_WORDS}:
        found, remedy = READ_AS.get(made.kind, "texts"), "correct its kind, or list both texts: values: [NO, YES]"
    elif kind == "date" and made.kind != "empty" and (made.kind != "date" or "format" in made.declared):
        found = "dates that are not in ISO 8601" if made.kind == "date" else READ_AS[made.kind]
        remedy = 'write how they are written: format, such as "%d.%m.%Y"' if made.kind == "date" else remedy
    else:
        return
    yield DataFault(f"{column} is declared {kind}, and its first {PRIVATE_ROWS} rows hold {found}", remedy)


def _check_arrays(source: Mapping[str, Any], arrays: Arrays, place: str) -> Iterator[DataFault]:
    for key in ("features", "labels"):
        name = source.get(key)
        if isinstance(name, str) and name not in arrays.shapes:
            yield DataFault(f"{place}: there is no array {name!r}", f"correct {key}, the name of an array")
    shape, known = source.get("shape"), arrays.shapes.get(str(source.get("features", "features")))
    if isinstance(shape, list) and known is not None and shape != list(known):
        yield DataFault(
            f"{place}: a record of its features has the shape {list(known)}, not {shape}", f"write shape: {list(known)}"
        )
