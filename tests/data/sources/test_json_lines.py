"""`json_lines`: one object a line, strictly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.data.sources import read_json_lines
from dprecipe.faults import DataFault

COLUMNS = {
    "age": {"kind": "numeric", "min": 0, "max": 100, "missing": 50},
    "sex": {"kind": "category", "values": ["f", "m"]},
}
ROWS = [
    {"age": 50, "sex": "f", "ill": "no", "who": 7},
    {"who": 7, "ill": "yes", "sex": "x", "age": None, "more": [[{}]]},
    {"age": 2e3, "sex": "m", "ill": "no", "who": "b"},
]
SECRET = "SECRET-VALUE-42"


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def read(tmp_path: Path, block):
    def make(text: str | bytes, *, size: int = 3, unit: Any = "record", columns: Any = COLUMNS, **source: Any):
        (tmp_path / "t.jsonl").write_bytes(text.encode() if isinstance(text, str) else text)
        train = {"source": "json_lines", "path": "t.jsonl", "columns": columns, **source}
        train.setdefault("label", {"column": "ill", "values": ["no", "yes"]})
        data = block(train, size=size, unit=unit, preprocess=[{"one_hot": {}}])
        return load(data.train, data, tmp_path, "train")

    return make


def test_an_object_is_a_row(read) -> None:
    records = read(lines(ROWS))
    np.testing.assert_allclose(records.features[:, 0], [0.5, 0.5, 1.0])
    assert records.features[:, 1:].argmax(1).tolist() == [0, 2, 1]
    assert records.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "content",
    [gzip.compress(lines(ROWS).encode()), "\ufeff" + lines(ROWS), lines(ROWS)[:-1]],
    ids=["gzip", "mark", "end"],
)
def test_gzip_a_mark_and_a_missing_end_change_nothing(read, content: str | bytes) -> None:
    np.testing.assert_array_equal(read(content).features, read(lines(ROWS)).features)


def test_chunks_of_any_size_are_one_table(read, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(lines(ROWS * 3), size=9).features
    monkeypatch.setattr(read_json_lines, "CHUNK_ROWS", 2)
    np.testing.assert_array_equal(read(lines(ROWS * 3), size=9).features, whole)


def test_a_range_of_records_and_units(read) -> None:
    assert read(lines(ROWS), size=1, records=[2, 3]).features[0, 0] == 1
    records = read(lines(ROWS), size=2, unit={"column": "who", "max_records": 5})
    assert records.units is not None
    assert records.units.tolist() == [0, 0, 1]


BAD_LINES = {
    "": "has no line",
    "\n": "has no line",
    f'["{SECRET}"]\n': "no JSON object",
    f'{{"age": "{SECRET}\n': "no JSON object",
    '{"age": NaN, "sex": "f", "ill": "no"}\n': "no JSON object",
    '{"age": 1, "age": 2, "sex": "f", "ill": "no"}\n': "no JSON object",
    '{"age": 1, "sex": "f", "ill": "no"} {}\n': "no JSON object",
    '{"age": 1, "sex": "f", "ill": "no", "x": ' + "[" * 100 + "]" * 100 + "}\n": "no JSON object",
    '{"x": ' + "[" * 100_000 + "\n": "no JSON object",
    '{"x": ' + "9" * 10_000 + "}\n": "no JSON object",
    '{"age": 1, "sex": "f", "Ill": "no"}\n': r"column 'ill': a line has no such key \(it has 'Ill'\)",
    f'{{"age": ["{SECRET}"], "sex": "f", "ill": "no"}}\n': "holds a list or an object",
    f'{{"age": "{SECRET}", "sex": "f", "ill": "no"}}\n': "not a finite number",
    "PAR1": "is a Parquet file",
}


@pytest.mark.parametrize("text", BAD_LINES)
def test_what_is_no_table_is_refused_and_not_quoted(read, text: str) -> None:
    with pytest.raises(DataFault, match=BAD_LINES[text]) as caught:
        read(text, size=1)
    assert SECRET not in f"{caught.value} {caught.value.private}"
    if "line" in caught.value.private:
        assert "line 1" in caught.value.private


def test_text_in_another_encoding_and_long_lines(read, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataFault, match="no JSON object in UTF-8"):
        read('{"age": "é"}'.encode("latin-1"))
    monkeypatch.setattr(read_json_lines, "MAX_LINE_BYTES", 50)
    with pytest.raises(DataFault, match="longer than 50 bytes") as caught:
        read(lines(ROWS))
    assert caught.value.private == "line 2"


def test_blank_lines_are_skipped(read) -> None:
    spaced = "\n" + lines(ROWS).replace("\n", "\n  \n")
    np.testing.assert_array_equal(read(spaced).features, read(lines(ROWS)).features)


def test_brackets_in_texts_are_no_nesting(read) -> None:
    row = {**ROWS[0], "sex": '["{' * 100 + '\\"'}
    assert read(lines([row]), size=1).features[0, 1:].tolist() == [0, 0, 1]


def test_names_of_units_have_one_form_and_more_records_than_declared_are_refused(read) -> None:
    with pytest.raises(DataFault, match="named by texts or whole numbers"):
        read(lines([{**ROWS[0], "who": 7.0}]), size=1, unit={"column": "who", "max_records": 1})
    with pytest.raises(DataFault, match="does not have the number of records"):
        read(lines(ROWS), size=2)


def test_a_text_without_an_end_is_one_text() -> None:
    """A search that fails at each quote of a line of 4 MiB takes hours."""
    assert read_json_lines.STRINGS.sub("", '"' + '\\"[' * 100 + "\\") == "\\"
    with pytest.raises(ValueError, match="Unterminated"):
        read_json_lines.parse_object(b'{"text": "' + b'\\"[' * 1_000_000)
