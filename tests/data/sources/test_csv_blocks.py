"""Plain lines split by pyarrow are read as the exact reader reads them, whatever a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dprecipe.data.load import read
from dprecipe.data.schema import Data
from dprecipe.data.sources import csv_blocks, read_csv
from dprecipe.data.sources.csv_blocks import BlockSplitter, SplitBlock
from dprecipe.data.values import parse_numbers
from dprecipe.faults import DataFault

NUMBERS = [
    "1",
    "-7",
    " 25 ",
    "1e3",
    "1e400",
    "nan",
    "inf",
    "",
    " ",
    "NA",
    "1_0",
    "0x1",
    "+.5",
    "٣",
    "<0.5",
    "1,5",
    "0.1",
]
TEXTS = ["f", "m", " f ", "", "é", "a b", "x" * 40, "3", "f\x0b", "NULL", "it's"]
DATA: dict[str, Any] = {
    "train": {
        "source": "csv",
        "path": "t.csv",
        "columns": {
            "age": {"kind": "numeric", "min": 0, "max": 100, "missing": 5},
            "sex": {"kind": "category", "values": ["f", "m", "3"]},
            "note": {"kind": "text"},
        },
        "label": {"column": "score", "range": [-1, 50]},
    },
    "preprocess": [{"one_hot": {}}, {"hash": {"columns": ["note"], "buckets": 8}}],
}


def quoted(field: str, style: int) -> str:
    if style == 1:
        return '"' + field.replace('"', '""') + '"'
    return {2: f'"{field}"x', 3: f'{field}"', 4: f'"{field}\n{field}"'}.get(style, field)


FIELDS = st.builds(quoted, st.sampled_from(NUMBERS + TEXTS), st.sampled_from([0] * 24 + [1] * 8 + [2, 3, 4]))
ROW = st.tuples(
    st.builds(quoted, st.sampled_from(NUMBERS[:4] + NUMBERS[7:10]), st.sampled_from([0, 0, 1])),
    FIELDS.filter(lambda field: "," not in field or field[0] == '"'),
    st.sampled_from(TEXTS),
    st.sampled_from(["1", "2.5", "-3", "60", "1e2"]),
    st.sampled_from(["u1", "u2", "u3", '"u 4"']),
)
ENDS = st.sampled_from(["\n"] * 9 + ["\r\n"] * 4 + ["\n\n", "\r", ",\n", " \n", "\0\n"])


def data_of(size: int, **source: object) -> Data:
    return Data.model_validate_json(json.dumps({**DATA, "train": {**DATA["train"], **source}, "size": size}))


def set_block_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for module in (csv_blocks, read_csv):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)


def outcome(folder: Path, rows: int) -> object:
    """What is read of a file, or why it is refused."""
    data = data_of(rows)
    try:
        records, counts = read(data.train, data, folder, "train", identity="id")
    except DataFault as fault:
        return fault.message, fault.remedy, fault.private
    names = records.identities
    assert names is not None
    return records.features.tobytes(), records.labels.tobytes(), names.of_record.tolist(), counts.as_json()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(ROW, ENDS), min_size=1, max_size=12), st.integers(1, 120))
def test_blocks_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[tuple[str, ...], str]], size: int
) -> None:
    text = "age,sex,note,score,id\n" + "".join(",".join(row) + end for row, end in rows)
    (tmp_path / "t.csv").write_bytes(text.encode())
    set_block_bytes(monkeypatch, 1 << 30)
    exact = outcome(tmp_path, len(rows))
    set_block_bytes(monkeypatch, size)
    assert outcome(tmp_path, len(rows)) == exact


POSITIONS = {"a": 0, "b": 1}


def split_block(content: bytes) -> SplitBlock | None:
    return BlockSplitter(",", 2, POSITIONS, {"a"}).split(content)


def test_a_block_of_plain_lines() -> None:
    block = split_block(b'1,x\r\n,"y, z"\n3,\n')
    assert block is not None
    assert block.rows == 3
    assert np.ma.getmaskarray(block.columns["a"]).tolist() == [False, True, False]
    assert block.columns["a"].tolist() == [1.0, None, 3.0]  # type: ignore[union-attr]
    assert list(block.columns["b"]) == ["x", "y, z", ""]


@pytest.mark.parametrize(
    "content",
    [
        b'1,"x\n',  # a quote that does not close
        b'1,"x\ny"\n',  # a field of two lines
        b'1,"x"y\n',  # text behind a quote
        b'1,x"y"\n',  # quotes within a field
        b'1,"x""y"\n',  # an escaped quote
        b"1,x\n\n2,y\n",  # a blank line
        b"\n1,x\n",
        b"1,x\r\n\r\n2,y\r\n",
        b"1,x\n\r\n2,y\n",
        b"\r\n1,x\n",
        b"1,x\r\n\n",
        b"1,x\r2,y\n",  # line breaks of their own kind
        b"1,x\n2\n",  # a field is missing
        b"1,x,2\n",
        b"1,\xff\n",  # not UTF-8
        b"\xef\xbb\xbf1,x\n",  # a mark of byte order within the file
        b"1,\0\n",
        b"1," + b"x" * 131_073 + b"\n",
    ],
)
def test_what_is_not_plain_is_left_to_the_exact_reader(content: bytes) -> None:
    assert split_block(content) is None


def test_numbers_stay_texts_where_one_of_them_is_none() -> None:
    block = split_block(b"1,x\nNA,y\n")
    assert block is not None
    assert list(block.columns["a"]) == ["1", "NA"]


def test_what_a_column_held_before_changes_no_value() -> None:
    """A block that is read as texts first, because of one before it, is what it would have been by itself."""
    splitter = BlockSplitter(",", 2, POSITIONS, {"a", "b"})
    for content in (b"1, 2\nNA,\n", b" 1 ,2\n,3\n", b"1e400,4\n", b"5,nan\n,6\n", b"7,8\n"):
        block, alone = splitter.split(content), BlockSplitter(",", 2, POSITIONS, {"a", "b"}).split(content)
        assert block is not None
        assert alone is not None
        for name in POSITIONS:
            numbers = parse_numbers(block.columns[name])
            np.testing.assert_array_equal(numbers, parse_numbers(alone.columns[name]))


def test_ranges_and_line_numbers_run_on_over_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f"{number},f,x,1,u{number}" for number in range(40)]
    lines[31] = "bad,f,x,1,u31"
    text = "age,sex,note,score,id\n" + "\n".join(lines) + "\n"
    (tmp_path / "t.csv").write_bytes(text.encode())
    set_block_bytes(monkeypatch, 64)

    def part(first: int, end: int) -> np.ndarray:
        data = data_of(end - first, records=[first, end])
        return read(data.train, data, tmp_path, "train")[0].features

    np.testing.assert_allclose(part(5, 29)[:, 0] * 100, np.arange(5, 29), rtol=1e-5)
    with pytest.raises(DataFault) as caught:
        part(29, 40)
    assert "line 33" in caught.value.private


@pytest.mark.parametrize("split", ["1,1,7\n" * 5 + "\n" + "1,1,7\n" * 5, "1,1,7\n" * 40 + "1,1,x\n" + "1,1,7\n" * 40])
def test_a_unit_named_by_a_column_of_numbers_stays_one_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str
) -> None:
    """Where a block is left to the exact reader, or holds a text, as where it is not: 7 is never 7.0 as well."""
    (tmp_path / "t.csv").write_text(f"age,score,id\n{split}")
    declared = {
        "source": "csv",
        "path": "t.csv",
        "columns": {
            "age": {"kind": "numeric", "min": 0, "max": 9},
            "id": {"kind": "integer", "min": 0, "max": 9, "missing": 0, "marks": ["x"]},
        },
        "label": {"column": "score", "range": [0, 1]},
    }
    unit = {"column": "id", "max_records": 2}
    data = Data.model_validate_json(json.dumps({"train": declared, "size": {"max": 9}, "unit": unit}))
    for size in (1 << 30, 16):
        set_block_bytes(monkeypatch, size)
        records = read(data.train, data, tmp_path, "train")[0]
        assert records.identities is not None
        assert records.identities.names == tuple(dict.fromkeys(line.rpartition(",")[2] for line in split.split()))


def test_texts_that_stand_for_no_finite_number_stay_texts() -> None:
    """So that a mark for a missing value is found as it is written."""
    block = split_block(b"1,x\nInfinity,y\n")
    assert block is not None
    assert list(block.columns["a"]) == ["1", "Infinity"]
