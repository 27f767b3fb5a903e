"""A PostgreSQL server of the tests' own, on a socket in a folder of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("initdb", "pg_ctl", "psql")


@contextmanager
def serve_postgres(setting: str, set_up: str = "") -> Iterator[str]:
    """The address of a server that runs with this setting, after `set_up`, in SQL; skips the test where the server or
    its client is not installed."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    programs = [shutil.which(name) for name in PROGRAMS]
    if None in programs:
        pytest.skip(f"no PostgreSQL server ({', '.join(PROGRAMS)}) is installed")
    initdb, pg_ctl, psql = map(str, programs)
    folder = Path(tempfile.mkdtemp(prefix="dprecipe-pg-"))
    data, user = folder / "data", _find_user(folder)
    if user:
        os.chown(folder, user["user"], user["group"])
    try:
        subprocess.run(
            [initdb, "-D", data, "-U", "tests", "-A", "trust", "--no-sync"], check=True, capture_output=True, **user
        )
        (folder / "options").write_text(f"-c listen_addresses= -c unix_socket_directories={folder} -c {setting}")
        _start(folder)
        address = f"postgresql:///postgres?host={folder}&user=tests"
        try:
            subprocess.run([psql, "-q", "-v", "ON_ERROR_STOP=1", address], input=set_up.encode(), check=True)
            yield address
        finally:
            subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], check=True, **user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def without_server(address: str) -> Iterator[None]:
    """The server of `serve_postgres` ends as one that loses power, and is started again."""
    folder = Path(address.partition("host=")[2].partition("&")[0])
    subprocess.run(["pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"], check=True, **_find_user(folder))
    try:
        yield
    finally:
        _start(folder)


def _start(folder: Path) -> None:
    command = ["pg_ctl", "-D", folder / "data", "-w", "-o", (folder / "options").read_text(), "-l", folder / "log"]
    subprocess.run([*command, "start"], check=True, **_find_user(folder))


def _find_user(folder: Path) -> dict[str, Any]:
    """Who runs the server: not root."""
    if os.getuid():
        return {}
    return {"user": 65534, "group": 65534, "env": {"PATH": os.environ["PATH"], "HOME": str(folder)}}
