from __future__ import annotations

import io
import zlib
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data import arrow_table
from dprecipe.data.files import DataFile
from dprecipe.data.load import load
from dprecipe.data.sources import read_parquet
from dprecipe.data.sources.read_parquet import ParquetShards
from dprecipe.faults import DataFault

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image", reason="pillow is not installed")

TABLE = {
    "who": [1, 1, 2, 3],
    "age": [50.0, 200, -1, 25],
    "sex": ["f", "m", None, "x"],
    "ill": ["no", "yes", "no", "no"],
}
COLUMNS = {"age": {"kind": "numeric", "min": 0, "max": 100}, "sex": {"kind": "category", "values": ["f", "m"]}}
PIXELS = np.random.default_rng(0).integers(0, 256, (4, 3, 5, 3), dtype=np.uint8)


def encode(pixels: np.ndarray, format_: str = "PNG", mode: str | None = None) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(buffer, format_)
    return buffer.getvalue()


@pytest.fixture
def read(tmp_path: Path, block):
    def make(table: dict, *, unit="record", size=4, steps=(), rows=2, **source):
        pq.write_table(pa.table(table), tmp_path / "t.parquet", row_group_size=rows)
        data = block({"source": "parquet", "path": "t.parquet", **source}, unit=unit, size=size, preprocess=list(steps))
        return load(data.train, data, tmp_path, "train")

    return make


@pytest.fixture
def table(read):
    def make(change: dict | None = None, **rest):
        rest = {
            "columns": COLUMNS,
            "label": {"column": "ill", "values": ["no", "yes"]},
            "steps": [{"one_hot": {}}],
            **rest,
        }
        return read({**TABLE, **(change or {})}, **rest)

    return make


@pytest.fixture
def images(read):
    def make(contents: list[bytes | None], **rest):
        column = [{"bytes": content, "path": "x.png"} for content in contents]
        rest = {"image": {"column": "img", "shape": [3, 5, 3]}, "label": {"column": "label", "classes": 3}, **rest}
        return read({"img": column, "label": [0, 1, 2, 1]}, **rest)

    return make


def test_a_table(table) -> None:
    records = table()
    np.testing.assert_allclose(records.features[:, 0], [0.5, 1, 0, 0.25])
    assert records.features[:, 1:].argmax(1).tolist() == [0, 1, 2, 2]
    assert records.labels.tolist() == [0, 1, 0, 0]


def test_a_number_to_be_predicted(table, images) -> None:
    number = {"column": "ill", "range": [0, 4]}
    labels = table({"ill": [0.0, 1, 8, None]}, label=number, records=[0, 3], size=3).labels
    assert labels.dtype == np.float32
    assert labels.tolist() == [-1, -0.5, 1]
    with pytest.raises(DataFault, match="column 'ill': a label is empty"):
        table({"ill": [0.0, 1, 8, None]}, label=number)
    pictures = images([encode(pixels) for pixels in PIXELS], label={"column": "label", "range": [0, 2]})
    assert pictures.labels.dtype == np.float32
    assert pictures.labels.tolist() == [-1, 0, 1, 0]


def test_records_across_row_groups_and_batches(table, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table().features
    monkeypatch.setattr(read_parquet, "BATCH_ROWS", 1)
    for first in range(4):
        for end in range(first + 1, 5):
            result = table(records=[first, end], size=end - first, rows=3)
            np.testing.assert_array_equal(result.features, whole[first:end])
    with pytest.raises(DataFault, match="ends before the range"):
        table(records=[1, 5])


def test_t27_units(table) -> None:
    assert table(unit={"column": "who", "max_records": 1}, size=3).units.tolist() == [0, 1, 2]


def test_kinds_of_columns_that_are_read_as_they_look(table) -> None:
    dictionary = pa.array(["f", "m", None, "x"]).dictionary_encode()
    decimals = pa.array([Decimal(50), Decimal(200), Decimal(-1), Decimal(25)])
    result = table({"sex": dictionary, "age": decimals})
    np.testing.assert_array_equal(result.features, table().features)
    truth = table({"ill": [False, True, False, False]}, label={"column": "ill", "classes": 2})
    assert truth.labels.tolist() == [0, 1, 0, 0]


BAD = {
    "no such column": (
        {"label": {"column": "sick", "values": ["no", "yes"]}},
        {},
        "has no column 'sick'; its columns are",
    ),
    "a list column": ({}, {"age": [[1], [2], [3], [4]]}, "column 'age' holds list, expected numbers"),
    "a missing number": ({}, {"age": [1, None, 2, 3]}, "column 'age': a field is empty"),
    "not finite": ({}, {"age": [1, 2, float("nan"), 3]}, "column 'age': a field holds a mark for a missing value"),
    "unknown label": ({}, {"ill": ["no", "SECRET", "no", "no"]}, "column 'ill': a label is not among the 2"),
    "missing label": ({}, {"ill": ["no", "no", None, "no"]}, "column 'ill': a label is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables(table, name: str) -> None:
    rest, change, message = BAD[name]
    with pytest.raises(DataFault, match=message) as caught:
        table(change, **rest)
    assert "SECRET" not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_files_that_are_no_parquet(tmp_path: Path, block, content: bytes) -> None:
    (tmp_path / "t.parquet").write_bytes(content)
    data = block(
        {
            "source": "parquet",
            "path": "t.parquet",
            "columns": {"age": COLUMNS["age"]},
            "label": {"column": "ill", "classes": 2},
        }
    )
    with pytest.raises(DataFault, match=r"can't be read|is empty"):
        load(data.train, data, tmp_path, "train")


def test_images(images) -> None:
    records = images([encode(p) for p in PIXELS])
    assert records.features.shape == (4, 3, 3, 5)
    np.testing.assert_allclose(records.features, PIXELS.transpose(0, 3, 1, 2) / 255, rtol=1e-6)
    assert records.labels.tolist() == [0, 1, 2, 1]


def test_images_of_one_channel_and_with_a_palette(images) -> None:
    grey = images([encode(p[..., 0]) for p in PIXELS], image={"column": "img", "shape": [3, 5, 1]})
    np.testing.assert_allclose(grey.features[:, 0], PIXELS[..., 0] / 255, rtol=1e-6)
    palette = images([encode(p, mode="P") for p in PIXELS])
    assert palette.features.shape == (4, 3, 3, 5)


def test_jpeg(images) -> None:
    flat = np.full((3, 5, 3), 128, np.uint8)
    np.testing.assert_allclose(images([encode(flat, "JPEG")] * 4).features, 128 / 255, atol=0.01)


GOOD = [encode(p) for p in PIXELS]
BAD_IMAGES = {
    "none": (None, "holds no image bytes"),
    "damaged": (GOOD[2][:40], "an image is damaged"),
    "no image": (b"SECRET", "an image is damaged, or is none of PNG"),
    "another size": (encode(PIXELS[2][:, :4]), "an image is not 3×5×3"),
    "grey": (encode(PIXELS[2][..., 0]), r"an image is not 3×5×3 \(RGB"),
    "another format": (encode(PIXELS[2], "GIF"), "none of PNG, JPEG, WEBP"),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_bad_images(images, name: str) -> None:
    content, message = BAD_IMAGES[name]
    with pytest.raises(DataFault, match=message) as caught:
        images([*GOOD[:2], content, GOOD[3]])
    assert "SECRET" not in caught.value.message


def test_an_image_that_claims_to_be_huge_is_not_decoded(images) -> None:
    content = bytearray(GOOD[2])
    content[16:24] = (10_000).to_bytes(4, "big") * 2  # the PNG header's width and height, and its checksum
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    with pytest.raises(DataFault, match="an image is not 3×5×3") as caught:
        images([*GOOD[:2], bytes(content), GOOD[3]])
    assert caught.value.private == "record 2, counted from 0: 10000×10000×3, RGB"


def test_an_image_column_that_is_none(images, read) -> None:
    with pytest.raises(DataFault, match="column 'label' holds int64, expected images"):
        images(GOOD, image={"column": "label", "shape": [3, 5, 3]})


def test_a_long_text_that_each_row_repeats_is_not_unpacked(read) -> None:
    """A file of some hundred bytes that would take 2 GiB."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1024, np.int32)), pa.array(["x" * (2 << 20)]))
    before = pa.total_allocated_bytes()
    with pytest.raises(DataFault, match=r"the values of 'x' take more than 131,072 bytes each"):
        read(
            {"x": texts, "y": np.arange(1024) % 2},
            rows=1024,
            size=1024,
            columns={"x": {"kind": "text"}},
            label={"column": "y", "classes": 2},
            steps=[{"hash": {"columns": ["x"], "buckets": 8, "tokens": "value"}}],
        )
    assert pa.default_memory_pool().max_memory() - before < 1 << 28


def test_a_text_that_is_not_utf_8_is_a_fault_without_its_bytes(table) -> None:
    buffers = [None, pa.py_buffer(np.arange(5, dtype=np.int32).tobytes()), pa.py_buffer(b"\xe9\xff\xfe\xfd")]
    with pytest.raises(
        DataFault, match=r"column 'sex' has a value that can't be read: a text that is not UTF-8"
    ) as caught:
        table({"sex": pa.Array.from_buffers(pa.string(), 4, buffers)})
    assert "e9" not in f"{caught.value} {caught.value.remedy} {caught.value.private}"
    assert caught.value.__suppress_context__


def test_memory_that_does_not_suffice_is_a_fault(table, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 5 failed")

    monkeypatch.setattr(arrow_table, "column_values", refuse)
    with pytest.raises(DataFault, match="its values need more memory than there is"):
        table()


@pytest.mark.parametrize("step", [20, pytest.param(3, marks=pytest.mark.slow)])
def test_a_footer_that_ends_pyarrow_s_process_is_a_fault(tmp_path: Path, block, step: int) -> None:
    """One damaged number in it: pyarrow calls `terminate`, which nothing catches."""
    pq.write_table(pa.table(TABLE), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    source = {"source": "parquet", "path": "t.parquet", "columns": COLUMNS}
    data = block({**source, "label": {"column": "ill", "values": ["no", "yes"]}}, preprocess=[{"one_hot": {}}])
    length = int.from_bytes(whole[-8:-4], "little")
    footer = len(whole) - 8 - length
    for place in range(footer, footer + length, step):
        (tmp_path / "t.parquet").write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
        try:
            load(data.train, data, tmp_path, "train")
        except DataFault:
            continue


def test_an_id_that_is_no_number_is_nobody_s(table) -> None:
    with pytest.raises(DataFault, match="column 'who': a field is empty that names the unit or the record"):
        table({"who": [1.0, float("nan"), 2.0, 2.0]}, unit={"column": "who", "max_records": 2}, size=2)


@pytest.mark.parametrize(
    "kind", [[[1], [2], [3], [4]], [{"a": 1}] * 4, pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64()))]
)
def test_a_nested_column_is_a_fault(table, kind) -> None:
    with pytest.raises(DataFault, match="column 'sex' holds"):
        table({"sex": kind})


def test_names_without_a_stored_dictionary_are_in_memory_a_batch_at_a_time(tmp_path: Path) -> None:
    """pyarrow would make one of all names of the file, and hand it over with each batch."""
    table = pa.table({"who": [f"person {number}" for number in range(4000)], "town": ["Bern", "Rom"] * 2000})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000, use_dictionary=["town"])
    file, names = DataFile.of(tmp_path / "t.parquet"), ("who", "town")
    batches = list(ParquetShards().batches(file, slice(0, 4000), names, 1000))
    assert len(batches) > 1
    assert all(not pa.types.is_dictionary(batch.column("who").type) for _, batch in batches)
    assert max(len(batch.column("town").dictionary) for _, batch in batches) == 2
    assert [name for _, batch in batches for name in batch.column("who").to_pylist()] == table["who"].to_pylist()
