"""Held-out records are cut out of the training source by a hash of each unit's name, and by nothing else."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.data.load import read
from dprecipe.data.records import Records
from dprecipe.data.schema import Data, Split
from dprecipe.data.split import describe_split, find_held_out
from dprecipe.faults import DataFault

Row = tuple[str, float, int]
"""Who, a number that no other row has, and a class."""
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
COLUMNS = {"x": {"kind": "numeric", "min": 0, "max": 1000}}
UNIT = {"column": "who", "max_records": 3}
Block = Callable[..., Data]


def is_held_out(name: str, split: Split) -> bool:
    return find_held_out([name], split)[0]


def make_rows(units: int, seed: int = 0) -> list[Row]:
    """1 to 4 rows a unit, in random order; units are whole numbers as text."""
    generator = random.Random(seed)
    names = [str(7 + 3 * unit) for unit in range(units) for _ in range(generator.randint(1, 4))]
    generator.shuffle(names)
    return [(name, float(number), number % 2) for number, name in enumerate(names)]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    content = io.StringIO()
    csv.writer(content).writerows([("who", "x", "y"), *rows])
    path.write_text(content.getvalue(), encoding="utf-8")


def source(kind: str) -> dict[str, Any]:
    if kind == "npz":
        return {"source": "npz", "path": "t.npz", "features": "x", "labels": "y", "shape": [1], "classes": 2}
    return {"source": kind, "path": f"t.{kind}", "columns": COLUMNS, "label": {"column": "y", "classes": 2}}


def write(kind: str, folder: Path, rows: Sequence[Row]) -> None:
    who, x, y = (list(values) for values in zip(*rows, strict=True))
    if kind == "csv":
        write_csv(folder / "t.csv", rows)
    elif kind == "npz":
        ids = np.array([int(name) for name in who])
        np.savez(folder / "t.npz", x=np.array(x, np.float32)[:, None] / 1000, y=np.array(y), who=ids)
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"who": pa.array([int(name) for name in who]), "x": x, "y": y})
        pq.write_table(table, folder / "t.parquet", row_group_size=7)


def sides(data: Data, folder: Path) -> tuple[Records, Records]:
    held_out = data.held_out
    assert held_out is not None
    return read(data.train, data, folder, "train")[0], read(held_out, data, folder, "test")[0]


def numbers_of(records: Records) -> list[int]:
    """The rows' own numbers, from their feature."""
    return sorted(round(value * 1000) for value in records.batch(slice(None))[0][:, 0].tolist())


@given(st.lists(NAMES, max_size=30), st.lists(NAMES, max_size=30), st.integers(0, 5), st.randoms())
def test_a_side_depends_on_no_other_name(names: list[str], others: list[str], seed: int, order: random.Random) -> None:
    split = Split(by="who", share=0.4, seed=seed)
    alone = {name: bool(find_held_out([name], split)[0]) for name in names}
    among = names + others
    order.shuffle(among)
    found = dict(zip(among, find_held_out(among, split), strict=True))
    assert {name: found[name] for name in names} == alone == {name: is_held_out(name, split) for name in names}


def test_the_hash_is_pinned() -> None:
    """Written out once more: of the next version of this program, nobody may change sides."""
    split = Split(share=0.25, seed=12)
    for name in ("7", "anna", "Ö", "𝔘", ""):
        digest = hashlib.blake2b(name.encode(), digest_size=8, key=b"12", person=b"dprecipe split").digest()
        assert is_held_out(name, split) == (int.from_bytes(digest, "big") / 2**64 < 0.25)
    assert np.flatnonzero(find_held_out(map(str, range(40)), Split(share=0.25))).tolist() == [
        0,
        8,
        10,
        12,
        16,
        17,
        18,
        19,
        20,
        21,
        22,
        29,
        33,
        36,
        37,
    ]


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 0.93])
@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_the_share_is_that_of_a_fair_coin(share: float, seed: int) -> None:
    """Within Hoeffding's bound, which fair coins leave with probability 1e-9 at most; so do other seeds' sides."""
    count = 20_000
    bound = math.sqrt(count * math.log(2 / 1e-9) / 2)
    names = [f"person {number}" for number in range(count)]
    first = np.array(find_held_out(names, Split(share=share, seed=seed)))
    assert abs(int(first.sum()) - share * count) <= bound
    both = first & find_held_out(names, Split(share=share, seed=5))
    assert abs(int(both.sum()) - share**2 * count) <= bound


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("by", ["unit", "who"])
def test_no_unit_is_on_both_sides_and_no_record_is_lost(kind: str, by: str, tmp_path: Path, block: Block) -> None:
    rows = make_rows(60)
    write(kind, tmp_path, rows)
    unit = UNIT if by == "unit" else "record"
    data = block(
        source(kind), test={"split": {"by": by, "share": 0.3}}, unit=unit, size=60 if unit == UNIT else len(rows)
    )
    train, test = sides(data, tmp_path)
    split = data.split
    assert split is not None
    kept: list[Row] = []
    for row in rows:  # the first three rows of a unit, where units are protected
        kept += [row] if unit == "record" or sum(row[0] == other[0] for other in kept) < 3 else []
    for records, side in ((train, False), (test, True)):
        expected = [int(number) for who, number, _ in kept if is_held_out(who, split) == side]
        assert numbers_of(records) == sorted(expected)
        assert 0 < len(records) < len(kept)
        order = np.argsort(records.batch(slice(None))[0][:, 0])
        assert [number % 2 for number in numbers_of(records)] == records.labels[order].tolist()
    assert (test.units, test.identities) == (None, None)
    if unit == UNIT:
        units = {who for who, *_ in rows if not is_held_out(who, split)}
        assert train.unit_count == len(units)
        assert train.identities is not None
        assert set(train.identities.texts()) == units


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_neighbours_stay_neighbours(kind: str, tmp_path: Path, block: Block) -> None:
    """Whoever leaves, and in whatever order the others come: all others stay where they are."""
    rows = make_rows(25, seed=1)
    for leaver in ("7", "10", "40"):
        outcomes = []
        for left, order in ((rows, 0), ([row for row in rows if row[0] != leaver], 3)):
            folder = tmp_path / f"{leaver}-{order}"
            folder.mkdir()
            left = list(left)
            random.Random(order).shuffle(left)
            write(kind, folder, left)
            units = len({who for who, *_ in left})
            unit = {"column": "who", "max_records": 4}
            data = block(source(kind), test={"split": {"share": 0.4, "seed": 2}}, unit=unit, size=units)
            outcomes.append([numbers_of(records) for records in sides(data, folder)])
        own = {int(number) for who, number, _ in rows if who == leaver}
        (train, test), (fewer_train, fewer_test) = outcomes
        changed = is_held_out(leaver, Split(share=0.4, seed=2))
        assert [n for n in train if n not in own] == fewer_train
        assert [n for n in test if n not in own] == fewer_test
        assert own == set(test if changed else train) - set(fewer_test if changed else fewer_train)


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_numbers_of_records_decide_where_nothing_names_them(kind: str, tmp_path: Path, block: Block) -> None:
    """Numbers in the source, before `records` selects: also what identifies a record for good."""
    rows = make_rows(20)
    write(kind, tmp_path, rows)
    data = block({**source(kind), "records": [5, 35]}, test={"split": {"share": 0.3}}, size=30)
    train, test = sides(data, tmp_path)
    held_out = np.array(find_held_out(map(str, range(len(rows))), Split(share=0.3)))
    assert numbers_of(train) == [n for n in range(5, 35) if not held_out[n]]
    assert numbers_of(test) == [n for n in range(5, 35) if held_out[n]]
    assert train.identities is not None
    assert list(train.identities.texts()) == [str(n) for n in range(5, 35) if not held_out[n]]


def test_digits_and_images_are_divided_too(tmp_path: Path, block: Block) -> None:
    whole = block({"source": "digits", "split": "train"}, size=1438)
    data = block({"source": "digits", "split": "train"}, size=1438, test={"split": {"share": 0.2}})
    held_out = np.array(find_held_out(map(str, range(1438)), Split(share=0.2)))
    every = read(whole.train, whole, tmp_path, "train")[0]
    for records, side in zip(sides(data, tmp_path), (~held_out, held_out), strict=True):
        np.testing.assert_array_equal(records.features, every.features[side])
        np.testing.assert_array_equal(records.labels, every.labels[side])
    images = np.arange(12 * 4, dtype=np.uint8).reshape(12, 2, 2)
    (tmp_path / "i").write_bytes(
        b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (12, 2, 2)) + images.tobytes()
    )
    (tmp_path / "l").write_bytes(b"\0\0\x08\x01" + (12).to_bytes(4, "big") + bytes(range(10)) + b"\0\1")
    data = block(
        {"source": "idx", "images": "i", "labels": "l", "shape": [2, 2]}, size=12, test={"split": {"share": 0.5}}
    )
    held_out = np.array(find_held_out(map(str, range(12)), Split(share=0.5)))
    train, test = sides(data, tmp_path)
    np.testing.assert_array_equal(train.features[:, 0], images[~held_out])
    np.testing.assert_array_equal(test.labels, np.array([*range(10), 0, 1])[held_out])


def test_images_of_parquet_are_divided_by_a_column(tmp_path: Path, block: Block) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    who = [f"w{number // 3}" for number in range(24)]
    pictures = []
    for number in range(24):
        content = io.BytesIO()
        Image.fromarray(np.full((2, 2, 1), number, np.uint8)[:, :, 0]).save(content, "PNG")
        pictures.append({"bytes": content.getvalue(), "path": None})
    pq.write_table(pa.table({"image": pictures, "y": [0, 1] * 12, "who": who}), tmp_path / "t.parquet")
    train = {"source": "parquet", "path": "t.parquet", "image": {"column": "image", "shape": [2, 2, 1]}}
    train["label"] = {"column": "y", "classes": 2}
    data = block(train, size=24, test={"split": {"by": "who", "share": 0.4}})
    held_out = np.array(find_held_out(who, Split(share=0.4)))
    for records, side in zip(sides(data, tmp_path), (~held_out, held_out), strict=True):
        pixels = np.rint(records.batch(slice(None))[0][:, 0, 0, 0] * 255).astype(int)
        assert pixels.tolist() == np.flatnonzero(side).tolist()
        assert records.labels.tolist() == (np.flatnonzero(side) % 2).tolist()


def test_what_is_declared_is_the_size_of_the_whole_and_no_message_tells_more(tmp_path: Path, block: Block) -> None:
    rows = make_rows(40)
    write("csv", tmp_path, rows)
    for size in (39, 41, 30):
        data = block(source("csv"), test={"split": {"share": 0.3}}, unit=UNIT, size=size)
        for role in ("train", "test"):
            with pytest.raises(DataFault) as fault:
                read(data.train, data, tmp_path, role)
            assert f"data.size: {size}" in fault.value.message
            assert "40" not in fault.value.message
    bound = block(source("csv"), test={"split": {"share": 0.3}}, unit=UNIT, size={"max": 50})
    train, test = sides(bound, tmp_path)
    assert train.unit_count < 40
    assert len(test) > 0


@pytest.mark.parametrize(("share", "empty"), [(0.000001, "test"), (0.999999, "train")])
def test_a_side_without_records_is_refused(share: float, empty: str, tmp_path: Path, block: Block) -> None:
    write("csv", tmp_path, make_rows(4))
    data = block(source("csv"), test={"split": {"share": share}}, unit=UNIT, size=4)
    with pytest.raises(DataFault, match=rf"data\.{empty}: the split of data\.train leaves no record"):
        read(data.train, data, tmp_path, empty)


def test_a_record_without_a_name_is_refused(tmp_path: Path, block: Block) -> None:
    (tmp_path / "t.csv").write_text("who,x,y\nanna,1,0\n,2,1\nbert,3,0\n")
    data = block(source("csv"), test={"split": {"by": "who", "share": 0.5}}, size=3)
    with pytest.raises(DataFault, match="a field is empty that names the unit or the record"):
        read(data.train, data, tmp_path, "train")


def test_a_column_of_numbers_divides_by_its_numbers(tmp_path: Path, block: Block) -> None:
    """A feature may divide; 7.0 and 7 are one name, whatever their neighbours are."""
    lines = [f"{number % 5}.0,{number % 2}" for number in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    table = {**source("csv"), "columns": {"x": {"kind": "numeric", "min": 0, "max": 4}}}
    data = block(table, size=40, test={"split": {"by": "x", "share": 0.5, "seed": 1}})
    train, test = sides(data, tmp_path)
    split = data.split
    assert split is not None
    expected = {number for number in range(5) if is_held_out(str(number), split)}
    assert 0 < len(expected) < 5
    assert set(np.rint(test.batch(slice(None))[0][:, 0] * 4).astype(int).tolist()) == expected
    assert len(train) + len(test) == 40


@pytest.mark.parametrize("split", [{"share": 0.3}, {"by": "who", "share": 0.3}])
@pytest.mark.parametrize("unit", ["record", UNIT])
def test_a_prepared_copy_is_of_one_side(split: dict[str, Any], unit: Any, tmp_path: Path, block: Block) -> None:
    rows = make_rows(30)
    write("csv", tmp_path, rows)
    size = 30 if unit == UNIT else len(rows)
    data = block(source("csv"), test={"split": split}, unit=unit, size=size)
    other = block(source("csv"), test={"split": {**split, "seed": 9}}, unit=unit, size=size)
    for made in (data, other, data):
        for role, expected in zip(("train", "test"), sides(made, tmp_path), strict=True):
            kept = read(made.train, made, tmp_path, role, copies=tmp_path / "copies")[0]
            np.testing.assert_array_equal(kept.features, expected.features)
            np.testing.assert_array_equal(kept.labels, expected.labels)
            if expected.identities is not None and kept.identities is not None:
                assert list(kept.identities.texts()) == list(expected.identities.texts())
            assert (kept.units is None, kept.identities is None) == (
                expected.units is None,
                expected.identities is None,
            )
    assert len([path for path in (tmp_path / "copies").iterdir() if path.is_dir()]) == 4
    wrong = block(source("csv"), test={"split": split}, unit=unit, size=size + 1)
    with pytest.raises(DataFault, match=r"data\.size"):
        read(wrong.train, wrong, tmp_path, "train", copies=tmp_path / "copies")


def test_a_plan_counts_on_a_public_number(block: Block) -> None:
    train = source("csv")
    for size, share, planned in ((300, 0.15, 255), (7, 0.3, 4), (1, 0.9, 1), (10, 0.1, 9)):
        data = block(train, test={"split": {"share": share}}, unit=UNIT, size=size)
        assert (data.planned_units, data.max_units, data.hides_training_units) == (planned, size, True)
    plain = block(train, test={"path": "other.csv", **{k: v for k, v in train.items() if k != "path"}}, size=12)
    assert (plain.planned_units, plain.hides_training_units, plain.split) == (12, False, None)


def test_the_split_in_words(block: Block) -> None:
    split = {"share": 0.15, "seed": 4}
    units = describe_split(block(source("csv"), test={"split": split}, unit=UNIT))
    column = describe_split(block(source("csv"), test={"split": {**split, "by": "ward"}}))
    place = describe_split(block(source("csv"), test={"split": split}))
    assert units is not None
    assert "keyed hash of each record's 'who' (BLAKE2b, seed 4): an expected share of 0.15" in units
    assert column is not None
    assert "of each record's 'ward'" in column
    assert place is not None
    assert "of each record's number in its source" in place
    assert describe_split(block(source("csv"))) is None


@pytest.mark.parametrize("by", ["unit", "folder", "who"])
def test_image_folders_are_divided(by: str, tmp_path: Path, block: Block) -> None:
    from PIL import Image

    lines = ["file,folder,y,who"]
    for number in range(24):
        Image.fromarray(np.full((2, 2), number, np.uint8)).save(tmp_path / f"{number:02d}.png")
        lines.append(f"{number:02d}.png,ward {number % 8},{number % 2},w{number // 3}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    train = {"source": "image_folder", "path": ".", "table": "list.csv", "shape": [2, 2, 1]}
    train["label"] = {"column": "y", "classes": 2}
    data = block(train, size=24, test={"split": {"by": by, "share": 0.4, "seed": 1}})
    rows = [line.split(",") for line in lines[1:]]
    names = {"unit": map(str, range(24)), "folder": (row[1] for row in rows), "who": (row[3] for row in rows)}[by]
    held_out = np.array(find_held_out(names, Split(share=0.4, seed=1)))
    for records, side in zip(sides(data, tmp_path), (~held_out, held_out), strict=True):
        pixels = np.rint(records.batch(slice(None))[0][:, 0, 0, 0] * 255).astype(int)
        assert pixels.tolist() == np.flatnonzero(side).tolist()
        assert records.labels.tolist() == (np.flatnonzero(side) % 2).tolist()
