"""An account that is read leaves no trace, and who may not write can read it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dprecipe.account import sqlite_reading
from dprecipe.account.account import DataAccount
from dprecipe.account.faults import AccountUnavailable
from dprecipe.account.opening import open_account
from dprecipe.cli.account import export, verify
from dprecipe.cli.account_show import history, show
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian

CHARGES = (Charge(Gaussian(20.0), 4),)


def list_files(folder: Path) -> dict[str, tuple[object, ...]]:
    """The content of the files of a folder, when it was written, and whose they are."""
    files = {path.name: (path.read_bytes(), path.stat()) for path in folder.iterdir()}
    return {name: (content, found.st_mtime_ns, found.st_mode, found.st_uid) for name, (content, found) in files.items()}


WRITER = """
import sys
from dprecipe.account.opening import open_account
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
account = open_account(sys.argv[1])
account.reserve("a", 1, (Charge(Gaussian(20.0), 4),), "a")
print("reserved", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["at work", "killed", "closed"])
def place(request: pytest.FixtureRequest, make_account: Callable[..., DataAccount], tmp_path: Path) -> Iterator[Path]:
    """An account whose writer, another process, is still there, was killed, or has closed it."""
    (tmp_path / "accounts").mkdir()
    make_account("accounts/admissions.db").close()
    path = tmp_path / "accounts" / "admissions.db"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == b"reserved\n"
        if request.param == "killed":
            writer.kill()
            writer.wait()
        if request.param == "closed":
            writer.stdin.close()
            writer.wait()
        assert len(os.listdir(path.parent)) == (1 if request.param == "closed" else 3)
        yield path
        writer.kill()


def test_a_reader_leaves_no_trace(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, folder = list_files(place.parent), os.stat(place.parent).st_mtime_ns
    show(str(place), "text", tmp_path / "plot.svg")
    history(str(place), "json")
    export(str(place), tmp_path / "statement.json", tmp_path / "head.json", None)
    verify(str(place), tmp_path / "head.json", None)
    assert "2 entries" in capsys.readouterr().out
    assert list_files(place.parent) == before
    assert os.stat(place.parent).st_mtime_ns == folder


def test_a_reader_who_may_write_nothing_sees_what_the_writer_does(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Root may write everything, so that it reads as somebody else."""
    for file in place.parent.iterdir():
        file.chmod(0o444)
    place.parent.chmod(0o555)
    if os.getuid() == 0:
        own = tmp_path_factory.getbasetemp().parent
        for folder in place.parent.parents:
            if folder.is_relative_to(own):
                folder.chmod(0o755)
        if any(not folder.stat().st_mode & 0o1 for folder in own.parents):
            pytest.skip("temporary files are out of reach for anybody else")
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setuid(65534)
            assert not os.access(place, os.W_OK)
            assert open_account(place, read_only=True).verify().totals.runs == 1
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_each_look_is_of_its_moment(make_account: Callable[..., DataAccount], tmp_path: Path) -> None:
    make_account().close()
    reader = open_account(tmp_path / "admissions.db", read_only=True)
    for number in range(1, 4):
        writer = open_account(tmp_path / "admissions.db")
        writer.reserve(f"r{number}", 1, CHARGES, "a")
        if number % 2:
            writer.close()
        assert reader.state().totals.runs == number


def test_a_file_that_is_written_to_meanwhile_is_read_again(
    make_account: Callable[..., DataAccount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_account().close()
    honest, runs = sqlite_reading._copy_file, 0

    def copy_while_written(file: Path) -> sqlite3.Connection:
        nonlocal runs
        copy = honest(file)
        if runs < 3:
            runs += 1
            writer = open_account(file)
            writer.reserve(f"r{runs}", 1, CHARGES, "a")
            writer.close()
        return copy

    monkeypatch.setattr(sqlite_reading, "_copy_file", copy_while_written)
    assert open_account(tmp_path / "admissions.db", read_only=True).state().totals.runs == 3
    monkeypatch.setattr(sqlite_reading, "_look_at", lambda file: (False, (len(os.listdir(file.parent)), next(clock))))
    clock = iter(range(1000))
    with pytest.raises(AccountUnavailable, match="held the account's lock"):
        open_account(tmp_path / "admissions.db", read_only=True)


def test_a_log_without_its_index_names_who_brings_it_in_order(account: DataAccount, tmp_path: Path) -> None:
    account.reserve("a", 1, CHARGES, "a")
    (tmp_path / "backup").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{account.place}{suffix}", tmp_path / "backup")
    copy = tmp_path / "backup" / "admissions.db"
    before = list_files(copy.parent)
    with pytest.raises(AccountUnavailable, match="can't be read") as refused:
        open_account(copy, read_only=True)
    assert f"dprecipe account test {copy}" in refused.value.remedy
    assert list_files(copy.parent) == before
    writer = open_account(copy)  # what the remedy does
    writer.try_writing()
    assert open_account(copy, read_only=True).state().totals.runs == 1
