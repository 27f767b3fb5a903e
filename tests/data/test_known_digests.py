from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data import known_digests, load
from dprecipe.data.copies import MANIFEST, list_copies
from dprecipe.data.known_digests import NAME, KnownDigests, digest_blocks, forget_digests, state_of
from dprecipe.data.schema import Data
from tests.data.test_larger import SOURCES, UNIT, write_csv

SECRET = b"x" * 32


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of which every byte is read from now on."""
    seen: list[str] = []
    digest = known_digests.digest_blocks

    def counted(file: Path) -> list[str]:
        seen.append(file.name)
        return digest(file)

    monkeypatch.setattr(known_digests, "digest_blocks", counted)
    return seen


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as unchanged for long."""
    monkeypatch.setattr(known_digests, "SETTLED_SECONDS", -60.0)


def digest_again(folder: Path, file: Path) -> str:
    known = KnownDigests(folder, SECRET)
    try:
        return known.digest(file)
    finally:
        known.save()


def test_a_file_that_nobody_changed_is_read_once(tmp_path: Path, settled: None, read_files: list[str]) -> None:
    (tmp_path / "a").write_bytes(b"content")
    first = digest_again(tmp_path, tmp_path / "a")
    assert digest_again(tmp_path, tmp_path / "a") == first
    assert read_files == ["a"]
    assert (tmp_path / NAME).stat().st_mode & 0o077 == 0
    assert str(tmp_path) not in (tmp_path / NAME).read_text()
    forget_digests(tmp_path)
    assert digest_again(tmp_path, tmp_path / "a") == first
    assert read_files == ["a", "a"]


def test_a_file_that_was_just_changed_is_read_again(tmp_path: Path, read_files: list[str]) -> None:
    """Two changes within a tick of the clock have one time."""
    (tmp_path / "a").write_bytes(b"content")
    assert digest_again(tmp_path, tmp_path / "a") == digest_again(tmp_path, tmp_path / "a")
    assert read_files == ["a", "a"]
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("how", ["in place, with its time set back", "replaced", "a link to another", "longer"])
def test_a_file_that_was_changed_is_read_again(how: str, tmp_path: Path, settled: None, read_files: list[str]) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"content")
    before, first = file.stat(), digest_again(tmp_path, file)
    if how == "in place, with its time set back":
        with file.open("r+b") as stream:
            stream.write(b"CONTENT")
    elif how == "longer":
        with file.open("ab") as stream:
            stream.write(b"s")
    else:
        (tmp_path / "b").write_bytes(b"CONTENT")
        if how == "replaced":
            (tmp_path / "b").rename(file)
        else:
            file.unlink()
            file.symlink_to("b")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_again(tmp_path, file) != first
    assert len(read_files) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"content")

    def change(file: Path) -> list[str]:
        os.utime(file, ns=(5, 5))
        return ["digest"]

    monkeypatch.setattr(known_digests, "digest_blocks", change)
    digest_again(tmp_path, tmp_path / "a")
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"a": [["x"], "y"]}', '{"a": [[1], 2, 3]}', "[" * 5000])
def test_a_damaged_memory_is_none(content: str, tmp_path: Path, settled: None, read_files: list[str]) -> None:
    (tmp_path / NAME).write_text(content)
    (tmp_path / "a").write_bytes(b"content")
    assert digest_again(tmp_path, tmp_path / "a") == digest_again(tmp_path, tmp_path / "a")
    assert read_files == ["a"]


def test_of_too_many_files_the_last_are_remembered(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch, read_files: list[str]
) -> None:
    monkeypatch.setattr(known_digests, "MAX_KNOWN", 2)
    for name in "abc":
        (tmp_path / name).write_text(name)
        digest_again(tmp_path, tmp_path / name)
    assert len(json.loads((tmp_path / NAME).read_text())) == 2
    for name in "cba":
        digest_again(tmp_path, tmp_path / name)
    assert read_files == ["a", "b", "c", "a"]


def test_where_nothing_tells_of_a_change_nothing_is_remembered(
    tmp_path: Path, settled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_digests, "HAS_CTIME", False)
    (tmp_path / "a").write_bytes(b"content")
    digest_again(tmp_path, tmp_path / "a")
    assert not (tmp_path / NAME).exists()


def test_the_secret_decides_every_digest(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    assert KnownDigests(tmp_path, SECRET).digest(tmp_path / "a") != KnownDigests(tmp_path, b"y").digest(tmp_path / "a")


def test_digests_do_not_depend_on_threads_and_see_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_digests, "BLOCK_BYTES", 1000)
    content = np.random.default_rng(0).bytes(4500)
    (tmp_path / "a").write_bytes(content)
    first = digest_blocks(tmp_path / "a")
    assert len(first) == len(set(first)) == 5
    for place in (0, 999, 1000, 4499):
        (tmp_path / "a").write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert digest_blocks(tmp_path / "a") != first


def test_a_later_start_reads_neither_source_nor_copy_and_sees_what_changed(
    block: Any, tmp_path: Path, settled: None, read_files: list[str]
) -> None:
    write_csv(tmp_path)
    data: Data = block(SOURCES["csv of units"][1], preprocess=SOURCES["csv"][2]["preprocess"], **UNIT)

    def start() -> tuple[list[str], bytes]:
        read_files.clear()
        records = load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")[0]
        return sorted(read_files), records.features.tobytes()

    first, whole = start()
    assert first[0] == "features"
    assert first[-1] == "t.csv"
    parts, again = start()  # what was written is read once, from the disk
    assert again == whole
    assert "features" in parts
    assert "t.csv" not in parts
    assert start() == ([], whole)
    ((key, _, _),) = list_copies(tmp_path / "kept")
    part = tmp_path / "kept" / key / "features"
    before = state_of(part)
    content = bytearray(part.read_bytes())
    content[9] ^= 1
    part.write_bytes(content)
    os.utime(part, ns=(before[1], before[1]))
    assert start()[1] == whole  # the copy was thrown away
    (tmp_path / "t.csv").write_bytes((tmp_path / "t.csv").read_bytes().replace(b"Bern", b"BERN"))
    assert start()[0][-1] == "t.csv"
    assert MANIFEST in {path.name for path in (tmp_path / "kept" / key).iterdir()}
