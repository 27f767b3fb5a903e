from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.faults import DataFault

PIXELS = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
LABELS = np.array([0, 1, 2, 1], dtype=np.uint8)


def idx(array: np.ndarray, code: int = 8) -> bytes:
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.tobytes()


@pytest.fixture
def write(tmp_path: Path, block):
    def make(images: bytes = idx(PIXELS), labels: bytes = idx(LABELS), **source):
        (tmp_path / "i").write_bytes(images)
        (tmp_path / "l").write_bytes(labels)
        train = {"source": "idx", "images": "i", "labels": "l", "shape": [2, 3], "classes": 3, **source}
        data = block(train)
        return load(data.train, data, tmp_path, "train")

    return make


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzipped"])
def test_images_and_labels(write, pack) -> None:
    records = write(pack(idx(PIXELS)), pack(idx(LABELS)))
    np.testing.assert_allclose(records.features[:, 0], PIXELS / 255, rtol=1e-6)
    assert records.features.shape == (4, 1, 2, 3)
    assert records.labels.tolist() == [0, 1, 2, 1]
    assert records.labels.dtype == np.int64


BAD = {
    "labels swapped with images": ({"images": idx(LABELS)}, r"one record has shape \[\], expected \[2, 3\]"),
    "another shape": ({"images": idx(PIXELS.reshape(4, 3, 2))}, r"has shape \[3, 2\]"),
    "not idx": ({"images": b"PK\x03\x04 something"}, "is not an IDX file; expected"),
    "empty": ({"images": b""}, "is not an IDX file"),
    "floats": ({"images": idx(PIXELS, code=0x0D)}, "not unsigned bytes"),
    "ends in header": ({"images": idx(PIXELS)[:9]}, "ends within its header"),
    "cut off": ({"images": idx(PIXELS)[:-1]}, "ends before the last record"),
    "too long": ({"images": idx(PIXELS) + b"x"}, "goes on after the last record"),
    "gzip cut off": ({"images": gzip.compress(idx(PIXELS))[:-12]}, "can't be read .damaged or cut off."),
    "gzip damaged": ({"images": gzip.compress(idx(PIXELS))[:14] + b"\xff" * 20}, "can't be read|IDX|ends"),
    "fewer labels": ({"labels": idx(LABELS[:3])}, "have different numbers of images and labels"),
    "label out of range": ({"labels": idx(np.array([0, 1, 3, 1], np.uint8))}, "a label is outside 0 … 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_faults_that_name_the_file(write, name: str, tmp_path: Path) -> None:
    change, message = BAD[name]
    with pytest.raises(DataFault, match=message) as caught:
        write(**change)
    assert caught.value.remedy


def test_missing_file(tmp_path: Path, block) -> None:
    data = block({"source": "idx", "images": "nowhere", "labels": "l", "shape": [2, 3], "classes": 3})
    with pytest.raises(DataFault, match="nowhere: no such data file"):
        load(data.train, data, tmp_path, "train")


def test_a_header_that_lies_costs_no_memory(write) -> None:
    huge = struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2, 3)
    with pytest.raises(DataFault, match="ends before the last record"):
        write(huge + b"x" * 100)
    with pytest.raises(DataFault, match="ends before the last record"):
        write(gzip.compress(huge + b"x" * 100))


def test_label_fault_does_not_echo_the_value(write) -> None:
    with pytest.raises(DataFault) as caught:
        write(labels=idx(np.array([0, 1, 201, 1], np.uint8)))
    assert "201" not in caught.value.message + caught.value.remedy
