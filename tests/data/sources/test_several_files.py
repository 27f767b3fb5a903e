"""Several files as one source: a list of paths, or a pattern."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.disjoint import check_files
from dprecipe.data.load import load, read
from dprecipe.faults import DataFault
from dprecipe.planning.public import share_records
from dprecipe.training.program.file_digests import digest_files

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = {"age": {"kind": "numeric", "min": 0, "max": 100}}
SOURCE = {"columns": COLUMNS, "label": {"column": "ill", "values": ["no", "yes"]}}
AGES = {"visits/2023/b.{}": [30, 40], "visits/2023/a.{}": [10, 20], "visits/2024/a.{}": [50], "other.{}": [60, 70]}
"""The order of the pattern is that of the names: 10, 20, 30, 40, 50."""


@pytest.fixture(params=["csv", "parquet"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    for name, ages in AGES.items():
        write(tmp_path / name.format(request.param), ages)
    return str(request.param)


def write(file: Path, ages: list[object], ill: list[object] | None = None, column: str = "age") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    ill = ["no", "yes"][: len(ages)] if ill is None else ill
    who = [f"P{int(str(age)) % 20}" for age in ages]
    if file.suffix == ".parquet":
        pq.write_table(pa.table({"who": who, "note": ["x"] * len(ages), "ill": ill, column: ages}), file)
        return
    rows = [f"{age},{y},{unit}" for age, y, unit in zip(ages, ill, who, strict=True)]
    text = "\n".join([f"{column},ill,who", *rows]) + "\n"
    file.write_bytes(gzip.compress(text.encode()) if file.name.startswith("a") else text.encode())


@pytest.fixture
def ages(kind: str, tmp_path: Path, block):
    def make(path: object, size: int = 5, unit: object = "record", **rest: object) -> list[float]:
        path = [one.format(kind) for one in path] if isinstance(path, list) else path.format(kind)
        data = block({"source": kind, "path": path, **SOURCE, **rest}, size=size, unit=unit)
        return (load(data.train, data, tmp_path, "train").features[:, 0] * 100).round().tolist()

    return make


def test_files_are_read_in_the_order_of_their_names_or_of_the_list(ages) -> None:
    assert ages("visits/*/*.{}") == ages("visits/**/*.{}") == [10, 20, 30, 40, 50]
    assert ages("**/*.{}", 7) == [60, 70, 10, 20, 30, 40, 50]
    assert ages("visits/202?/a.{}", 3) == [10, 20, 50]
    assert ages(["visits/2024/a.{}", "visits/2023/*.{}"]) == [50, 10, 20, 30, 40]


def test_a_range_counts_over_all_files(ages, kind: str) -> None:
    whole = [10, 20, 30, 40, 50]
    for first, end in ((0, 2), (1, 3), (2, 5), (4, 5)):
        assert ages("visits/*/*.{}", end - first, records=[first, end]) == whole[first:end]
    with pytest.raises(DataFault, match=rf"visits/\*/\*\.{kind}: ends before the range") as caught:
        ages("visits/*/*.{}", 3, records=[3, 6])
    assert caught.value.private == "5 records"
    with pytest.raises(DataFault, match="does not have the number of records that data"):
        ages("visits/*/*.{}", 4)


def test_a_unit_is_one_unit_in_all_files(ages, tmp_path: Path, kind: str, block) -> None:
    unit = {"column": "who", "max_records": 2}
    assert ages("visits/*/*.{}", 2, unit) == [10, 20, 30, 40]  # P10: 10, 30, 50, of which two; P0: 20, 40
    data = block({"source": kind, "path": f"visits/*/*.{kind}", **SOURCE}, size=2, unit=unit)
    assert load(data.train, data, tmp_path, "train").units.tolist() == [0, 1, 0, 1]


def test_numbers_of_records_go_on_from_file_to_file(tmp_path: Path, kind: str, block) -> None:
    data = block({"source": kind, "path": f"visits/*/*.{kind}", **SOURCE, "records": [1, 5]}, size=4)
    identities = read(data.train, data, tmp_path, "train")[0].identities
    assert identities is not None
    assert list(identities.texts()) == ["1", "2", "3", "4"]


def test_a_fault_tells_a_terminal_the_file_and_its_own_line(ages, tmp_path: Path, kind: str) -> None:
    """A log learns the pattern, which is in the recipe, and no name of a file."""
    write(tmp_path / f"visits/2024/SECRET.{kind}", [1, 2], ["no", "maybe"])
    with pytest.raises(DataFault, match="column 'ill': a label is not among the 2") as caught:
        ages("visits/**/*.{}", 7)
    where = "line 3" if kind == "csv" else "record 1, counted from 0"
    assert caught.value.private == f"visits/2024/SECRET.{kind}, {where}"
    assert "SECRET" not in caught.value.message + caught.value.remedy


def test_every_file_has_the_columns(ages, tmp_path: Path, kind: str) -> None:
    write(tmp_path / f"visits/2024/SECRET.{kind}", [1], column="Age")
    with pytest.raises(DataFault, match=r"visits/\*\*/\*\.\w+: .*column 'age'") as caught:
        ages("visits/**/*.{}", 6)
    assert caught.value.private == f"visits/2024/SECRET.{kind}"
    assert "SECRET" not in caught.value.message + caught.value.remedy


def test_a_damaged_file_among_them(ages, tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"visits/2023/b.{kind}"
    file.write_bytes(b"\x1f\x8b\x08\x00damaged" if kind == "csv" else file.read_bytes()[:50])
    with pytest.raises(DataFault, match=r"visits/\*/\*\.\w+: can't be read") as caught:
        ages("visits/*/*.{}")
    assert caught.value.private == f"visits/2023/b.{kind}"


def test_a_column_has_one_type_in_all_files(tmp_path: Path, block) -> None:
    """7 and 7.0 would be two patients."""
    for name, who in {"a": pa.array([7, 8], pa.int32()), "b": pa.array([7.0, 9.0])}.items():
        pq.write_table(pa.table({"age": [1, 2], "ill": ["no", "yes"], "who": who}), tmp_path / f"{name}.parquet")
    source = {"source": "parquet", "path": "*.parquet", **SOURCE}
    data = block(source, size=3, unit={"column": "who", "max_records": 2})
    with pytest.raises(DataFault, match="column 'who' holds double, and integers in a file before it"):
        load(data.train, data, tmp_path, "train")
    whole = pa.table({"age": [1.5, None], "ill": pa.array(["no", "yes"]).dictionary_encode(), "who": [7, 9]})
    pq.write_table(whole.set_column(0, "age", pa.array([1, 2], pa.int8())), tmp_path / "b.parquet")
    assert load(data.train, data, tmp_path, "train").units.tolist() == [0, 1, 0, 2]


NONE = {
    "no match": ("visit/*.{}", "the pattern matches no file below"),
    "folders": ("visits/*", "the pattern matches no file below"),
    "one of them": (["other.{}", "absent/*.{}"], "absent/.*: the pattern matches no file below"),
    "no file": (["other.{}", "absent.{}"], "no such data file"),
    "twice": (["visits/*/*.{}", "visits/2024/a.{}"], "a file is named twice"),
}


@pytest.mark.parametrize("name", NONE)
def test_paths_that_name_no_set_of_files(ages, name: str) -> None:
    path, message = NONE[name]
    with pytest.raises(DataFault, match=message) as caught:
        ages(path)
    assert caught.value.remedy


def test_a_pattern_stays_below_the_data_root(tmp_path: Path, block) -> None:
    root = tmp_path / "root"
    write(tmp_path / "outside.csv", [1])
    write(root / "inside.csv", [2])
    (root / "link.csv").symlink_to(tmp_path / "outside.csv")
    (root / ".hidden.csv").write_text("x")
    data = block({"source": "csv", "path": "*.csv", **SOURCE}, size=2)
    with pytest.raises(DataFault, match="matches a link to a file outside of the data root") as caught:
        load(data.train, data, root, "train")
    assert caught.value.private == "link.csv"
    listed = block({"source": "csv", "path": ["inside.csv", "link.csv"], **SOURCE}, size=2)
    assert len(load(listed.train, listed, root, "train")) == 2  # what the remedy says works
    for pattern in ("../*.csv", "*/../../*.csv", f"{tmp_path}/*.csv"):
        findings = check_data(block({"source": "csv", "path": ["inside.csv", pattern], **SOURCE}, size=2))
        assert [(finding.code, finding.path) for finding in findings] == [("R240", "data.train.path.1")]


def test_brackets_are_letters(tmp_path: Path, block) -> None:
    write(tmp_path / "part[1].csv", [1])
    write(tmp_path / "part1.csv", [2])
    data = block({"source": "csv", "path": "part[1]*", **SOURCE}, size=1)
    assert (load(data.train, data, tmp_path, "train").features * 100).tolist() == [[1.0]]


def test_a_file_without_rows_is_one_of_several(tmp_path: Path, kind: str, block) -> None:
    write(tmp_path / f"visits/2024/empty.{kind}", [])
    data = block({"source": kind, "path": f"visits/2024/*.{kind}", **SOURCE}, size=1)
    assert len(load(data.train, data, tmp_path, "train")) == 1
    alone = block({"source": kind, "path": [f"visits/2024/empty.{kind}"], **SOURCE}, size=1)
    with pytest.raises(DataFault, match="no record"):
        load(alone.train, alone, tmp_path, "train")


PUBLIC = {
    "a file of the pattern": ("other.{}", "**/*.{}", {}, True),
    "another pattern": ("visits/2023/*.{}", "visits/*/a.{}", {}, True),
    "ranges that count over other files": ("visits/**/*.{}", "visits/2023/*.{}", {"records": [3, 4]}, True),
    "ranges of the same files": ("visits/**/*.{}", "visits/*/*.{}", {"records": [3, 4]}, False),
    "other files": ("visits/**/*.{}", "*.{}", {}, False),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_are_none_of_the_training_files(tmp_path: Path, kind: str, block, name: str) -> None:
    train, public, rest, refused = PUBLIC[name]
    source = {"source": kind, **SOURCE}
    mine = {**source, "path": train.format(kind), **({"records": [0, 3]} if rest else {})}
    data = block(mine, public={**source, "path": public.format(kind), **rest}, size=3)
    if not refused:
        check_files(data, tmp_path)
        return
    with pytest.raises(DataFault, match=r"data\.public is declared public, but this is .* of the training records"):
        check_files(data, tmp_path)


def test_lists_that_name_a_file_in_common_share_records(block) -> None:
    source = {"source": "csv", **SOURCE}
    train = {**source, "path": ["a.csv", "b.csv"], "records": [0, 3]}
    for path, records, shared in ((["b.csv", "c.csv"], [3, 4], True), (["c.csv"], None, False)):
        public = {**source, "path": path, **({"records": records} if records else {})}
        data = block(train, public=public, size=3)
        assert share_records(data.train, data.public) == shared


def test_digests_cover_all_files(tmp_path: Path, kind: str, block, monkeypatch: pytest.MonkeyPatch) -> None:
    data = block({"source": kind, "path": [f"other.{kind}", f"visits/*/*.{kind}"], **SOURCE})
    digests = digest_files(data.train, tmp_path)
    assert list(digests) == [f"other.{kind}", f"a.{kind}", f"b.{kind}", f"a.{kind} (4)"]
    assert len(set(digests.values())) == 4
    monkeypatch.setattr("dprecipe.training.program.file_digests.MAX_FILES", 3)
    (whole,) = digest_files(data.train, tmp_path).items()
    write(tmp_path / f"visits/2024/a.{kind}", [51])
    (changed,) = digest_files(data.train, tmp_path).items()
    assert whole[0] == changed[0] == "4 files"
    assert whole[1] != changed[1]


def test_large_csv_files_keep_their_lines(tmp_path: Path, block, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of plain lines are split by pyarrow: each file has its own header and its own lines."""
    from dprecipe.data.sources import csv_blocks, read_csv

    for module in (csv_blocks, read_csv):
        monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    ages = np.arange(100) % 90
    for name, part in {"a": slice(0, 40), "b": slice(40, 100)}.items():
        write(tmp_path / f"{name}x.csv", ages[part].tolist(), ["no"] * len(ages[part]))
    data = block({"source": "csv", "path": "?x.csv", **SOURCE}, size=100)
    np.testing.assert_allclose(load(data.train, data, tmp_path, "train").features[:, 0] * 100, ages, atol=1e-5)
