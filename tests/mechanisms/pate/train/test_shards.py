"""Shards of teachers: who is in which, and files of votes that are read as a stranger's."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.faults import DataFault, UsageFault
from dprecipe.mechanisms.pate.train import shards
from dprecipe.mechanisms.pate.train.shards import ShardTerms, TeacherShard, read_terms, read_votes, seal_votes

KEY = bytes(range(32))
TERMS = ShardTerms("sha256:ab", "0.1.0", "cd", "ef", "01", "cpu", "Linux", teachers=7, asked=5, classes=3)
SHARD = TeacherShard(2, 3)
VOTES = np.array([[0, 1, 2, 1, 0], [2, 2, 2, 0, 1]])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / SHARD.file
    path.write_bytes(seal_votes(TERMS, SHARD, VOTES, KEY))
    return path


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "-1/4", "1/0", "1/4/2", "a/b", "1/999999", "1.0/4", "٣/٤"])
def test_what_is_no_shard_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageFault, match="expected I/N") as caught:
        TeacherShard.parse(text)
    assert caught.value.remedy == "write for example --shard 3/40"


@pytest.mark.parametrize("teachers", [1, 2, 7, 64, 250, 1001])
def test_every_teacher_is_in_one_shard(teachers: int) -> None:
    for count in {1, 2, 3, 8, 40, teachers} & set(range(1, teachers + 1)):
        parts = [TeacherShard(number, count).teachers(teachers) for number in range(1, count + 1)]
        assert [teacher for part in parts for teacher in part] == list(range(teachers))
        assert {len(part) for part in parts} <= {teachers // count, teachers // count + 1}
    with pytest.raises(UsageFault, match="fewer than shards"):
        TeacherShard(1, teachers + 1).teachers(teachers)


def test_votes_are_read_as_they_were_sealed(file: Path) -> None:
    assert TeacherShard.named(file.name) == SHARD
    assert read_terms(file, SHARD) == TERMS
    assert np.array_equal(read_votes(file, SHARD, TERMS, KEY), VOTES)
    many = replace(TERMS, classes=70_000)
    file.write_bytes(seal_votes(many, SHARD, VOTES + 69_000, KEY))
    assert np.array_equal(read_votes(file, SHARD, many, KEY), VOTES + 69_000)


def test_every_byte_counts(file: Path) -> None:
    content = file.read_bytes()
    for place in [*range(4), *range(4, len(content), 5)]:
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises((DataFault, UsageFault)) as caught:
            read_votes(file, SHARD, TERMS, KEY)
        assert file.name in caught.value.message
        assert caught.value.remedy


@pytest.mark.parametrize("size", [0, 3, 4, 5, 100, -1, -40])
def test_a_file_that_was_cut_off_or_grew_is_damaged(file: Path, size: int) -> None:
    content = file.read_bytes()
    for damaged in (content[:size], content + b"\0", content + bytes(1 << 20)):
        file.write_bytes(damaged)
        with pytest.raises(DataFault, match="damaged"):
            read_votes(file, SHARD, TERMS, KEY)


def test_what_claims_to_be_huge_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a terabyte is refused for its size, by what the run knows of its own."""
    with file.open("r+b") as opened:
        opened.truncate(1 << 40)
    real, asked = os.fdopen, []
    monkeypatch.setattr(shards, "open", lambda number, mode: Reads(real(number, mode), asked), raising=False)
    with pytest.raises(DataFault, match="another size"):
        read_votes(file, SHARD, TERMS, KEY)
    assert max(asked) < 1 << 16


class Reads:
    """A file that notes how much is asked of it."""

    def __init__(self, file: Any, asked: list[int]) -> None:
        self.file, self.asked = file, asked

    def __enter__(self) -> Reads:
        return self

    def __exit__(self, *rest: object) -> None:
        self.file.close()

    def read(self, size: int) -> bytes:
        self.asked.append(size)
        return self.file.read(size)


@pytest.mark.parametrize("header", [
    b"[]", b"{}", b"null", b'{"schema": 1}', b"{" * 5_000, b'{"plan": NaN}', b"\xff\xff",
    json.dumps({"schema": shards.SCHEMA, "shard": 2, "shards": 3}).encode(),
    json.dumps({"schema": shards.SCHEMA, "shard": 2, "shards": 3, **asdict(TERMS), "teachers": True}).encode(),
    json.dumps({"schema": shards.SCHEMA, "shard": 2, "shards": 3, **asdict(TERMS), "asked": -1}).encode(),
    json.dumps({"schema": shards.SCHEMA, "shard": 2, "shards": 3, **asdict(TERMS), "plan": "x" * 2_000}).encode(),
    json.dumps({"schema": shards.SCHEMA, "shard": 2, "shards": 3, **asdict(TERMS), "more": 1}).encode(),
    json.dumps({"schema": shards.SCHEMA, "shard": 1, "shards": 3, **asdict(TERMS)}).encode(),
])  # fmt: skip
def test_a_header_of_another_form_is_refused(file: Path, header: bytes) -> None:
    file.write_bytes(len(header).to_bytes(4, "big") + header)
    with pytest.raises(DataFault, match="no votes of a shard, or damaged"):
        read_terms(file, SHARD)


def test_a_pickle_or_an_archive_is_never_opened(file: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    file.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataFault, match="damaged"):
        read_votes(file, SHARD, TERMS, KEY)
    np.save(tmp_path / "array.npy", np.array([Bomb()], object), allow_pickle=True)
    file.write_bytes((tmp_path / "array.npy").read_bytes())
    with pytest.raises(DataFault, match="damaged"):
        read_votes(file, SHARD, TERMS, KEY)
    assert not (tmp_path / "ran").exists()


def test_a_file_made_with_another_key_is_refused(file: Path) -> None:
    file.write_bytes(seal_votes(TERMS, SHARD, VOTES, bytes(32)))
    with pytest.raises(DataFault, match="made with another key"):
        read_votes(file, SHARD, TERMS, KEY)


def test_votes_for_no_class_are_refused(file: Path) -> None:
    file.write_bytes(seal_votes(TERMS, SHARD, VOTES + 1, KEY))
    with pytest.raises(DataFault, match="a vote for no class"):
        read_votes(file, SHARD, TERMS, KEY)


def test_each_thing_that_votes_depend_on_is_compared_and_named(file: Path) -> None:
    for name, value in asdict(TERMS).items():
        other = replace(TERMS, **{name: value + ("x" if isinstance(value, str) else 1)})
        words, remedy = shards.DIFFERENCES[name]
        with pytest.raises(UsageFault) as caught:
            read_votes(file, SHARD, other, KEY)
        assert caught.value.message.startswith(f"{file}: {words}")
        assert caught.value.remedy == remedy
    assert shards.DIFFERENCES.keys() == asdict(TERMS).keys()


def test_a_pipe_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / SHARD.file
    os.mkfifo(path)
    with pytest.raises(DataFault, match="can't be read"):
        read_votes(path, SHARD, TERMS, KEY)


def test_a_file_is_read_once_so_that_none_takes_its_place(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a check and a second look, votes of other teachers, sealed with the same key, would count twice."""
    open_regular = shards.durable.open_regular

    def swap(path: Path, flags: int) -> int:
        opened = open_regular(path, flags)
        path.unlink()
        path.write_bytes(seal_votes(TERMS, TeacherShard(1, 3), VOTES[::-1], KEY))
        return opened

    monkeypatch.setattr(shards.durable, "open_regular", swap)
    assert np.array_equal(read_votes(file, SHARD, TERMS, KEY), VOTES)
    with pytest.raises(DataFault, match="the header is that of another file"):
        read_votes(file, SHARD, TERMS, KEY)
