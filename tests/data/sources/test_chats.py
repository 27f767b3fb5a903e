"""Conversations from every source that holds them are the same sequences; units, splits and copies hold for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.load import load, read
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.faults import DataFault
from tests.data.test_sequences import CHAT, LETTERS, write_tokenizer

TURNS = [
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"}],
    [{"role": "assistant", "content": "<eos> c"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "d"}, {"role": "user", "content": "long " * 9}],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "second of a"}],
]
WHO = ["a", "b", "c", "a"]
SPLIT = {"by": "unit", "share": 0.4, "seed": 4}


def data_of(source: dict[str, Any], size: int = 4, **rest: Any) -> Data:
    step = {
        "chat": "chat",
        "roles": {"user": ["<user>", "\n"], "assistant": ["<bot>", "<eos>"]},
        "tokenizer": {"path": "tokenizer.json", "vocabulary": len(LETTERS)},
        "max_length": 24,
    }
    train = {**source, "columns": CHAT, "label": "next_token"}
    block = {"train": train, "size": size, "preprocess": [{"sequences": step}], **rest}
    return Data.model_validate_json(json.dumps(block))


def write_csv(folder: Path) -> dict[str, Any]:
    import csv

    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["chat", "who"])
        writer.writerows((json.dumps(turns), who) for turns, who in zip(TURNS, WHO, strict=True))
    return {"source": "csv", "path": "t.csv"}


def write_lines(folder: Path) -> dict[str, Any]:
    rows = [{"chat": turns, "who": who} for turns, who in zip(TURNS, WHO, strict=True)]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"source": "json_lines", "path": "t.jsonl"}


def write_parquet(folder: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"chat": TURNS, "who": WHO}), folder / "t.parquet")
    return {"source": "parquet", "path": "t.parquet"}


def write_folder(folder: Path) -> dict[str, Any]:
    (folder / "saved").mkdir()
    write_parquet(folder / "saved")
    (folder / "saved" / "t.parquet").rename(folder / "saved" / "train-00000-of-00001.parquet")
    return {"source": "datasets", "path": "saved"}


SOURCES = {"csv": write_csv, "json_lines": write_lines, "parquet": write_parquet, "datasets": write_folder}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_sequences(tmp_path: Path, kind: str) -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    write_tokenizer(tmp_path)
    data = data_of(SOURCES[kind](tmp_path))
    records = load(data.train, data, tmp_path, "train")
    frame = Records.from_pandas(pd.DataFrame({"chat": TURNS, "who": WHO}))
    held, _ = read(data.train, data, tmp_path, "train", held=frame)
    np.testing.assert_array_equal(records.features, held.features)
    np.testing.assert_array_equal(records.labels, held.labels)
    assert records.labels.tolist() == [3, 8, 2, 12]
    assert records.features.shape == (4, 2, 24)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_unit_has_at_most_its_first_records_and_is_on_one_side_of_a_split(tmp_path: Path, kind: str) -> None:
    write_tokenizer(tmp_path)
    source = SOURCES[kind](tmp_path)
    unit = {"column": "who", "max_records": 1}
    data = data_of(source, 3, unit=unit)
    first = load(data.train, data, tmp_path, "train")
    assert first.units is not None
    assert first.units.tolist() == [0, 1, 2]
    whole = data_of(source)
    np.testing.assert_array_equal(first.features, load(whole.train, whole, tmp_path, "train").features[:3])
    data = data_of(source, 3, unit={"column": "who", "max_records": 2}, test={"split": SPLIT})
    held_out = data.held_out
    assert held_out is not None
    sides = [load(data.train, data, tmp_path, "train"), load(held_out, data, tmp_path, "test")]
    assert sum(map(len, sides)) == 4
    assert all(len(side) in (1, 2, 3) for side in sides)
    assert sorted(np.concatenate([side.labels for side in sides]).tolist()) == [2, 3, 8, 12]


def test_a_copy_is_what_was_read_and_one_of_another_tokeniser_is_another(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    data = data_of(write_lines(tmp_path))
    once = [load(data.train, data, tmp_path, "train", copies=tmp_path / "copies") for _ in range(2)]
    np.testing.assert_array_equal(once[0].features, once[1].features)
    write_tokenizer(tmp_path, before=["<bot>"])
    other = load(data.train, data, tmp_path, "train", copies=tmp_path / "copies")
    assert (other.features[:, 0, 0] == LETTERS.index("<bot>")).all()


@pytest.mark.parametrize("values", [[1, 2, 3, 4], [["a"]] * 4, [[{"who": "a"}]] * 4])
def test_a_column_of_anything_else_is_refused(tmp_path: Path, values: list[Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"chat": values}), tmp_path / "t.parquet")
    write_tokenizer(tmp_path)
    data = data_of({"source": "parquet", "path": "t.parquet"})
    with pytest.raises(DataFault, match="expected lists of messages"):
        load(data.train, data, tmp_path, "train")


def test_a_chat_is_no_text(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    source = write_lines(tmp_path)
    content = data_of(source).model_dump(mode="json", exclude_none=True)
    content["train"]["columns"] = {"chat": {"kind": "text"}}
    step = content["preprocess"][0]["sequences"]
    step["text"] = step.pop("chat")
    del step["roles"]
    data = Data.model_validate_json(json.dumps(content))
    with pytest.raises(DataFault, match="holds a list or an object"):
        load(data.train, data, tmp_path, "train")
