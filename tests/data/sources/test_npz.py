from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.data.omitted import OMITTED
from dprecipe.faults import DataFault

FEATURES = np.linspace(-1, 1, 12, dtype=np.float64).reshape(4, 3)
LABELS = np.array([0, 1, 1, 0])


@pytest.fixture
def read(tmp_path: Path, block):
    def make(content: bytes | None = None, *, shape=(3,), unit="record", size=4, arrays=None, **source):
        if content is None:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **{"features": FEATURES, "labels": LABELS, **(arrays or {})})
            content = buffer.getvalue()
        (tmp_path / "a.npz").write_bytes(content)
        train = {"source": "npz", "path": "a.npz", "shape": list(shape), "classes": 2, **source}
        data = block(train, unit=unit, size=size)
        return load(data.train, data, tmp_path, "train")

    return make


def test_floats_stay_as_they_are(read) -> None:
    records = read()
    np.testing.assert_array_equal(records.features, FEATURES.astype(np.float32))
    assert records.labels.tolist() == [0, 1, 1, 0]
    assert len(read(records=[1, 3], size=2)) == 2


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64])
def test_whole_numbers_stay_as_they_are(read, kind: type) -> None:
    tokens = np.array([[0, 7, 120], [1, 2, 3], [5, 0, 0], [9, 9, 9]], dtype=kind)
    assert read(arrays={"features": tokens}).features.tolist() == tokens.tolist()


def test_bytes_become_unit_and_images_channels_first(read) -> None:
    images = np.arange(4 * 2 * 5 * 3, dtype=np.uint8).reshape(4, 2, 5, 3)
    result = read(arrays={"features": images}, shape=(2, 5, 3)).features
    assert result.shape == (4, 3, 2, 5)
    np.testing.assert_allclose(result[2, 1], images[2, :, :, 1] / 255, rtol=1e-6)
    grey = read(arrays={"features": images[..., 0]}, shape=(2, 5)).features
    assert grey.shape == (4, 1, 2, 5)


def test_fortran_order(read) -> None:
    result = read(arrays={"features": np.asfortranarray(FEATURES)}).features
    np.testing.assert_array_equal(result, FEATURES.astype(np.float32))


@pytest.mark.parametrize("ids", [np.array([7, 7, 3, 7]), np.array(["x", "x", "y", "x"])], ids=["int", "text"])
def test_t27_units_from_an_array(read, ids: np.ndarray) -> None:
    records = read(arrays={"who": ids}, unit={"column": "who", "max_records": 2}, size=2)
    assert records.units.tolist() == [0, 0, 1]


def test_a_record_without_its_unit(read) -> None:
    with pytest.raises(DataFault, match="column 'who': a field is empty that names the unit or the record"):
        read(arrays={"who": np.array(["x", "y", " ", "x"])}, unit={"column": "who", "max_records": 2})


def test_t11_a_non_finite_record_is_kept_and_spreads_to_nobody(read) -> None:
    broken = FEATURES.copy()
    broken[1] = [np.nan, 1e300, np.inf]
    result = read(arrays={"features": broken}).features
    assert not np.isfinite(result[1]).any()
    np.testing.assert_array_equal(result[[0, 2, 3]], FEATURES[[0, 2, 3]].astype(np.float32))


class Bomb:
    """Unpickling this would raise; reading must not get that far."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


NUMBERS = {"classes": None, "range": [10.0, 20.0]}


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64], ids=str)
def test_numbers_are_clipped_to_their_range_and_mapped(read, kind: type) -> None:
    labels = read(arrays={"labels": np.array([-5, 10, 16, 99], kind)}, **NUMBERS).labels
    assert labels.dtype == np.float32
    np.testing.assert_array_equal(labels, np.float32([-1, -1, 0.2, 1]))


def test_a_range_of_all_there_is(read) -> None:
    result = read(arrays={"labels": np.array([-1e308, 0, 1e308, 1.7e308])}, classes=None, range=[-1.7e308, 1.7e308])
    np.testing.assert_allclose(result.labels, [-10 / 17, 0, 10 / 17, 1], rtol=1e-6)


BAD = {
    "no finite number": (
        {**NUMBERS, "arrays": {"labels": np.array([0, 1, np.nan, np.inf])}},
        "a label is not a finite number",
    ),
    "texts as numbers": ({**NUMBERS, "arrays": {"labels": np.array(["1"] * 4)}}, "holds <U1, expected numbers"),
    "truths as numbers": ({**NUMBERS, "arrays": {"labels": LABELS > 0}}, "holds bool, expected numbers"),
    "python objects": ({"arrays": {"features": np.array([Bomb()] * 4, dtype=object)}}, "holds Python objects"),
    "another shape": ({"shape": (4,)}, r"has the shape \[records, 3\], expected \[records, 4\]"),
    "no records axis": ({"arrays": {"labels": np.array(1)}}, r"'labels' has the shape \[\], expected \[records\]"),
    "texts as features": ({"arrays": {"features": np.array([["a"] * 3] * 4)}}, "holds <U1, expected numbers"),
    "truths as features": ({"arrays": {"features": np.ones((4, 3), bool)}}, "holds bool, expected numbers"),
    "floats as labels": ({"arrays": {"labels": LABELS / 2}}, "holds float64, expected integers"),
    "label out of range": ({"arrays": {"labels": LABELS + 5}}, "a label is outside 0 … 1"),
    "negative label": ({"arrays": {"labels": LABELS - 1}}, "a label is outside 0 … 1"),
    "fewer labels": ({"arrays": {"labels": LABELS[:3]}}, "'features' and 'labels' have different numbers of records"),
    "no such array": ({"features": "pixels"}, "has no array 'pixels'"),
    "no unit array": ({"unit": {"column": "who", "max_records": 1}}, "has no array 'who'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_archives(read, name: str) -> None:
    change, message = BAD[name]
    with pytest.raises(DataFault, match=message) as caught:
        read(**change)
    assert caught.value.remedy


def test_files_that_are_no_archive(read) -> None:
    npy = io.BytesIO()
    np.save(npy, FEATURES)
    for content in (b"", b"PK\x03\x04", npy.getvalue(), b"\x80\x04\x95pickle"):
        with pytest.raises(DataFault, match="not a NumPy archive"):
            read(content)


def archive(features: bytes) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, labels=LABELS)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as target:
        target.writestr("features.npy", features)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_arrays_that_do_not_end_with_their_header(read) -> None:
    good = npy(FEATURES)
    assert len(read(archive(good))) == 4
    lying = good.replace(b"(4, 3), }", b"(999999999999, 3), }", 1).replace(b" " * 12 + b"\n", b" \n", 1)
    for content in (good[:-1], good + b"x", good[:40], b"garbage", b"", lying):
        with pytest.raises(DataFault):
            read(archive(content))


def test_a_damaged_archive(read) -> None:
    content = bytearray(archive(npy(np.random.default_rng(0).random((4, 3)))))
    start = content.index(b"features.npy") + 40
    content[start : start + 20] = b"\xff" * 20
    with pytest.raises(DataFault):
        read(bytes(content))


NAN = float("nan")


@pytest.mark.parametrize(
    ("labels", "declared", "expected"),
    [
        ([5.0, NAN, 0.0, 12.0], {"range": [0, 10]}, [0.0, None, -1.0, 1.0]),
        ([1.0, NAN, 0.0, NAN], {"classes": 2}, [1, OMITTED, 0, OMITTED]),
        ([5.0, 0.0, NAN, 99.0], {"count": {"max": 9}}, [5.0, 0.0, None, 9.0]),
        ([1, 0, 1, 0], {"classes": 2}, [1, 0, 1, 0]),  # whole numbers have no gap
    ],
)
def test_nan_is_a_missing_label_where_records_without_one_are_omitted(
    read, labels: list[float], declared: dict[str, object], expected: list[float | None]
) -> None:
    asked = {"classes": None, **declared, "arrays": {"labels": np.array(labels)}}
    found = read(**asked, missing="omit").labels.tolist()
    assert [None if label != label else label for label in found] == expected
    if NAN in labels:
        with pytest.raises(DataFault):
            read(**asked)


def test_other_faults_of_labels_with_gaps_stay_faults(read) -> None:
    for labels, said in (
        ([1.5, NAN, 0, 1], "a label is outside 0 … 1, or has a fraction"),
        ([np.inf, NAN, 0, 1], "a label is outside 0 … 1"),
    ):
        with pytest.raises(DataFault, match=said):
            read(arrays={"labels": np.array(labels)}, missing="omit")
    with pytest.raises(DataFault, match="a label is not a finite number") as caught:
        read(arrays={"labels": np.array([1.5, NAN, 0, 1])}, classes=None, range=[0, 2])
    assert "missing: omit" in caught.value.remedy


def test_a_recipe_without_gaps_has_the_digest_that_it_had(read, block) -> None:
    train = {"source": "npz", "path": "a.npz", "shape": [3], "classes": 2}
    assert "missing" not in block(train).train.model_dump(mode="json")
    assert block({**train, "missing": "omit"}).train.model_dump(mode="json")["missing"] == "omit"
