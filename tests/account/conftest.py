"""Accounts to try."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dprecipe.account.account import DataAccount
from dprecipe.account.facts import AccountFacts, new_facts
from dprecipe.account.opening import create_account
from dprecipe.privacy.adjacency import Neighbouring

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
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = [shutil.which(name) for name in ("initdb", "pg_ctl")]
    if None in programs:
        pytest.skip("no PostgreSQL server (initdb, pg_ctl) is installed")
    initdb, pg_ctl = map(str, programs)
    folder = Path(tempfile.mkdtemp(prefix="dprecipe-pg-"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # the server does not run as root
        user = {"user": 65534, "group": 65534, "env": {"PATH": os.environ["PATH"], "HOME": str(folder)}}
        os.chown(folder, 65534, 65534)
    data = folder / "data"
    try:
        subprocess.run(
            [initdb, "-D", data, "-U", "tests", "-A", "trust", "--no-sync"], check=True, capture_output=True, **user
        )
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c max_connections=500"
        subprocess.run([pg_ctl, "-D", data, "-w", "-o", options, "-l", folder / "log", "start"], check=True, **user)
        yield f"postgresql:///postgres?host={folder}&user=tests"
        subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], check=True, **user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
