"""Thirty mistakes in data files: the mistake, its place, the first line of the answer, and the remedy followed.

Each row of the table is a data set in which one thing is wrong. What is told names the place and never a value; after
the change that the remedy names, the records are read.
"""

from __future__ import annotations

import gzip
import io
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.faults import DataFault

AGES = [20 + 2 * i for i in range(24)]
ROWS = [f"{age},{('surgery', 'icu')[i % 2]},{('no', 'yes')[i % 2]}" for i, age in enumerate(AGES)]
TABLE = "\n".join(["age,ward,ill", *ROWS]) + "\n"
SECRET = "SECRET-VALUE-42"
COLUMNS = {
    "age": {"kind": "numeric", "min": 0, "max": 110},
    "ward": {"kind": "category", "values": ["surgery", "icu"]},
}
LABEL = {"column": "ill", "values": ["no", "yes"]}
CSV = {"source": "csv", "path": "t.csv", "columns": COLUMNS, "label": LABEL}
NPZ = {"source": "npz", "path": "t.npz", "shape": [3], "classes": 2}
IDX = {"source": "idx", "images": "i", "labels": "l", "shape": [2, 2], "classes": 2}
AGE = {"kind": "numeric", "min": 0, "max": 110, "missing": 40}
ARRAYS = {"features": np.arange(72, dtype=np.float32).reshape(24, 3), "labels": np.arange(24) % 2}


def row(number: int, text: str, table: str = TABLE) -> str:
    """The table with another row of this number."""
    return table.replace(ROWS[number], text)


def npz(**change: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **{**ARRAYS, **change})
    return content.getvalue()


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def with_column(**change: Any) -> dict[str, Any]:
    return {**CSV, "columns": {**COLUMNS, **change}}


@dataclass(frozen=True)
class Mistake:
    """What is wrong, what is said of it, and what mends it: another file, another source, other data, or several."""

    content: str | bytes
    says: str
    remedy: str
    source: Mapping[str, Any] = field(default_factory=lambda: CSV)
    private: str = ""
    then: str | bytes | None = None
    then_source: Mapping[str, Any] | None = None
    block: Mapping[str, Any] = field(default_factory=dict)
    then_block: Mapping[str, Any] | None = None


UNIT = {"column": "age", "max_records": 1}
SEMICOLONS = TABLE.replace(",", ";")
MISTAKES: dict[str, Mistake] = {
    "semicolons": Mistake(
        SEMICOLONS,
        "its fields are separated by a semicolon, the recipe expects a comma",
        'delimiter: ";"',
        then_source={**CSV, "delimiter": ";"},
    ),
    "tabs": Mistake(
        TABLE.replace(",", "\t"), "separated by a tab", r'delimiter: "\t"', then_source={**CSV, "delimiter": "\t"}
    ),
    "another delimiter declared": Mistake(
        TABLE, "separated by a comma, the recipe expects a semicolon", 'delimiter: ","', {**CSV, "delimiter": ";"}
    ),
    "other capitals": Mistake(
        TABLE.replace("age,", "Age,", 1),
        "column 'age' (the file has 'Age') is not in the header line",
        "write the names in the recipe as the file has them",
        then_source={**CSV, "columns": {"Age": COLUMNS["age"], "ward": COLUMNS["ward"]}},
    ),
    "a blank in a name": Mistake(
        TABLE.replace("ward", "wa rd", 1),
        "column 'ward' (the file has 'wa rd') is not",
        "as the file has them",
        then_source={**CSV, "columns": {"age": COLUMNS["age"], "wa rd": COLUMNS["ward"]}},
    ),
    "two names misspelt": Mistake(
        TABLE.replace("age,ward", "agee,wards", 1),
        "columns 'age' (the file has 'agee'), 'ward' (the file has 'wards') are not",
        "as the file has them",
        then_source={**CSV, "columns": {"agee": COLUMNS["age"], "wards": COLUMNS["ward"]}},
    ),
    "no header": Mistake(
        "\n".join(ROWS), "not in the header line", "does the file begin with a header line", then=TABLE
    ),
    "a column twice": Mistake(
        TABLE.replace("ward", "age", 1).replace("age,age", "age,age", 1),
        "column 'ward' is not in the header line",
        "check the spelling",
        then=TABLE,
    ),
    "NA": Mistake(
        row(3, f"NA,{ROWS[3].partition(',')[2]}"),
        "column 'age': a field holds a mark for a missing value, such as NA",
        "missing: {fill: 55, indicator: true}",
        private="line 5",
        then_source=with_column(age={**AGE, "missing": {"fill": 55, "indicator": True}}),
    ),
    "an empty number": Mistake(
        row(3, ",icu,yes"), "column 'age': a field is empty", "missing: {fill: 55,", then_source=with_column(age=AGE)
    ),
    "below a limit of detection": Mistake(
        row(3, "<0.5,icu,yes"),
        "column 'age': a field has < or > before its number",
        "marks: ['<0.5']",
        then_source=with_column(age={**AGE, "marks": ["<0.5"]}),
    ),
    "a decimal comma": Mistake(
        SEMICOLONS.replace("26;", "26,5;", 1),
        "column 'age': a field has a number with a comma",
        "{kind: numeric, min: 0, max: 110, decimal: comma}",
        {**CSV, "delimiter": ";"},
        then_source={**with_column(age={**COLUMNS["age"], "decimal": "comma"}), "delimiter": ";"},
    ),
    "a unit behind a number": Mistake(
        row(3, "26 y,icu,yes"),
        "column 'age': a field has a number with a unit",
        "{kind: numeric, min: 0, max: 110, affixes: ['kg']}, with the text of the file",
        then_source=with_column(age={**COLUMNS["age"], "affixes": ["y"]}),
    ),
    "words for a number": Mistake(
        row(3, f"{SECRET},icu,yes"),
        "column 'age': a field is not a finite number",
        "correct the value",
        private="line 5",
        then=TABLE,
    ),
    "an empty label": Mistake(
        row(3, "26,icu,"), "column 'ill': a label is empty", "write label.missing: omit", then=TABLE
    ),
    "a label in other capitals": Mistake(
        TABLE.replace("yes", "Yes"),
        "column 'ill': a label differs from a declared value in its capitals only",
        "as the file spells them",
        private="line 3, 12 in all",
        then_source={**CSV, "label": {"column": "ill", "values": ["no", "Yes"]}},
    ),
    "a label that is not declared": Mistake(
        row(3, f"26,icu,{SECRET}"),
        "column 'ill': a label is not among the 2 declared values",
        "every class that can occur",
        then_source={**CSV, "label": {"column": "ill", "values": ["no", "yes", SECRET]}},
    ),
    "classes counted from 1": Mistake(
        npz(labels=1 + np.arange(24) % 2),
        "a label is outside 0 … 1",
        "counted from 0",
        NPZ,
        private="record 1, counted from 0, 12 in all",
        then=npz(),
    ),
    "categories in other capitals": Mistake(
        TABLE.replace("surgery", "Surgery").replace("icu", "ICU"),
        "column 'ward': no field has one of the declared `values`: all of them would become `other`",
        "as the file spells them (capitals count)",
        then_source=with_column(ward={"kind": "category", "values": ["Surgery", "ICU"]}),
    ),
    "a range in other units": Mistake(
        TABLE,
        "column 'age': every number is at one end of the declared range or beyond",
        "in the units of the file",
        with_column(age={"kind": "numeric", "min": 0, "max": 1}),
        then_source=CSV,
    ),
    "an empty file": Mistake("", "is empty", "name another file", then=TABLE),
    "a header and nothing else": Mistake(
        "age,ward,ill\n", "has a header line and no record", "name another file", then=TABLE
    ),
    "an Excel workbook": Mistake(
        b"PK\x03\x04" + b"\0" * 60, "is an Excel workbook (.xlsx) or another zip archive", "save it as CSV", then=TABLE
    ),
    "an old Excel workbook": Mistake(
        b"\xd0\xcf\x11\xe0" + b"\0" * 60, "is an Excel workbook (.xls)", "save it as CSV", then=TABLE
    ),
    "UTF-16": Mistake(TABLE.encode("utf-16"), "is a text in UTF-16", "convert the file to UTF-8", then=TABLE),
    "Latin-1": Mistake(
        row(3, "26,icü,yes").encode("latin-1"), "a line is not UTF-8", "convert the file to UTF-8", then=TABLE
    ),
    "a row with a field too few": Mistake(
        row(3, "26,icu"), "a row has fewer fields than the header line", "correct the row", private="line 5", then=TABLE
    ),
    "an open quote": Mistake(row(3, '26,"icu,yes'), "a row is not well-formed CSV", "enclose a field", then=TABLE),
    "a size of another file": Mistake(
        TABLE,
        "data.train does not have the number of records that data.size: 20 declares",
        "data.train.records",
        block={"size": 20},
        private="more than 20 records",
        then_source={**CSV, "records": [0, 20]},
    ),
    "fewer records than declared": Mistake(
        TABLE,
        "does not have the number of records that data.size: 30",
        "declare the number that the file has",
        block={"size": 30},
        private="24 records",
        then_block={"size": 24},
    ),
    "a range that ends behind the file": Mistake(
        TABLE,
        "ends before the range `records: [10, 34]` does",
        "end the range where the file ends",
        {**CSV, "records": [10, 34]},
        private="24 records",
        then_source={**CSV, "records": [0, 24]},
    ),
    "a file cut off": Mistake(
        gzip.compress(TABLE.encode())[:-10], "can't be read (damaged or cut off)", "copy the file again", then=TABLE
    ),
    "images and labels swapped": Mistake(
        idx(np.zeros(24)),
        "one record has shape [], expected [2, 2]",
        "images and labels swapped?",
        IDX,
        then=idx(np.zeros((24, 2, 2))),
    ),
    "images of another shape": Mistake(
        idx(np.zeros((24, 2, 3))),
        "one record has shape [2, 3], expected [2, 2]",
        "or declare the shape that it has",
        IDX,
        then_source={**IDX, "shape": [2, 3]},
    ),
    "an array that is not there": Mistake(
        npz(),
        "has no array 'x'; its arrays are features, labels",
        "numpy.savez",
        {**NPZ, "features": "x"},
        then_source=NPZ,
    ),
    "python objects": Mistake(
        npz(features=np.array([[None] * 3] * 24, dtype=object)), "holds Python objects", "as numbers", NPZ, then=npz()
    ),
    "labels that are floats": Mistake(
        npz(labels=ARRAYS["labels"] / 2), "holds float64, expected integers", "as integers", NPZ, then=npz()
    ),
    "fewer labels than records": Mistake(
        npz(labels=ARRAYS["labels"][:9]), "have different numbers of records", "one entry per record", NPZ, then=npz()
    ),
    "no number is finite": Mistake(
        npz(features=np.full((24, 3), np.nan, np.float32)), "every record has a value that is not finite", "mend", NPZ,
        then=npz(),
    ),
}  # fmt: skip


@pytest.fixture
def reads(tmp_path: Path, block: Callable[..., Any]) -> Callable[..., int]:
    def reads(content: str | bytes, source: Mapping[str, Any], **rest: Any) -> int:
        name = source.get("path") or source["images"]
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        if source["source"] == "idx":
            (tmp_path / source["labels"]).write_bytes(idx(np.arange(24) % 2))
        steps = [{"one_hot": {}}] if source["source"] == "csv" else []
        first, end = source.get("records", (0, 24))
        data = block(source, **{"size": end - first, "preprocess": steps, **rest})
        return len(load(data.train, data, tmp_path, "train"))

    return reads


def test_there_are_thirty() -> None:
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_told_and_the_remedy_followed(reads: Callable[..., int], name: str) -> None:
    mistake = MISTAKES[name]
    with pytest.raises(DataFault) as caught:
        reads(mistake.content, mistake.source, **mistake.block)
    fault = caught.value
    assert mistake.says in fault.message.splitlines()[0]
    assert mistake.remedy in fault.remedy
    assert mistake.private in fault.private
    assert not re.search(rf"{SECRET}|line [0-9]|record [0-9]|\b24\b", fault.message + fault.remedy)
    source = mistake.then_source or (CSV if mistake.source.get("delimiter") == ";" and mistake.then is None else None)
    content = mistake.content if mistake.then is None else mistake.then
    block = {} if mistake.then_block is None else mistake.then_block
    assert reads(content, source or mistake.source, **block) >= 20


def test_all_faults_of_a_file_are_told_together_and_each_once(reads: Callable[..., int]) -> None:
    text = row(3, "NA,icu,") + "".join(f"{SECRET},icu,maybe\n" for _ in range(3))
    with pytest.raises(DataFault) as caught:
        reads(text, CSV, size=27)
    lines = [line for line in caught.value.message.splitlines() if line.startswith("- ")]
    assert [line.partition(": ")[2] for line in lines] == [
        "a field holds a mark for a missing value, such as NA",
        "a field is not a finite number",
        "a label is empty",
        "a label is not among the 2 declared values",
    ]
    assert "line 26, 3 in all" in caught.value.private
    assert SECRET not in caught.value.message + caught.value.private


def test_a_truth_value_as_label_says_what_to_write(tmp_path: Path, block: Callable[..., Any]) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"age": AGES, "ill": [i % 2 == 0 for i in range(24)]}), tmp_path / "t.parquet")
    source = {"source": "parquet", "path": "t.parquet", "columns": {"age": COLUMNS["age"]}}

    def read(values: list[str]) -> list[int]:
        data = block({**source, "label": {"column": "ill", "values": values}}, size=24)
        return load(data.train, data, tmp_path, "train").labels.tolist()

    with pytest.raises(DataFault, match="the labels are truth values") as caught:
        read(["no", "yes"])
    assert 'label.values: ["False", "True"]' in caught.value.remedy
    assert read(["False", "True"])[:2] == [1, 0]
    (tmp_path / "t.csv").write_bytes((tmp_path / "t.parquet").read_bytes())
    data = block({**CSV, "columns": {"age": COLUMNS["age"]}}, size=24)
    with pytest.raises(DataFault, match=r"t.csv: is a Parquet file, expected a CSV file"):
        load(data.train, data, tmp_path, "train")
