"""An account in a file: who may read it, and its bad days."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.account import books
from dprecipe.account.account import DataAccount
from dprecipe.account.entries import BindAct
from dprecipe.account.facts import AccountFacts
from dprecipe.account.faults import AccountInvalid, AccountUnavailable
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.sqlite_store import SqliteStore
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.release.untrusted import Exceeded, bound_resources

CHARGES = (Charge(Gaussian(20.0), 4),)
DATA = b"the data's digest".ljust(32)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_the_files_are_the_owners_alone(account: DataAccount, tmp_path: Path) -> None:
    account.reserve("a", 1, CHARGES, "a")
    assert modes(tmp_path) == {"admissions.db": 0o600, "admissions.db-wal": 0o600, "admissions.db-shm": 0o600}


def test_nothing_is_overwritten(tmp_path: Path, facts: AccountFacts) -> None:
    SqliteStore(tmp_path / "a.db").create(facts, b"k" * 32)
    before = (tmp_path / "a.db").read_bytes()
    with pytest.raises(UsageFault, match="nothing is overwritten"):
        SqliteStore(tmp_path / "a.db").create(facts, b"l" * 32)
    assert (tmp_path / "a.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]
    with pytest.raises(UsageFault, match="no such folder"):
        SqliteStore(tmp_path / "none" / "a.db").create(facts, b"k" * 32)


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
def test_what_another_account_left_is_not_taken_for_the_new_ones(
    tmp_path: Path, facts: AccountFacts, suffix: str
) -> None:
    """A killed process leaves its log; with the file alone deleted, SQLite would bring the old account back."""
    (tmp_path / f"a.db{suffix}").write_bytes(b"")
    with pytest.raises(UsageFault, match="left over from an account"):
        SqliteStore(tmp_path / "a.db").create(facts, b"k" * 32)
    assert [path.name for path in tmp_path.iterdir()] == [f"a.db{suffix}"]


def test_a_file_of_two_names_is_refused(tmp_path: Path, facts: AccountFacts) -> None:
    SqliteStore(tmp_path / "a.db").create(facts, b"k" * 32)
    os.link(tmp_path / "a.db", tmp_path / "b.db")
    for name in ("a.db", "b.db"):
        with pytest.raises(AccountUnavailable, match="2 names"):
            open_account(tmp_path / name)
    (tmp_path / "b.db").unlink()
    (tmp_path / "b.db").symlink_to("a.db")  # of a symbolic link, SQLite takes the file's own name
    open_account(tmp_path / "b.db").close()


def test_every_commit_is_synchronised(account: DataAccount) -> None:
    with account.snapshot():
        connection = account._store._connection  # type: ignore[attr-defined]
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("content", [None, b"", b"no database", b"SQLite format 3\0" + b"\0" * 200])
def test_what_is_no_account(tmp_path: Path, content: bytes | None, read_only: bool) -> None:
    path = tmp_path / "a.db"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageFault, match=r"there is no account|is no account of dprecipe"):
        open_account(path, read_only=read_only)
    assert path.exists() == (content is not None)  # nothing was made
    with pytest.raises(UsageFault, match="is no account of dprecipe"):
        open_account(tmp_path)


def test_another_database_is_not_taken_for_an_account(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(UsageFault, match="is no account of dprecipe"):
        open_account(tmp_path / "other.db")


def test_a_lock_held_for_long_is_told(account: DataAccount) -> None:
    holder = sqlite3.connect(account.place, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    waiting = DataAccount(SqliteStore(Path(account.place), wait_seconds=0.05))
    with pytest.raises(AccountUnavailable, match=r"another process has held the account's lock for 0\.05 s") as caught:
        waiting.reserve("a", 1, CHARGES, "a")
    assert "fuser" in caught.value.remedy
    assert waiting.state().totals.count == 1  # reading needs no lock
    holder.execute("ROLLBACK")
    waiting.reserve("a", 1, CHARGES, "a")
    holder.close()


def test_a_full_disk_writes_nothing(account: DataAccount) -> None:
    """SQLite's own limit of pages stands for the disk."""
    with account.snapshot():
        connection = account._store._connection  # type: ignore[attr-defined]
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    faults: list[AccountUnavailable] = []
    done = 0
    while not faults:
        try:
            account.reserve(f"r{done}", 1, CHARGES, "x")
            done += 1
        except AccountUnavailable as fault:
            faults.append(fault)
    assert "the disk is full; nothing was written" in str(faults[0])
    connection.execute("PRAGMA max_page_count = 100000")
    assert account.verify().totals.runs == done
    account.reserve(f"r{done}", 1, CHARGES, "x")
    assert account.verify().totals.runs == done + 1


def test_a_file_that_can_not_be_written(account: DataAccount, tmp_path: Path) -> None:
    account.close()
    reader = open_account(account.place, read_only=True)
    assert reader.state().totals.count == 1
    with pytest.raises(AccountUnavailable, match="can't be written; nothing was written"):
        reader.reserve("a", 1, CHARGES, "a")
    reader.close()
    if os.getuid() != 0:  # who may write anything anyway
        os.chmod(account.place, 0o400)
        with pytest.raises(AccountUnavailable, match="can't be written"):
            open_account(account.place).reserve("a", 1, CHARGES, "a")


def test_a_damaged_file_is_told(account: DataAccount) -> None:
    for number in range(15):
        account.reserve(f"r{number}", 1, CHARGES, "x")
    account.close()
    path = Path(account.place)
    content = bytearray(path.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(AccountUnavailable, match="damaged") as caught:
        open_account(path)
    assert "backup" in caught.value.remedy


def test_newer_tables_are_refused(account: DataAccount) -> None:
    account.close()
    connection = sqlite3.connect(account.place)
    connection.execute("UPDATE dprecipe_schema SET version = 99")
    connection.commit()
    connection.close()
    with pytest.raises(AccountUnavailable, match="is of version 99, and this program knows versions up to"):
        open_account(account.place)


def test_older_tables_are_brought_up_to_date_in_one_step(account: DataAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    account.reserve("a", 1, CHARGES, "a")
    before = account.state()
    account.close()
    broken = (*books.MIGRATIONS, ("ALTER TABLE dprecipe_runs ADD COLUMN note TEXT", "NO SQL"))
    monkeypatch.setattr(books, "MIGRATIONS", broken)
    monkeypatch.setattr("dprecipe.account.sqlite_store.MIGRATIONS", broken)
    with pytest.raises(AccountUnavailable, match="SQLite reports"):
        open_account(account.place)
    better = (*broken[:-1], ("ALTER TABLE dprecipe_runs ADD COLUMN note TEXT",))
    monkeypatch.setattr(books, "MIGRATIONS", better)
    monkeypatch.setattr("dprecipe.account.sqlite_store.MIGRATIONS", better)
    with pytest.raises(AccountUnavailable, match="of an older version, and was opened only to be read"):
        open_account(account.place, read_only=True)
    again = open_account(account.place)
    assert again.state() == before
    again.settle("a", 1, CHARGES, final=True)
    with again.snapshot():
        connection = again._store._connection  # type: ignore[attr-defined]
        assert connection.execute("SELECT version FROM dprecipe_schema").fetchall() == [(len(better),)]
        assert connection.execute("SELECT note FROM dprecipe_runs").fetchall() == [(None,)]


def test_a_transaction_that_raises_writes_nothing(account: DataAccount) -> None:
    before = account.state()
    store = SqliteStore(Path(account.place))
    with pytest.raises(ZeroDivisionError), store.transaction() as open_books:
        1 / len(open_books.append(BindAct("1" * 64)).act.commitment[64:])
    assert account.state() == before
    account.verify()


def test_a_second_look_at_a_file_drops_no_lock(make_account: Callable[..., DataAccount]) -> None:
    """To close a file by hand drops the locks of the process on it: then another process could remove its log."""
    first, second = make_account("one.db", "first"), make_account("two.db", "second")
    with first.snapshot(), second.snapshot():
        pass
    second.bind(DATA)  # looks at the first account's file
    open_account(first.place).state()
    other = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM dprecipe_runs'); c.close()"
    subprocess.run([sys.executable, "-c", other, first.place], check=True)
    assert Path(f"{first.place}-wal").exists()  # the last one to close it would have removed it
    first.reserve("a", 1, CHARGES, "a")
    assert open_account(first.place).verify().totals.runs == 1


def test_names_are_parameters(make_account: Callable[..., DataAccount]) -> None:
    account = make_account(unit="x'; DROP TABLE dprecipe_entries; --")
    account.reserve("a", 1, CHARGES, "'; DELETE FROM dprecipe_entries; --")
    assert account.verify().totals.runs == 1
    assert account.facts.unit == "x'; DROP TABLE dprecipe_entries; --"


def test_a_file_beside_it_that_cannot_be_read_is_no_fault(
    make_account: Callable[..., DataAccount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = make_account(data=None)
    (tmp_path / "a-file-of-others").touch()

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("dprecipe.account.sqlite_store._is_account", refuse)
    assert account.bind(b"x" * 32) == ()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE dprecipe_entries RENAME TO x; CREATE VIEW dprecipe_entries AS WITH RECURSIVE r(account, seq, line"
        ") AS (SELECT 'a', 0, '' UNION ALL SELECT account, seq + 1, line FROM r) SELECT * FROM r WHERE seq < 0",
        "CREATE TRIGGER t AFTER INSERT ON dprecipe_entries BEGIN DELETE FROM dprecipe_runs; END",
        "DROP TABLE dprecipe_schema; CREATE VIEW dprecipe_schema AS SELECT 2 AS version",
        "DROP TABLE dprecipe_runs; CREATE TABLE dprecipe_runs (account, run, state AS (hex(zeroblob(1000000))))",
        "CREATE TABLE more (x)",
        "CREATE INDEX more ON dprecipe_runs (state)",
    ],
)
def test_a_strangers_file_with_other_tables_is_not_read(change: str, tmp_path: Path, facts: AccountFacts) -> None:
    """A view in the place of a table could run for ever, and a trigger could change what is counted."""
    path = tmp_path / "a.db"
    create_account(str(path), facts).close()
    with sqlite3.connect(path) as connection:
        connection.executescript(change)
    connection.close()
    with pytest.raises(AccountInvalid, match="is of no account"):
        open_account(str(path), read_only=True).verify()


def test_an_account_that_sqlite_has_analysed_is_read(tmp_path: Path, facts: AccountFacts) -> None:
    path = tmp_path / "a.db"
    create_account(str(path), facts).close()
    with sqlite3.connect(path) as connection:
        connection.execute("ANALYZE")
    connection.close()
    open_account(str(path), read_only=True).verify()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers there")
def test_a_bound_on_the_time_ends_what_sqlite_does(tmp_path: Path, facts: AccountFacts) -> None:
    path = tmp_path / "a.db"
    create_account(str(path), facts).close()
    account = SqliteStore(path, read_only=True)
    with pytest.raises((AccountUnavailable, Exceeded)), bound_resources(0.2, None), account.snapshot() as books:
        books._execute(
            "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT * FROM r WHERE i < 0", ()
        )
