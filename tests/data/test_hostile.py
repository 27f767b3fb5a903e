"""Files that were made to cost time or memory: no more of them is read than the recipe declares."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data import arrow_table, raw
from dprecipe.data.load import load
from dprecipe.data.sources import read_csv
from dprecipe.faults import DataFault

CSV = {
    "source": "csv",
    "path": "f",
    "columns": {"age": {"kind": "numeric", "min": 0, "max": 110}},
    "label": {"column": "ill", "classes": 2},
}
NPZ = {"source": "npz", "path": "f", "shape": [100], "classes": 2}
IDX = {"source": "idx", "images": "f", "labels": "l", "shape": [28, 28]}
LIMIT = 32 << 20


@pytest.fixture
def reads(tmp_path: Path, block: Callable[..., Any]) -> Callable[..., int]:
    def reads(content: bytes, source: dict[str, Any], **rest: Any) -> int:
        (tmp_path / "f").write_bytes(content)
        data = block(source, **{"size": 100, **rest})
        return len(load(data.train, data, tmp_path, "train"))

    return reads


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Python and NumPy take no more memory than this at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


class CountingLines:
    """How many lines of a table were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, real = 0, read_csv.CsvLines.__iter__

        def counting(lines: Any) -> Iterator[str]:
            for line in real(lines):
                self.count += 1
                yield line

        monkeypatch.setattr(read_csv.CsvLines, "__iter__", counting)


def test_of_a_table_with_millions_of_rows_size_and_one_more_are_read(
    reads: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = gzip.compress(b"age,ill\n" + b"30,1\n" * 300_000, compresslevel=1)
    lines = CountingLines(monkeypatch)
    with at_most(LIMIT), pytest.raises(DataFault, match=r"the number of records that data.size: 100") as caught:
        reads(content, CSV)
    assert lines.count <= 102
    assert caught.value.private == "more than 100 records"
    lines.count = 0
    assert reads(content, {**CSV, "records": [50, 150]}) == 100
    assert lines.count <= 152


def test_of_units_as_many_as_declared_are_read(reads: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    unit = {"column": "id", "max_records": 2}
    many = b"id,age,ill\n" + b"".join(b"u%d,30,1\n" % i for i in range(20_000))
    lines = CountingLines(monkeypatch)
    with pytest.raises(DataFault, match=r"the number of units \(values of id\) that data.size: 100"):
        reads(many, CSV, unit=unit)
    assert lines.count <= read_csv.CHUNK_ROWS + 2
    one = b"id,age,ill\n" + b"u,30,1\n" * 100_000
    lines.count = 0
    with at_most(LIMIT), pytest.raises(DataFault, match="more than 20,000 rows, 100 for each record"):
        reads(one, CSV, unit=unit)
    assert lines.count <= 20_002
    # Rows that do not count are passed over, and what they hold is not looked at.
    spread = b"id,age,ill\n" + b"".join(b"u%d,%s,1\n" % (i % 100, b"30" if i < 200 else b"x") for i in range(2_000))
    assert reads(spread, CSV, unit=unit) == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"age,ill\n" + b"\n" * 500_000, "more than 100,000 blank lines"),
        (b"age,ill\n" + b"x" * (2 << 20), "longer than"),
        (b'age,ill\n"' + b"a\n" * 200_000, "not well-formed|longer than"),
        (b"age,ill\n" + b",".join([b'"a\n"'] * 100_000), "longer than"),
        (b"age,ill\n" + b"\0" * (1 << 10), "contains a zero byte"),
    ],
    ids=["blank lines", "a long line", "a field without end", "a row without end", "zeros"],
)
def test_a_table_without_end(
    reads: Callable[..., int], content: bytes, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_csv, "MAX_ROW_BYTES", 1 << 17)
    content = gzip.compress(content, compresslevel=1)
    with at_most(2 * LIMIT), pytest.raises(DataFault, match=says):
        reads(content, CSV)


def bomb(shape: tuple[int, ...], written: int, kind: int = zipfile.ZIP_DEFLATED, header: bytes | None = None) -> bytes:
    """An archive whose features unpack to `written` bytes of zeros behind a header that announces `shape`."""
    buffer = io.BytesIO()
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        with archive.open("features.npy", "w", force_zip64=True) as member:
            member.write(head.getvalue() if header is None else header)
            for _ in range(written >> 20):
                member.write(bytes(1 << 20))
        labels = io.BytesIO()
        np.save(labels, np.zeros(shape[0] if shape[0] < 1000 else 100, np.int64))
        archive.writestr("labels.npy", labels.getvalue())
    return buffer.getvalue()


def test_an_archive_is_held_against_the_recipe_before_it_is_unpacked(reads: Callable[..., int]) -> None:
    for content, says in (
        (bomb((1_000_000, 100), 100 << 20), "different numbers of records"),
        (bomb((101, 100), 100 << 20), "the number of records that data.size: 100"),
        (bomb((100, 100), 100 << 20), "does not end with the last record"),
        (bomb((100, 1000), 100 << 20), r"has the shape \[records, 1000\]"),
        (bomb((100, 100), 100 << 20, header=b"\x93NUMPY\x02\x00\xff\xff\xff\x7f"), "a header of more than"),
    ):
        with at_most(LIMIT), pytest.raises(DataFault, match=says):
            reads(content, NPZ)


def test_a_range_of_an_archive_unpacks_that_range(reads: Callable[..., int], tmp_path: Path) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, features=np.ones((300_000, 100), np.uint8), labels=np.zeros(300_000, np.uint8))
    with at_most(LIMIT):
        assert reads(content.getvalue(), {**NPZ, "records": [1000, 1100]}) == 100


def test_images_are_held_against_the_recipe_before_they_are_unpacked(reads: Callable[..., int], tmp_path: Path) -> None:
    count = 400_000
    (tmp_path / "l").write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, count) + bytes(count)))
    content = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, count, 28, 28) + bytes(count * 784), compresslevel=1)
    with at_most(LIMIT), pytest.raises(DataFault, match=r"the number of records that data.size: 100"):
        reads(content, IDX)
    with at_most(LIMIT):
        assert reads(content, {**IDX, "records": [500, 600]}) == 100


def test_a_parquet_file_is_held_against_the_recipe_before_rows_are_read(
    tmp_path: Path, block: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    groups: list[list[int]] = []
    real = pq.ParquetFile.iter_batches

    def watched(file: Any, *args: Any, row_groups: list[int], **rest: Any) -> Any:
        groups.append(row_groups)
        return real(file, *args, row_groups=row_groups, **rest)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watched)
    pq.write_table(pa.table({"age": [30] * 5_000, "ill": [1] * 5_000}), tmp_path / "f", row_group_size=1000)

    def read(**change: Any) -> int:
        data = block({**CSV, "source": "parquet", **change}, size=100)
        return len(load(data.train, data, tmp_path, "train"))

    with pytest.raises(DataFault, match=r"the number of records that data.size: 100") as caught:
        read()
    assert caught.value.private == "5,000 records"
    assert groups == []
    assert read(records=[3050, 3150]) == 100
    assert groups == [[3]]
    monkeypatch.setattr(arrow_table, "MAX_VALUE_BYTES", 1000)
    pq.write_table(pa.table({"age": ["x" * 20_000] * 100, "ill": [1] * 100}), tmp_path / "f", use_dictionary=False)
    with pytest.raises(DataFault, match="the values of 'age' take more than"):
        read()


def test_a_set_without_a_size_has_a_bound_too(
    tmp_path: Path, block: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "MAX_RECORDS", 50)
    (tmp_path / "f").write_text("age,ill\n" + "30,1\n31,0\n" * 40)
    data = block(CSV, size=100, test=CSV)
    with pytest.raises(DataFault, match=r"data.test has more than 50 records") as caught:
        load(data.test, data, tmp_path, "test")
    assert "data.test.records: [0, 50]" in caught.value.remedy
    data = block(CSV, size=100, test={**CSV, "records": [0, 50]})
    assert len(load(data.test, data, tmp_path, "test")) == 50
