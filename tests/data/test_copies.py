from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dprecipe.data import copies, load
from dprecipe.data.copies import MANIFEST, delete_copy, find_folder, list_copies
from dprecipe.data.known_digests import KnownDigests
from dprecipe.data.schema import Data
from dprecipe.faults import DataFault
from tests.data.test_larger import ROWS, SOURCES, UNIT, WHO, write_csv

STEPS = SOURCES["csv"][2]["preprocess"]
NAMES = ["csv of units", "parquet", "items", "images of units", "npz of units", "idx"]


def reads(monkeypatch: pytest.MonkeyPatch, data: Data) -> list[str]:
    """The sources that are read from now on, and not taken from a copy."""
    seen: list[str] = []
    source = type(data.train)
    read = source.read

    def counted(self: Any, *args: Any) -> Any:
        seen.append(self.source)
        return read(self, *args)

    monkeypatch.setattr(source, "read", counted)
    return seen


@pytest.fixture
def data(block, tmp_path: Path) -> Data:
    write_csv(tmp_path)
    return block(SOURCES["csv of units"][1], preprocess=STEPS, **UNIT)


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_holds_what_memory_holds(name: str, block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, source, rest = SOURCES[name]
    write(tmp_path)
    data = block(source, **{"size": ROWS, **rest})
    memory, counts = load.read(data.train, data, tmp_path, "train")
    seen, folder = reads(monkeypatch, data), tmp_path / "kept"
    for times in (1, 1, 1):
        kept, kept_counts = load.read(data.train, data, tmp_path, "train", copies=folder)
        assert len(seen) == times
        assert kept.features.dtype == memory.features.dtype
        assert kept.features.tobytes() == memory.features.tobytes()
        assert kept.labels.tobytes() == memory.labels.tobytes()
        assert kept_counts == counts
        assert (kept.units is None) == (memory.units is None)
        assert memory.units is None or kept.units.tolist() == memory.units.tolist()
        assert list(kept.identities.texts()) == list(memory.identities.texts())
        assert {text: (c.start, list(c.values)) for text, c in kept.texts.items()} == {
            text: (c.start, list(c.values)) for text, c in memory.texts.items()
        }
    assert len(list_copies(folder)) == 1


def test_only_the_owner_can_read_a_copy_and_nothing_else_is_left(data: Data, tmp_path: Path) -> None:
    load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")
    entries = list((tmp_path / "kept").rglob("*"))
    assert len(entries) > 5
    assert all(entry.stat().st_mode & 0o077 == 0 for entry in [tmp_path / "kept", *entries])
    assert not [entry for entry in entries if "writing" in entry.name]
    text = "".join(path.read_text(errors="replace") for path in entries if path.name == MANIFEST)
    assert "person" not in text


def test_what_decides_a_copy(data: Data, block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, folder = reads(monkeypatch, data), tmp_path / "kept"

    def read(data: Data, role: Any = "train") -> int:
        seen.clear()
        load.read(data.train, data, tmp_path, role, copies=folder)
        return len(seen)

    assert [read(data), read(data)] == [1, 0]
    source, declared = SOURCES["csv of units"][1], {"preprocess": STEPS, **UNIT}
    assert read(block(source, **{**declared, "preprocess": [*STEPS[:2], {"scale": {"mean": 1, "std": 2}}]})) == 0
    assert read(block(source, **{**declared, "size": {"max": 1000}})) == 0
    assert read(block(source, **{**declared, "preprocess": [STEPS[0], {"hash": {"columns": ["note"], "buckets": 8}}]}))
    assert read(block(source, **{**declared, "unit": {"column": "who", "max_records": 4}}))
    assert read(block(source, **{"preprocess": STEPS, "size": ROWS}))
    swapped = {**source, "columns": dict(reversed(source["columns"].items()))}
    assert read(block(swapped, **declared))
    number = next(name for name, column in source["columns"].items() if column["kind"] == "numeric")
    for keys in ({"missing": {"fill": 1.0, "indicator": True}}, {"affixes": ["kg"]}):
        other = {**source["columns"], number: {**source["columns"][number], **keys}}
        assert read(block({**source, "columns": other}, **declared))
    assert read(data, "test")
    with pytest.raises(DataFault, match="does not have the number of units"):
        read(block(source, **{**declared, "size": 41}))
    status = (tmp_path / "t.csv").stat()
    content = (tmp_path / "t.csv").read_bytes()
    (tmp_path / "t.csv").write_bytes(content.replace(b"Bern", b"BERN"))
    os.utime(tmp_path / "t.csv", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [read(data), read(data)] == [1, 0]
    monkeypatch.setattr(copies, "__version__", "0.0.0")
    assert read(data) == 1


def test_many_files_are_known_by_their_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(b"x")
    known = KnownDigests(tmp_path, b"secret")
    by_content = copies.digest_files(files, known)
    assert by_content[0] == by_content[1]
    monkeypatch.setattr(copies, "BY_CONTENT", 1)
    before = copies.digest_files(files, known)
    assert before == copies.digest_files(files, known) != by_content
    os.utime(files[0], ns=(1, 1))
    assert copies.digest_files(files, known) != before


def damage(path: Path, how: str) -> None:
    part = path / "features"
    if how == "cut off":
        os.truncate(part, part.stat().st_size - 1)
    elif how == "longer":
        with part.open("ab") as file:
            file.write(b"x")
    elif how == "changed":
        content = bytearray(part.read_bytes())
        content[17] ^= 1
        part.write_bytes(content)
    elif how == "gone":
        part.unlink()
    elif how == "a link":
        part.rename(path / "elsewhere")
        os.mkfifo(part)
    else:
        manifest = json.loads((path / MANIFEST).read_text())
        if how == "another type":
            manifest["parts"]["features"]["type"] = "|O"
        elif how == "another place":
            manifest["parts"]["../features"] = manifest["parts"]["features"]
        (path / MANIFEST).write_text(
            "{" if how == "no manifest" else json.dumps(manifest)[: -1 if how == "cut" else None]
        )


@pytest.mark.parametrize(
    "how", ["cut off", "longer", "changed", "gone", "a link", "no manifest", "cut", "another type", "another place"]
)
def test_a_damaged_copy_is_made_again(
    how: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, folder = reads(monkeypatch, data), tmp_path / "kept"
    expected = load.read(data.train, data, tmp_path, "train", copies=folder)[0].features.tobytes()
    ((name, _, _),) = list_copies(folder)
    damage(folder / name, how)
    for _ in range(2):
        assert load.read(data.train, data, tmp_path, "train", copies=folder)[0].features.tobytes() == expected
    assert len(seen) == 2
    note = capsys.readouterr().err
    assert "is damaged" in note
    assert name[:8] not in note  # a digest of private records


DRIVER = """
import sys, time
from pathlib import Path
from dprecipe.data import load, copies
from dprecipe.data.schema import Data
root = Path(sys.argv[1])
data = Data.model_validate_json((root / "data.json").read_text())
if sys.argv[2] == "sleep":
    replace = copies.durable.replace_file
    def slow(path, content):
        if path.name != copies.MANIFEST:
            return replace(path, content)
        (root / "reached").touch()
        time.sleep(60)
    copies.durable.replace_file = slow
print(load.read(data.train, data, root, "train", copies=root / "kept")[0].features.tobytes().hex())
"""


def start(root: Path, data: Data, how: str) -> subprocess.Popen[str]:
    (root / "data.json").write_text(data.model_dump_json(exclude_none=True))
    return subprocess.Popen([sys.executable, "-c", DRIVER, str(root), how], stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    for _ in range(3000):
        if path.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"{path} did not come")


def test_a_process_that_is_killed_leaves_no_copy(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(tmp_path, data, "sleep") as process:
        wait_for(tmp_path / "reached")
        ((name, size, files),) = list_copies(tmp_path / "kept")
        assert name.endswith(".writing")
        assert size > 0
        assert files == ()
        with pytest.raises(BlockingIOError):
            delete_copy(tmp_path / "kept", name)
        process.send_signal(signal.SIGKILL)
    memory = load.read(data.train, data, tmp_path, "train")[0].features
    seen = reads(monkeypatch, data)
    for _ in range(2):
        kept = load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")[0].features
        assert kept.tobytes() == memory.tobytes()
    assert len(seen) == 1
    assert [name.endswith(".writing") for name, _, _ in list_copies(tmp_path / "kept")] == [False]


def test_who_needs_a_copy_in_the_making_waits_for_it(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, folder = reads(monkeypatch, data), tmp_path / "kept"
    gate, results = threading.Event(), []
    publish = copies.Copy.publish

    def slow(self: Any, *args: Any) -> None:
        gate.wait(30)
        publish(self, *args)

    monkeypatch.setattr(copies.Copy, "publish", slow)

    def read() -> None:
        results.append(load.read(data.train, data, tmp_path, "train", copies=folder)[0].features.tobytes())

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    note = ""
    for _ in range(1000):
        note += capsys.readouterr().err
        if "waiting for it" in note:
            break
        time.sleep(0.01)
    gate.set()
    for thread in threads:
        thread.join(30)
    assert len(results) == 3
    assert len(set(results)) == 1
    assert len(seen) == 1
    ((name, _, _),) = list_copies(folder)
    assert name[:8] not in note  # a digest of private records


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = type(data.train).read

    def change(self: Any, root: Path, reading: Any) -> Any:
        result = read(self, root, reading)
        os.utime(tmp_path / "t.csv", ns=(5, 5))
        return result

    monkeypatch.setattr(type(data.train), "read", change)
    load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")
    assert list_copies(tmp_path / "kept") == []


def test_a_file_that_changes_while_its_digest_is_made_is_not_kept(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = copies.digest_files

    def change(files: Any, known: Any) -> Any:
        result = digest(files, known)
        os.utime(tmp_path / "t.csv", ns=(5, 5))
        return result

    monkeypatch.setattr(copies, "digest_files", change)
    load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")
    assert list_copies(tmp_path / "kept") == []


@pytest.mark.parametrize("where", ["a part", "the manifest", "the folder"])
def test_a_full_disk_is_a_fault_and_leaves_nothing(
    where: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner = {"a part": copies.Copy, "the manifest": copies.durable, "the folder": copies}[where]
    monkeypatch.setattr(owner, {"a part": "_open", "the manifest": "replace_file", "the folder": "_lock"}[where], full)
    with pytest.raises(DataFault, match="No space left on device") as caught:
        load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")
    assert str(tmp_path / "kept") in caught.value.remedy
    assert "runtime.prepared" in caught.value.remedy
    assert not [path for path in (tmp_path / "kept").iterdir() if path.is_dir()]


def test_a_source_that_is_wrong_is_not_kept(data: Data, block, tmp_path: Path) -> None:
    wrong = block(SOURCES["csv of units"][1], **{"preprocess": STEPS, **UNIT, "size": len(set(WHO)) - 1})
    with pytest.raises(DataFault):
        load.read(wrong.train, wrong, tmp_path, "train", copies=tmp_path / "kept")
    assert list_copies(tmp_path / "kept") == []
    (tmp_path / "t.csv").unlink()
    with pytest.raises(DataFault, match="no such data file"):
        load.read(data.train, data, tmp_path, "train", copies=tmp_path / "kept")


def test_where_copies_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPRECIPE_PREPARED", raising=False)
    assert find_folder(None, "recipe.yaml") is None
    assert find_folder("kept", tmp_path / "recipe.yaml") == tmp_path / "kept"
    monkeypatch.setenv("DPRECIPE_PREPARED", "/elsewhere")
    assert find_folder(None, "recipe.yaml") == Path("/elsewhere")
    assert find_folder(str(tmp_path), "recipe.yaml") == tmp_path


def test_a_copy_that_is_deleted_is_gone_and_who_has_it_keeps_it(data: Data, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    records = load.read(data.train, data, tmp_path, "train", copies=folder)[0]
    again = load.read(data.train, data, tmp_path, "train", copies=folder)[0]
    ((name, size, files),) = list_copies(folder)
    assert files == ("t.csv",)
    assert size > records.features.nbytes
    delete_copy(folder, name)
    assert [path.name for path in folder.iterdir()] == ["secret"]
    assert again.features.tobytes() == records.features.tobytes()


def test_a_key_tells_nothing_of_the_files_without_the_folders_secret(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n", encoding="utf-8")
    keys = []
    for name in ("one", "two", "one"):
        with copies.open_copy(tmp_path / name, "declared", [tmp_path / "a.csv"], ["a.csv"]) as copy:
            keys.append(copy.path.name)
    assert keys[0] == keys[2] != keys[1]
    secret = tmp_path / "one" / "secret"
    assert oct(secret.stat().st_mode)[-3:] == "600"
    assert len(secret.read_bytes()) == 32
    secret.write_bytes(b"short")
    with (
        pytest.raises(DataFault, match="damaged"),
        copies.open_copy(tmp_path / "one", "declared", [tmp_path / "a.csv"], ["a.csv"]),
    ):
        pass
