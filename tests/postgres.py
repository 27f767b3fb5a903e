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
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # the server does not run as root
        user = {"user": 65534, "group": 65534, "env": {"PATH": os.environ["PATH"], "HOME": str(folder)}}
        os.chown(folder, 65534, 65534)
    data = folder / "data"
    try:
        subprocess.run(
            [initdb, "-D", data, "-U", "tests", "-A", "trust", "--no-sync"], check=True, capture_output=True, **user
        )
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c {setting}"
        subprocess.run([pg_ctl, "-D", data, "-w", "-o", options, "-l", folder / "log", "start"], check=True, **user)
        address = f"postgresql:///postgres?host={folder}&user=tests"
        try:
            subprocess.run([psql, "-q", "-v", "ON_ERROR_STOP=1", address], input=set_up.encode(), check=True)
            yield address
        finally:
            subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], check=True, **user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
