"""Names and kinds beside an unfinished recipe: what differs is found, and no value is quoted."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dprecipe.data.headers import check_headers

SECRETS = ("Zebra", "7319")
ROWS = [("age", "when", "day", "ok", "word", "y")] + [
    (str(20 + n), f"2024-05-1{n}", f"{n + 1:02d}.05.2024", "yes" if n % 2 else "no", f"Zebra{n} 7319", "a")
    for n in range(9)
]


def check(folder: Path, columns: dict[str, Any], **more: Any) -> list[str]:
    source = {"source": "csv", "path": "t.csv", "columns": columns, "label": {"column": "y", "values": None}, **more}
    _, faults = check_headers({"train": source, "size": None, "unit": {"column": "age", "max_records": None}}, folder)
    told = [f"{fault.message} = {fault.remedy}" for fault in faults]
    assert not [secret for secret in SECRETS for line in told if secret in line]
    return told


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text("\n".join(map(",".join, ROWS)) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("age", {"kind": "integer", "min": None, "max": None}),
        ("age", {"kind": "numeric", "min": None, "max": None}),
        ("age", {"kind": "category", "values": None}),
        ("when", {"kind": "date", "min": None, "max": None}),
        ("day", {"kind": "date", "min": None, "max": None, "format": None}),
        ("ok", {"kind": "boolean"}),
        ("word", {"kind": "text"}),
        ("word", {"kind": "boolean", "values": None}),
    ],
)
def test_kinds_that_fit(name: str, block: dict[str, Any], folder: Path) -> None:
    assert check(folder, {name: block}) == []


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("word", "integer", "hold texts"),
        ("word", "numeric", "hold texts"),
        ("when", "numeric", "hold dates"),
        ("age", "date", "hold numbers"),
        ("age", "boolean", "values: [NO, YES]"),
        ("day", "date", "write how they are written: format"),
        ("Age", "integer", "there is no column 'Age' = write 'age'"),
        ("pulse", "integer", "there is no column 'pulse' = correct the name"),
    ],
)
def test_names_and_kinds_that_do_not(name: str, kind: str, said: str, folder: Path) -> None:
    (told,) = check(folder, {name: {"kind": kind}})
    assert said in told


@pytest.mark.parametrize("kind", ["date32", "timestamp"])
def test_a_column_whose_type_is_that_of_dates_takes_no_format(kind: str, folder: Path) -> None:
    kinds = {"date32": pa.date32(), "timestamp": pa.timestamp("us", tz="UTC")}
    when = pa.array([date(2024, 5, 17)] * 3).cast(kinds[kind])
    pq.write_table(pa.table({"when": when, "age": ["a"] * 3, "y": ["a", "b", "a"]}), folder / "t.parquet")
    source = {"source": "parquet", "path": "t.parquet"}
    for block in ({"format": "%d.%m.%Y"}, {"format": None}):
        (told,) = check(folder, {"when": {"kind": "date", **block}}, **source)
        assert told.endswith("= remove format")
    assert check(folder, {"when": {"kind": "date"}}, **source) == []


def test_labels_formats_and_files(folder: Path) -> None:
    assert "no column 'z'" in check(folder, {}, label={"column": "z"})[0]
    assert "separated by ',', not ';'" in check(folder, {}, delimiter=";")[0]
    assert "write source: csv" in check(folder, {}, source="json_lines")[0]
    assert "no such data file" in check(folder, {}, path="none.csv")[0]
    assert check(folder, {"x": {"kind": "text"}}, path=None) == []


def test_other_sources(folder: Path) -> None:
    (folder / "t.jsonl").write_text("\n".join(json.dumps(dict(zip(ROWS[0], row, strict=True))) for row in ROWS[1:]))
    assert check(folder, {"age": {"kind": "integer"}}, source="json_lines", path="t.jsonl") == []
    np.savez(folder / "t.npz", features=np.zeros((3, 2)), labels=np.zeros(3, dtype=int))
    arrays = {"source": "npz", "path": "t.npz", "features": "features", "labels": "label", "shape": [3]}
    _, faults = check_headers({"train": arrays}, folder)
    assert [fault.message for fault in faults] == [
        "data.train: there is no array 'label'",
        "data.train: a record of its features has the shape [2], not [3]",
    ]
    assert check_headers({"train": {"source": "digits"}}, folder) == ([], [])


def test_a_file_that_a_pattern_matches_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "pat").mkdir()
    (tmp_path / "pat" / "SMITH_JOHN.csv").write_text("age,y\n3\n")
    source = {"source": "csv", "path": "pat/*.csv", "columns": {"age": {"kind": "integer"}}, "label": {"column": "y"}}
    _, (fault,) = check_headers({"train": source}, tmp_path)
    assert "SMITH" not in f"{fault.message} {fault.remedy}"
    assert "SMITH" in fault.private
