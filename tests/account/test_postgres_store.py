"""Accounts in PostgreSQL, against a real server that the tests start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.account import books
from dprecipe.account.account import DataAccount
from dprecipe.account.entries import BindAct
from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountInvalid, AccountRefused, AccountUnavailable
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.postgres_store import PostgresStore
from dprecipe.account.statement import export_statement, verify_statement
from dprecipe.faults import UsageFault
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian

CHARGES = (Charge(Gaussian(20.0), 4),)
LESS = (Charge(Gaussian(20.0), 1),)
DATA = b"data".ljust(32)

pytestmark = pytest.mark.slow


@pytest.fixture
def make(database: str) -> Callable[..., DataAccount]:
    def make_one(name: str = "admissions", epsilon: float = 2.0) -> DataAccount:
        facts = new_facts(name, epsilon, 1e-5, "patient_id", Neighbouring.ADD_OR_REMOVE_ONE)
        account = create_account(database, facts)
        account.bind(DATA)
        return account

    return make_one


def run_sql(database: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def test_the_same_rules_as_in_a_file(make: Callable[..., DataAccount]) -> None:
    account = make()
    first = account.reserve("a", 1, CHARGES, "'; DROP TABLE dprecipe_entries; -- %s", nonce="n")
    assert account.reserve("a", 1, CHARGES, "x", nonce="n") == first
    with pytest.raises(AccountRefused, match="is a copy"):
        account.reserve("a", 1, CHARGES, "x", nonce="m")
    settlement = account.settle("a", 1, LESS, final=True)
    assert settlement.counted == account.state().spent
    account.reserve("b", 1, CHARGES, "x")
    account.void("b", 1)
    with pytest.raises(AccountRefused, match="this run does not fit into account"):
        account.reserve("c", 1, (Charge(Gaussian(20.0), 400),), "x")
    assert account.verify().totals == account.state().totals
    assert account.verify().totals.count == 5
    with account.snapshot() as rows:
        verify_statement(json.loads(json.dumps(export_statement(rows))))


def test_several_accounts_of_one_database(make: Callable[..., DataAccount], database: str) -> None:
    first, second = make("first"), make("second")
    first.reserve("a", 1, CHARGES, "x")
    second.reserve("a", 1, CHARGES, "x")
    assert second.state().totals.count == 2
    with pytest.raises(UsageFault, match="there is an account first already"):
        make("first")
    with pytest.raises(UsageFault, match="has 2 accounts: first, second") as caught:
        open_account(database)
    assert "#NAME" in caught.value.remedy
    assert open_account(f"{database}#second").state() == second.state()
    with pytest.raises(UsageFault, match="there is no account third"):
        open_account(f"{database}#third")
    (warning,) = second.bind(DATA)
    assert "account first, too" in warning


def test_a_database_without_accounts(database: str) -> None:
    with pytest.raises(UsageFault, match=r"has no account") as caught:
        open_account(database)
    assert "dprecipe account create" in caught.value.remedy


def test_rows_that_were_edited_do_not_verify(make: Callable[..., DataAccount], database: str) -> None:
    account = make()
    for name in "abc":
        account.reserve(name, 1, LESS, name)
    run_sql(database, "UPDATE dprecipe_entries SET line = replace(line, %s, %s)", '"what":"b"', '"what":"z"')
    with pytest.raises(AccountInvalid, match="entry 3: the chain is broken"):
        account.verify()
    run_sql(database, "DELETE FROM dprecipe_entries WHERE seq = 3")
    with pytest.raises(AccountInvalid, match="totals are not those of the entries"):
        account.reserve("d", 1, LESS, "d")


def test_a_lock_held_for_long_is_told(
    make: Callable[..., DataAccount], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    account = make()
    monkeypatch.setattr("dprecipe.account.postgres_store.SET_LOCAL", "SELECT set_config('lock_timeout', '50ms', true)")
    with psycopg.connect(database) as holder:
        holder.execute("SELECT 1 FROM dprecipe_accounts FOR UPDATE")
        with pytest.raises(AccountUnavailable, match="another client has held the account's lock") as caught:
            account.reserve("a", 1, CHARGES, "x")
        assert "pg_terminate_backend" in caught.value.remedy
        assert account.state().totals.count == 1  # reading needs no lock
    account.reserve("a", 1, CHARGES, "x")


def test_a_connection_that_is_lost_within_a_transaction_writes_nothing(
    make: Callable[..., DataAccount], database: str
) -> None:
    account = make()
    store = PostgresStore(database, "admissions")

    def cut() -> None:
        run_sql(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction' "
            "AND datname = current_database()",
        )

    def reserve_and_lose() -> None:
        with store.transaction() as rows:
            rows.append(BindAct("1" * 64))
            cut()

    with pytest.raises(AccountUnavailable, match="the connection was lost") as caught:
        reserve_and_lose()
    assert "dprecipe account test" in caught.value.remedy
    assert account.verify().totals.count == 1
    with store.transaction() as rows:  # the next one connects again
        assert rows.totals.count == 1


def test_a_connection_that_was_closed_between_two_is_made_anew(make: Callable[..., DataAccount], database: str) -> None:
    account = make()
    run_sql(
        database,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database()",
    )
    account.reserve("a", 1, CHARGES, "x")


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    with pytest.raises(AccountUnavailable, match="can't be reached") as caught:
        open_account(f"postgresql:///x?host={tmp_path}&connect_timeout=1#a")
    assert f"dprecipe account test 'postgresql:///x?host={tmp_path}&connect_timeout=1#a'" in caught.value.remedy
    assert "check that the server runs" in caught.value.remedy


def test_a_fault_of_the_connection_has_a_remedy_of_its_own(database: str) -> None:
    with pytest.raises(AccountUnavailable) as caught:
        open_account(database.replace(":///", ":///no") + "#a")
    assert caught.value.remedy.startswith("make what is missing (createdb")


def test_a_password_comes_from_the_environment_and_is_never_printed(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with pytest.raises(AccountUnavailable) as caught:
        open_account("postgresql://nobody@127.0.0.1:1/x#a")
    assert "hunter2" not in f"{caught.value} {caught.value.remedy}"


def test_who_may_only_read(make: Callable[..., DataAccount], database: str) -> None:
    make()
    run_sql(database, "CREATE ROLE reader LOGIN")
    run_sql(database, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    reader = open_account(f"{database.replace('user=tests', 'user=reader')}#admissions")
    try:
        assert reader.state().totals.count == 1
        reader.verify()
        with pytest.raises(AccountUnavailable, match="you may not write the account"):
            reader.reserve("a", 1, CHARGES, "x")
    finally:
        reader.close()
        run_sql(database, "DROP OWNED BY reader")
        run_sql(database, "DROP ROLE reader")


def test_tables_of_other_versions(
    make: Callable[..., DataAccount], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = make()
    account.reserve("a", 1, CHARGES, "x")
    before = account.state()
    later = (*books.MIGRATIONS, ("ALTER TABLE dprecipe_runs ADD COLUMN note TEXT",))
    with monkeypatch.context() as patch:
        for module in ("books", "postgres_store"):
            patch.setattr(f"dprecipe.account.{module}.MIGRATIONS", later)
        with pytest.raises(AccountUnavailable, match="of an older version, and was opened only to be read"):
            open_account(database, read_only=True)
        assert open_account(database).state() == before
        assert run_sql(database, "SELECT note FROM dprecipe_runs") == [(None,)]
    with pytest.raises(AccountUnavailable, match="is of version 2, and this program knows versions up to 1"):
        open_account(database)


def test_two_clients_that_create_at_once(database: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def create(number: int) -> DataAccount:
        facts = new_facts(f"n{number}", 2.0, 1e-5, "record", Neighbouring.REPLACE_ONE)
        return create_account(database, facts)

    with ThreadPoolExecutor(8) as pool:
        accounts = list(pool.map(create, range(8)))
    assert sorted(account.facts.name for account in accounts) == [f"n{number}" for number in range(8)]
