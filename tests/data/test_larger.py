"""Records in mapped files are those in memory, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dprecipe.data import load
from dprecipe.data.records import Records
from dprecipe.data.storage import MappedTexts, Storage
from dprecipe.training.publish.provenance import as_bytes, private_of
from tests.sweeps import sweep

ROWS = 300
DRAWN = np.random.default_rng(0)
WHO = [f"person number {number}" for number in DRAWN.integers(0, 40, ROWS)]
AGES, TOWNS = DRAWN.integers(-5, 120, ROWS), [["Bern", "Ulm", "Rom"][n] for n in DRAWN.integers(0, 3, ROWS)]
ILL = DRAWN.integers(0, 2, ROWS)
PIXELS = DRAWN.integers(0, 256, (ROWS, 4, 5, 3), np.uint8)
TABLE = {
    "columns": {
        "age": {"kind": "numeric", "min": 0, "max": 100},
        "town": {"kind": "category", "values": ["Bern", "Ulm"]},
        "note": {"kind": "text"},
    },
    "label": {"column": "ill", "classes": 2},
}
STEPS = [{"one_hot": {}}, {"hash": {"columns": ["note"], "buckets": 7}}, {"scale": {"mean": 0.3, "std": 0.7}}]
ITEMS = [{"one_hot": {}}, {"dp_vocabulary": {"column": "note", "max_items": 2, "width": 5, "share": 0.1}}]
UNIT = {"unit": {"column": "who", "max_records": 5}, "size": len(set(WHO))}


def write_csv(folder: Path) -> None:
    rows = zip(AGES, TOWNS, WHO, ILL, strict=True)
    lines = [f"{age},{town},{who} and {town},{who},{ill}" for age, town, who, ill in rows]
    (folder / "t.csv").write_text("\n".join(["age,town,note,who,ill", *lines]) + "\n")


def write_table(folder: Path) -> None:
    notes = [f"{who} and {town}" for who, town in zip(WHO, TOWNS, strict=True)]
    table = pa.table({"age": AGES, "town": TOWNS, "note": notes, "who": WHO, "ill": ILL})
    pq.write_table(table, folder / "t.parquet", row_group_size=70)


def write_images(folder: Path) -> None:
    contents = []
    for pixels in PIXELS:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "png")
        contents.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"image": contents, "who": WHO, "ill": ILL}), folder / "i.parquet", row_group_size=70)


def write_arrays(folder: Path) -> None:
    np.savez_compressed(folder / "a.npz", features=PIXELS, labels=ILL, who=np.array(WHO))
    np.savez(folder / "f.npz", features=np.asfortranarray(PIXELS.astype(np.float64)), labels=ILL, who=np.array(WHO))
    for name, array in (("x", PIXELS[..., 0]), ("y", ILL.astype(np.uint8))):
        header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        (folder / name).write_bytes(header + array.tobytes())


IMAGE = {"column": "image", "shape": [4, 5, 3]}
ARRAYS = {"source": "npz", "shape": [4, 5, 3], "classes": 2}
SOURCES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "csv": (write_csv, {"source": "csv", "path": "t.csv", **TABLE}, {"preprocess": STEPS}),
    "csv of units": (write_csv, {"source": "csv", "path": "t.csv", **TABLE}, {"preprocess": STEPS, **UNIT}),
    "csv, a part": (write_csv, {"source": "csv", "path": "t.csv", **TABLE, "records": [7, 250]}, {"preprocess": STEPS}),
    "parquet": (write_table, {"source": "parquet", "path": "t.parquet", **TABLE}, {"preprocess": STEPS}),
    "parquet of units": (
        write_table,
        {"source": "parquet", "path": "t.parquet", **TABLE},
        {"preprocess": STEPS, **UNIT},
    ),
    "items": (write_table, {"source": "parquet", "path": "t.parquet", **TABLE}, {"preprocess": ITEMS, **UNIT}),
    "images": (
        write_images,
        {"source": "parquet", "path": "i.parquet", "image": IMAGE, "label": TABLE["label"]},
        {"preprocess": STEPS[2:]},
    ),
    "images of units": (
        write_images,
        {"source": "parquet", "path": "i.parquet", "image": IMAGE, "label": TABLE["label"]},
        UNIT,
    ),
    "npz": (write_arrays, {**ARRAYS, "path": "a.npz"}, {"preprocess": [{"clip_features": {"norm": 3.0}}]}),
    "npz of units": (write_arrays, {**ARRAYS, "path": "a.npz"}, UNIT),
    "npz by columns": (write_arrays, {**ARRAYS, "path": "f.npz", "records": [3, 290]}, UNIT),
    "idx": (write_arrays, {"source": "idx", "images": "x", "labels": "y", "shape": [4, 5], "classes": 2}, {}),
}


def bytes_of(records: Records) -> list[bytes]:
    return [bytes(as_bytes(part)) for part in private_of(records) or []]


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("role", sweep(["train", "test"], (0,)))
def test_mapped_files_hold_what_memory_holds(
    name: str, role: str, block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, source, rest = SOURCES[name]
    write(tmp_path)
    first, end = source.get("records", [0, ROWS])
    rest = {"size": end - first, **rest}
    if "unit" in rest:
        rest["size"] = len(set(WHO[first:end]))
    data = block(source, test=source, **rest)
    chosen = data.train if role == "train" else data.test
    memory, counts = load.read(chosen, data, tmp_path, role)
    monkeypatch.setattr(load, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(load, "SPILLING", Storage(0))
    mapped, mapped_counts = load.read(chosen, data, tmp_path, role)
    for one, other in ((memory.features, mapped.features), (memory.labels, mapped.labels)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    assert counts == mapped_counts
    if memory.units is not None:
        np.testing.assert_array_equal(memory.units, mapped.units)
        assert np.bincount(memory.units).max() == 5
    if memory.identities is not None:
        assert mapped.identities is not None
        assert list(memory.identities.texts()) == list(mapped.identities.texts())
        np.testing.assert_array_equal(memory.identities.of_record, mapped.identities.of_record)
    assert memory.texts.keys() == mapped.texts.keys()
    for text, column in memory.texts.items():
        assert isinstance(mapped.texts[text].values, MappedTexts)
        assert list(column.values) == list(mapped.texts[text].values)
    if memory.next_stage is None:
        rows = DRAWN.permutation(len(memory))[:50]
        for part in (rows, slice(10, 30), slice(0, 0)):
            for one, other in zip(memory.prepared().batch(part), mapped.batch(part), strict=True):
                assert one.tobytes() == other.tobytes()
        assert bytes_of(memory.prepared()) == bytes_of(mapped.prepared())


def test_only_the_declared_size_decides_where_training_records_go(
    block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path)
    opened: list[str] = []

    def open_file(part: str):
        opened.append(part)
        return load.SPILLING.open_file(part)

    monkeypatch.setattr(load, "Storage", lambda limit=0, expected=0: Storage(limit, open_file, None, expected))
    for size, most, files in ((ROWS, 10**6, 0), (ROWS, 10**3, 2), (10**5, 10**5, 2)):
        opened.clear()
        monkeypatch.setattr(load, "IN_MEMORY_BYTES", most)
        data = block(SOURCES["csv"][1], size={"max": size}, preprocess=STEPS)
        load.read(data.train, data, tmp_path, "train")
        assert len(opened) == files
