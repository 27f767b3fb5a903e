"""Accounts to try."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dprecipe.account.account import DataAccount
from dprecipe.account.facts import AccountFacts, new_facts
from dprecipe.account.opening import create_account
from dprecipe.privacy.adjacency import Neighbouring
from tests.postgres import serve_postgres

DATA = b"the data's digest".ljust(32)


@pytest.fixture
def facts() -> AccountFacts:
    return new_facts("admissions", 2.0, 1e-5, "patient_id", Neighbouring.ADD_OR_REMOVE_ONE)


@pytest.fixture
def make_account(tmp_path: Path) -> Callable[..., DataAccount]:
    """A new account in a file, bound to data."""

    def make(
        file: str = "admissions.db", name: str = "admissions", data: bytes | None = DATA, **changes
    ) -> DataAccount:
        terms = {"epsilon": 2.0, "delta": 1e-5, "unit": "patient_id", "neighbouring": Neighbouring.ADD_OR_REMOVE_ONE}
        account = create_account(tmp_path / file, new_facts(name, **{**terms, **changes}))
        if data is not None:
            account.bind(data)
        return account

    return make


@pytest.fixture
def account(make_account: Callable[..., DataAccount]) -> DataAccount:
    return make_account()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of a server of its own."""
    with serve_postgres("max_connections=500") as address:
        yield address


@pytest.fixture
def database(server: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a new database."""
    import psycopg

    name = f"d{abs(hash(request.node.name))}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield server.replace("/postgres?", f"/{name}?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
