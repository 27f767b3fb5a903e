from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.data.records import Records
from dprecipe.faults import DataFault

COLUMNS = {"age": {"kind": "numeric", "min": 0, "max": 100}, "sex": {"kind": "category", "values": ["f", "m"]}}
CSV = {"source": "csv", "path": "t.csv", "columns": COLUMNS}
LABEL = {"label": {"column": "ill", "classes": 2}}
STEPS = [{"one_hot": {}}, {"scale": {"mean": 0.5, "std": 0.5}}]
PIXELS = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3)
IMAGES = {"source": "idx", "images": "i", "shape": [2, 3]}
ARRAYS = {"source": "npz", "path": "a.npz", "shape": [3]}
FEATURES = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def public(tmp_path: Path, block):
    """The public records, in a recipe whose training records are declared alike and lie nowhere."""

    def make(source: dict[str, Any], label: dict[str, Any], steps: list[Any] = STEPS) -> Records:
        train = {**{key: value for key, value in source.items() if key != "records"}, **label}
        data = block(train, public=source, preprocess=steps)
        return load(data.public, data, tmp_path, "public")

    return make


def table(path: Path, ill: list[str] | None) -> None:
    lines = ["age,sex" + (",ill" if ill else "")]
    lines += [f"{age},{sex}" + (f",{ill[row]}" if ill else "") for row, (age, sex) in enumerate(ROWS)]
    path.write_text("\n".join(lines) + "\n")


ROWS = [(0, "f"), (50, "m"), (100, "x"), (25, "f")]
ENCODED = np.array([[-1, 1, -1, -1], [0, -1, 1, -1], [1, -1, -1, 1], [-0.5, 1, -1, -1]], np.float32)


def holds(records: Records, features: np.ndarray) -> None:
    np.testing.assert_array_equal(records.batch(slice(None))[0], features)
    assert records.labels.dtype == np.int64
    assert records.labels.tolist() == [0] * len(features)
    assert records.units is None
    assert records.identities is None


@pytest.mark.parametrize("ill", [None, ["SECRET"] * 4, ["1"] * 4], ids=["absent", "nonsense", "true"])
@pytest.mark.parametrize("named", [{}, LABEL], ids=["unnamed", "named"])
def test_labels_of_a_public_csv_file_are_never_read(public, tmp_path: Path, ill, named) -> None:
    table(tmp_path / "t.csv", ill)
    holds(public({**CSV, **named}, LABEL), ENCODED)
    holds(public({**CSV, **named, "records": [1, 3]}, LABEL), ENCODED[1:3])


@pytest.mark.parametrize("ill", [None, ["SECRET"] * 4, [1] * 4], ids=["absent", "nonsense", "true"])
@pytest.mark.parametrize("named", [{}, LABEL], ids=["unnamed", "named"])
def test_labels_of_a_public_parquet_file_are_never_read(public, tmp_path: Path, ill, named) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    columns = {"age": [age for age, _ in ROWS], "sex": [sex for _, sex in ROWS]} | ({"ill": ill} if ill else {})
    pq.write_table(pa.table(columns), tmp_path / "t.csv")
    holds(public({**CSV, **named, "source": "parquet"}, LABEL), ENCODED)


@pytest.mark.parametrize("named", [{}, LABEL], ids=["unnamed", "named"])
def test_public_images_of_a_parquet_file(public, tmp_path: Path, named) -> None:
    import io

    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    content = io.BytesIO()
    image.fromarray(np.zeros((2, 3), np.uint8)).save(content, "PNG")
    pq.write_table(pa.table({"img": [{"bytes": content.getvalue(), "path": ""}] * 2}), tmp_path / "p")
    source = {"source": "parquet", "path": "p", "image": {"column": "img", "shape": [2, 3, 1]}, **named}
    holds(public(source, LABEL, []), np.zeros((2, 1, 2, 3), np.float32))


@pytest.mark.parametrize("named", [{}, {"labels": "nowhere"}, {"labels": "i", "classes": 2}], ids=str)
def test_labels_of_a_public_npz_file_are_never_read(public, tmp_path: Path, named) -> None:
    np.savez(tmp_path / "a.npz", features=FEATURES, i=np.array(["SECRET"]))
    holds(public({**ARRAYS, **named}, {"classes": 7}, []), FEATURES)
    holds(public({**ARRAYS, **named, "records": [3, 4]}, {"classes": 7}, []), FEATURES[3:])


@pytest.mark.parametrize("named", [{}, {"labels": "nowhere"}, {"labels": "i"}], ids=str)
def test_labels_of_public_images_are_never_read(public, tmp_path: Path, named) -> None:
    (tmp_path / "i").write_bytes(struct.pack(">HBB3I", 0, 8, 3, *PIXELS.shape) + PIXELS.tobytes())
    features = (PIXELS / np.float32(255))[:, None].astype(np.float32)
    holds(public({**IMAGES, **named}, {"labels": "l"}, []), features)
    holds(public({**IMAGES, **named, "records": [1, 2]}, {"labels": "l"}, []), features[1:2])
    with pytest.raises(DataFault, match="ends before the range"):
        public({**IMAGES, **named, "records": [3, 5]}, {"labels": "l"}, [])


def test_public_digits_have_no_labels(public) -> None:
    records = public({"source": "digits", "split": "test", "records": [0, 100]}, {}, [])
    assert records.features.shape == (100, 1, 8, 8)
    assert not records.labels.any()


def test_public_records_need_no_size(block) -> None:
    data = block({"source": "digits", "split": "train"}, public={"source": "digits", "split": "test"}, size=1438)
    assert len(load(data.public, data, Path(), "public")) == 359


@pytest.fixture
def named(tmp_path: Path, block):
    (tmp_path / "t.csv").write_text("who,visit,age,sex,ill\nb,v1,1,f,0\na,v2,2,f,0\nb,v3,3,f,0\n a ,v2,4,f,0\n")

    def make(identity: str | None = None, **rest: Any) -> Records:
        records = {"records": rest.pop("records")} if "records" in rest else {}
        data = block({**CSV, **LABEL, **records}, preprocess=[{"one_hot": {}}], **rest)
        return load(data.train, data, tmp_path, "train", identity)

    return make


def names(records: Records) -> list[str]:
    assert records.identities is not None
    texts = list(records.identities.texts())
    assert len(set(texts)) == len(texts)
    return [texts[i] for i in records.identities.of_record]


def test_a_record_is_named_by_its_number_in_the_source_unless_a_column_names_it(named) -> None:
    assert names(named()) == ["0", "1", "2", "3"]
    assert names(named(records=[1, 4], size=3)) == ["1", "2", "3"]
    assert names(named("visit")) == ["v1", "v2", "v3", "v2"]
    assert names(named("visit", records=[1, 4], size=3)) == ["v2", "v3", "v2"]


@pytest.mark.parametrize("identity", [None, "who"])
def test_a_unit_names_its_records(named, identity: str | None) -> None:
    records = named(identity, unit={"column": "who", "max_records": 1}, size=2)
    assert names(records) == ["b", "a"]
    assert records.units.tolist() == [0, 1]
    assert names(named(identity, unit={"column": "who", "max_records": 9}, size=2)) == ["b", "a", "b", "a"]


def test_a_unit_can_not_be_torn_apart(named) -> None:
    with pytest.raises(DataFault, match="all records of one 'who' must stay together"):
        named("visit", unit={"column": "who", "max_records": 9}, size=2)


def test_a_record_without_a_name(named, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("visit,age,sex,ill\nv1,1,f,0\n,2,f,0\n")
    with pytest.raises(DataFault, match="column 'visit': a field is empty that names the unit or the record"):
        named("visit", size=2)
    with pytest.raises(DataFault, match="column 'who' is not in the header line"):
        named("who", size=2)


def test_names_from_an_array(block, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", features=FEATURES, labels=[0, 1, 0, 1], who=[7, 8, 7, 9])
    data = block({**ARRAYS, "classes": 2})
    assert names(load(data.train, data, tmp_path, "train", "who")) == ["7", "8", "7", "9"]


def test_embedded_records_have_numbers_only(block) -> None:
    data = block({"source": "digits", "split": "train", "records": [10, 14]})
    assert names(load(data.train, data, Path(), "train")) == ["10", "11", "12", "13"]
    with pytest.raises(DataFault, match="source digits has no column 'who'"):
        load(data.train, data, Path(), "train", "who")
