"""`datasets`: folders that Hugging Face's library wrote (`saved/README.md`), and folders that are not quite such."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.disjoint import check_files
from dprecipe.data.load import load
from dprecipe.data.records import Records
from dprecipe.faults import DataFault
from dprecipe.planning.public import share_records
from dprecipe.training.program.file_digests import digest_files

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

SAVED = Path(__file__).parent / "saved"
COLUMNS = {"age": {"kind": "integer", "min": 0, "max": 10}}
TABLE = {"columns": COLUMNS, "label": {"column": "label", "values": ["neg", "pos"]}}
IMAGES = {"image": {"column": "image", "shape": [4, 6, 3]}, "label": {"column": "label", "values": ["cat", "dog"]}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("dict", "img", "hub"):
        shutil.copytree(SAVED / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def read(root: Path, block):
    def make(size: int, unit: object = "record", **source: Any) -> Records:
        data = block({"source": "datasets", **source}, size=size, unit=unit)
        assert check_data(data) == []
        return load(data.train, data, root, "train")

    return make


def test_a_split_that_was_saved_to_disk(read) -> None:
    train = read(7, path="dict", split="train", **TABLE)
    assert (train.features[:, 0] * 10).round().tolist() == list(range(7))
    assert train.labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    test = read(3, path="dict", split="test", **TABLE)
    assert (test.features[:, 0] * 10).round().tolist() == [1, 2, 3]
    assert test.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(read(7, path="dict/train", **TABLE).features, train.features)


def test_ranges_and_units_go_over_shards(read) -> None:
    for first, end in ((0, 7), (2, 6), (3, 4), (4, 7)):
        records = read(end - first, path="dict", split="train", records=[first, end], **TABLE)
        assert (records.features[:, 0] * 10).round().tolist() == list(range(first, end))
    units = read(4, {"column": "who", "max_records": 1}, path="dict", split="train", **TABLE)
    assert (units.features[:, 0] * 10).round().tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "where", [{"path": "img"}, {"path": "hub", "split": "train"}, {"path": "hub/data", "split": "test"}]
)
def test_images(read, where: dict[str, str]) -> None:
    pytest.importorskip("PIL", reason="pillow is not installed")
    records = read(5, **where, **IMAGES)
    assert records.features.shape == (5, 3, 4, 6)
    assert (records.features[:, 0, 0, 0] * 255).round().tolist() == [0, 10, 20, 30, 40]
    assert records.labels.tolist() == [0, 1, 0, 1, 1]


def test_names_of_classes_are_read_where_names_are_declared(read) -> None:
    label = {"column": "label", "values": ["pos", "neutral", "neg"]}
    assert read(7, path="dict", split="train", columns=COLUMNS, label=label).labels.tolist() == [2, 0, 2, 0, 2, 0, 2]
    label = {"column": "label", "classes": 2}
    assert read(7, path="dict", split="train", columns=COLUMNS, label=label).labels.tolist() == [0, 1, 0, 1, 0, 1, 0]
    columns = {"label": {"kind": "boolean", "values": ["neg", "pos"]}}
    label = {"column": "age", "range": [0, 6]}
    assert read(7, path="dict", split="train", columns=columns, label=label).features[:, 0].tolist() == [
        0,
        1,
        0,
        1,
        0,
        1,
        0,
    ]


def test_a_class_that_is_not_declared(read) -> None:
    with pytest.raises(
        DataFault, match="a class of the data set is none of the 2 declared ones, and nearly 'Neg'"
    ) as caught:
        read(7, path="dict", split="train", columns=COLUMNS, label={"column": "label", "values": ["Neg", "pos"]})
    assert caught.value.private == "'neg'"
    assert "'neg'" not in caught.value.message


def test_a_number_without_a_name_is_no_label(read, root: Path) -> None:
    file = root / "dict/train/data-00001-of-00002.arrow"
    with pa.ipc.open_stream(file.read_bytes()) as reader:
        table = reader.read_all()
    changed = table.set_column(2, "label", pa.array([1, -1, 7]))
    with pa.ipc.new_stream(file, changed.schema.with_metadata(table.schema.metadata)) as writer:
        writer.write(changed)
    with pytest.raises(DataFault, match="column 'label': a label is empty") as caught:
        read(7, path="dict", split="train", **TABLE)
    assert caught.value.private.startswith("train/data-00001-of-00002.arrow, record 1, counted from 0")


def test_a_shard_that_names_no_classes(read, root: Path) -> None:
    """A person whose unit is such a column would be a name in one shard and a number in the other."""
    file = root / "dict/train/data-00001-of-00002.arrow"
    with pa.ipc.open_stream(file.read_bytes()) as reader:
        table = reader.read_all()
    with pa.ipc.new_stream(file, table.schema.remove_metadata()) as writer:
        writer.write(table.replace_schema_metadata(None))
    with pytest.raises(DataFault, match="name other classes than those of the first shard"):
        read(7, path="dict", split="train", **TABLE)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def name_files(*names: object) -> list[dict[str, object]]:
    return [{"filename": name} for name in names]


def test_folders_that_are_not_whole(read, root: Path) -> None:
    state, table = root / "dict/train/state.json", {"path": "dict", "split": "train", **TABLE}
    cases: dict[str, object] = {
        "lists something that is no file of its folder": name_files("../test/data-00000-of-00001.arrow"),
        "lists a file twice": name_files("data-00000-of-00002.arrow", "data-00000-of-00002.arrow"),
        "lists no file": [],
        "a shard that state.json lists is missing": name_files("data-00002-of-00002.arrow"),
    }
    for message, listed in cases.items():
        edit(state, _data_files=listed)
        with pytest.raises(DataFault, match=message):
            read(7, **table)
    edit(state, _data_files=name_files("data-00000-of-00002.arrow"), _indices_data_files=name_files("x.arrow"))
    with pytest.raises(DataFault, match="its rows are selected by a file of indices"):
        read(7, **table)
    for content in ("", "[]", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass")):
        state.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(DataFault, match=r"dict: state\.json (can't be read|is not as)"):
            read(7, **table)
    (root / "hub/data/train-00000-of-00002.parquet").unlink()
    with pytest.raises(DataFault, match="a shard of split 'train' is missing"):
        read(5, path="hub", split="train", **IMAGES)
    shutil.copy(root / "hub/data/test-00000-of-00001.parquet", root / "hub/test.parquet")
    with pytest.raises(DataFault, match="split 'test' is there in several versions"):
        read(5, path="hub", split="test", **IMAGES)


def test_splits_that_are_not_there(read, root: Path) -> None:
    for path in ("dict", "hub"):
        with pytest.raises(
            DataFault, match=rf"{path}: has several splits, or none: .*'test'.*, *'train'|'train', 'test'"
        ):
            read(5, path=path, **TABLE)
        with pytest.raises(DataFault, match=rf"{path}: has no split 'valid'; its splits are"):
            read(5, path=path, split="valid", **TABLE)
    with pytest.raises(DataFault, match="img: is one split, and has none named 'train'"):
        read(5, path="img", split="train", **IMAGES)
    (root / "empty").mkdir()
    with pytest.raises(DataFault, match="empty: holds no data set"):
        read(5, path="empty", **TABLE)


def test_a_split_may_be_a_folder_of_parquet_files(read, root: Path) -> None:
    for name, ages in {"b": [3, 4], "a": [1, 2]}.items():
        (root / "plain/train").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"age": ages, "label": ["neg", "pos"]}), root / f"plain/train/{name}.parquet")
    records = read(4, path="plain", **TABLE)
    assert (records.features[:, 0] * 10).round().tolist() == [1, 2, 3, 4]


def test_damaged_shards(read, root: Path) -> None:
    """A batch may claim places outside of its file: it is validated before it is read."""
    file = root / "dict/train/data-00000-of-00002.arrow"
    whole = file.read_bytes()
    for place in range(0, len(whole), 31):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read(7, path="dict", split="train", **TABLE)
        except DataFault:
            continue
    file.write_bytes(whole[:500])
    with pytest.raises(DataFault, match=r"dict: (can't be read|data\.train)|number of records"):
        read(7, path="dict", split="train", **TABLE)


def test_columns_that_are_not_there(read) -> None:
    with pytest.raises(DataFault, match="dict: has no column 'Age'; it has 'age'"):
        read(7, path="dict", split="train", **{**TABLE, "columns": {"Age": COLUMNS["age"]}})
    with pytest.raises(DataFault, match="column 'text' holds string, expected images"):
        read(7, path="dict", split="train", image={"column": "text", "shape": [4, 6, 3]}, label=TABLE["label"])


def test_a_public_split_is_another_one(root: Path, block) -> None:
    source = {"source": "datasets", "path": "dict", "columns": COLUMNS}
    train = {**source, "split": "train", "label": TABLE["label"]}
    data = block(train, public={**source, "split": "test"})
    assert not share_records(data.train, data.public)
    check_files(data, root)
    assert len(load(data.public, data, root, "public")) == 3
    data = block(train, public={**source, "path": "./dict", "split": "train"})
    assert share_records(data.train, data.public)
    data = block(train, public={**source, "path": "dict/train"})
    assert not share_records(data.train, data.public)
    with pytest.raises(DataFault, match=r"data\.public is declared public, but this is .* of the training records"):
        check_files(data, root)
    assert list(digest_files(data.train, root)) == ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


def test_what_contradicts_itself(block) -> None:
    label = {"column": "label", "classes": 2}
    assert [f.code for f in check_data(block({"source": "datasets", "path": "d", "label": label}))] == ["R204"]


def test_it_is_as_the_library_reads_it(root: Path, read) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    theirs = datasets.load_from_disk(str(root / "dict"))["train"]
    assert theirs["age"][:] == (read(7, path="dict", split="train", **TABLE).features[:, 0] * 10).round().tolist()
