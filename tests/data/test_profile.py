"""Counts that are taken of encoded records, held against counts of the rows they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dprecipe.data.facts import describe_data
from dprecipe.data.load import read
from dprecipe.data.profile import Bars, ColumnProfile, SourceProfile, profile_source
from dprecipe.data.schema import Data

COLUMNS = {
    "x": {"kind": "numeric", "min": -10, "max": 10},
    "n": {"kind": "integer", "min": 1, "max": 5},
    "b": {"kind": "boolean"},
    "o": {"kind": "ordinal", "values": ["low", "middle", "high"]},
    "c": {"kind": "category", "values": ["red", "blue"]},
    "d": {"kind": "date", "min": "2024-01-01", "max": "2024-12-31", "parts": ["month"]},
    "t": {"kind": "text"},
}
STEPS = [{"one_hot": {}}, {"hash": {"columns": ["t"], "buckets": 4}}]


def profile(block: Callable[..., Data], folder: Path, label: dict[str, object], **rest: object) -> SourceProfile:
    train = {"source": "csv", "path": "t.csv", "columns": COLUMNS, "label": {"column": "y", **label}}
    data = block(train, preprocess=STEPS, **rest)
    records, counts = read(data.train, data, folder, "train")
    return profile_source(records, counts, data, "train")


def write(folder: Path, count: int) -> list[dict[str, str]]:
    draw = np.random.default_rng(3)
    rows = [
        {
            "who": f"u{draw.integers(6)}",
            "x": f"{draw.normal(0, 6):.3f}",
            "n": str(draw.integers(1, 6)),
            "b": str(draw.choice(["yes", "no"])),
            "o": str(draw.choice(["low", "middle", "high"])),
            "c": str(draw.choice(["red", "blue", "green"])),
            "d": f"2024-{draw.integers(1, 13):02d}-11",
            "t": "word",
            "y": str(draw.integers(3)),
        }
        for _ in range(count)
    ]
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return rows


def test_every_kind_is_counted(block: Callable[..., Data], tmp_path: Path) -> None:
    rows = write(tmp_path, 300)
    made = profile(block, tmp_path, {"classes": 3}, size=300)
    columns: dict[str, ColumnProfile] = {column.name: column for column in made.columns}

    def told(name: str) -> dict[str, int]:
        bars = columns[name].bars
        assert bars is not None
        return dict(zip(bars.names, bars.counts, strict=True))

    def counted(name: str) -> Counter[str]:
        return Counter(row[name] for row in rows)

    assert told("n") == counted("n")
    assert told("b") == counted("b")
    assert told("o") == counted("o")
    colours = counted("c")
    assert told("c") == {"red": colours["red"], "blue": colours["blue"], "other": colours["green"]}
    assert list(told("d").values()) == [counted("d")[f"2024-{month:02d}-11"] for month in range(1, 13)]
    numbers = np.clip([float(row["x"]) for row in rows], -10, 10)
    assert list(told("x").values()) == np.histogram(numbers, 20, (-10, 10))[0].tolist()
    assert columns["x"].bars is not None
    assert columns["x"].bars.ends == ("-10", "10")
    assert columns["x"].counts.below + columns["x"].counts.above == sum(abs(float(row["x"])) > 10 for row in rows)
    assert columns["t"].bars is None
    assert made.label == Bars(("0", "1", "2"), tuple(counted("y")[str(n)] for n in range(3)), ("0", "2"))
    assert (made.records, made.units, made.by_unit) == (300, None, None)


def test_units_and_numeric_labels_are_counted(block: Callable[..., Data], tmp_path: Path) -> None:
    rows = write(tmp_path, 40)
    sizes = Counter(min(7, count) for count in Counter(row["who"] for row in rows).values())
    unit = {"column": "who", "max_records": 7}
    made = profile(block, tmp_path, {"range": [0, 2]}, size=6, unit=unit)
    assert made.units == 6
    assert made.by_unit is not None
    assert {
        int(name): count for name, count in zip(made.by_unit.names, made.by_unit.counts, strict=True) if count
    } == sizes
    assert made.label is not None
    assert sum(made.label.counts) == made.records
    assert made.label.counts[0] + made.label.counts[10] + made.label.counts[19] == made.records


def test_counts_as_labels_are_counted(block: Callable[..., Data], tmp_path: Path) -> None:
    rows = write(tmp_path, 60)
    few, many = (profile(block, tmp_path, {"count": {"max": most}}, size=60).label for most in (3, 40))
    counted = Counter(row["y"] for row in rows)
    assert few == Bars(("0", "1", "2", "3"), (*(counted[str(n)] for n in range(3)), 0), ("0", "3"))
    assert many is not None
    assert (many.ends, many.counts[0], many.counts[1]) == (("0", "40"), counted["0"] + counted["1"], counted["2"])


def test_the_widest_range_is_shown_as_declared(block: Callable[..., Data], tmp_path: Path) -> None:
    """The width of a range may be more than the largest double."""
    rows = [f"{(number - 100) * 1.6e306},{number % 2}" for number in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b", *rows]) + "\n")
    wide = {"range": [-1.7e308, 1.7e308]}
    source = {"source": "csv", "path": "t.csv", "columns": {"b": {"kind": "boolean"}}}
    for columns, label in (
        (source["columns"], {"column": "a", **wide}),
        ({"a": {"kind": "numeric", "min": -1.7e308, "max": 1.7e308}}, {"column": "b", "classes": 2}),
    ):
        data = block({**source, "columns": columns, "label": label}, size=200)
        made = profile_source(*read(data.train, data, tmp_path, "train"), data, "train")
        bars = made.label if "range" in label else made.columns[0].bars
        assert bars is not None
        assert bars.ends == ("-1.7e+308", "1.7e+308")
        assert bars.names[10] == "0 to 1.7e+307"
        assert sum(bars.counts) == 200
        assert not any(word in name for name in bars.names for word in ("nan", "inf"))


def test_a_gap_has_a_feature_and_no_bar(block: Callable[..., Data], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,d,y\n1,2024-05-17,0\n,,1\n")
    gap = {"fill": 5, "indicator": True}
    columns = {
        "a": {"kind": "integer", "min": 0, "max": 9, "missing": gap},
        "d": {"kind": "date", "min": "2024-01-01", "max": "2024-12-31", "missing": {**gap, "fill": "2024-07-01"}},
    }
    source = {"source": "csv", "path": "t.csv", "columns": columns, "label": {"column": "y", "classes": 2}}
    data = block(source, size=2)
    records, counts = read(data.train, data, tmp_path, "train")
    assert describe_data(data).shape == (4,)
    assert [(place.name, place.start, place.width) for place in describe_data(data).columns] == [
        ("a", 0, 2),
        ("d", 2, 2),
    ]
    assert records.features[:, [1, 3]].tolist() == [[0, 0], [1, 1]]
    made = profile_source(records, counts, data, "train")
    assert [column.counts.missing for column in made.columns] == [1, 1]
    assert [None if column.bars is None else sum(column.bars.counts) for column in made.columns] == [2, 2]
