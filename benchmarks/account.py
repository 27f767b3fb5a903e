"""How many reservations a second an account takes, in a file and in PostgreSQL, new and with many entries.

Each reservation is a transaction that is on disk when it returns. PostgreSQL is a server that this program starts on a
socket of its own, with fsync on, if `initdb` and `pg_ctl` are installed.

Run: python benchmarks/account.py [--entries N] [--seconds S] [--clients N] [--database NAME] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dprecipe.account.account import DataAccount
from dprecipe.account.entries import ReserveAct
from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.standing import find_cost
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

CHARGES = (Charge(PoissonGaussian(0.001, 50.0), 100),)
BLOCK = 100
"""Entries in one transaction: PostgreSQL keeps every version of the account's row until its end."""


def count_reservations(address: str, clients: int, seconds: float) -> float:
    """Reservations a second of so many processes at once."""
    pipes = []
    for _ in range(clients):
        read, write = os.pipe()
        if os.fork() == 0:
            account = open_account(address)
            count, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                account.reserve(secrets.token_hex(16), 1, CHARGES, "benchmark")
                count += 1
            os.write(write, str(count).encode())
            os._exit(0)
        os.close(write)
        pipes.append(read)
    total = sum(int(os.read(pipe, 100) or b"0") for pipe in pipes)
    for _ in range(clients):
        os.wait()
    return total / seconds


def fill(account: DataAccount, entries: int) -> None:
    """Add entries until there are so many, many in one transaction."""
    cost = find_cost(CHARGES, account.facts.neighbouring, account.facts.cap)
    while (missing := entries - account.state().totals.count) > 0:
        with account._store.transaction() as books:
            for _ in range(min(missing, BLOCK)):
                books.append(ReserveAct(secrets.token_hex(16), 1, "benchmark", "", CHARGES, cost, None))


def measure(address: str, clients: int, seconds: float, entries: int) -> dict[str, float]:
    """Figures of one account, new and with entries."""
    facts = new_facts("benchmark", 90.0, 1e-6, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    account = create_account(address, facts)
    account.bind(b"x" * 32)
    find_cost(CHARGES, facts.neighbouring, facts.cap)  # loads what clients need, before they are forked
    figures: dict[str, float] = {}
    for name in ("new", "full"):
        if name == "full":
            fill(account, entries)
            figures["entries"] = account.state().totals.count
        account.close()  # before processes are forked
        figures[f"{name}, one client, per second"] = count_reservations(address, 1, seconds)
        figures[f"{name}, {clients} clients, per second"] = count_reservations(address, clients, seconds)
        begin = time.perf_counter()
        account.state()
        figures[f"{name}, state, ms"] = 1000 * (time.perf_counter() - begin)
    begin = time.perf_counter()
    account.verify()
    figures["verify, s"] = time.perf_counter() - begin
    account.close()
    return figures


@contextmanager
def serving() -> Iterator[str | None]:
    """The address of a server; None where none is installed."""
    programs = [shutil.which(name) for name in ("initdb", "pg_ctl")]
    if None in programs:
        yield None
        return
    initdb, pg_ctl = map(str, programs)
    folder = Path(tempfile.mkdtemp(prefix="dprecipe-pg-"))
    user: dict[str, Any] = {}
    if os.getuid() == 0:  # the server does not run as root
        user = {"user": 65534, "group": 65534, "env": {"PATH": os.environ["PATH"], "HOME": str(folder)}}
        os.chown(folder, 65534, 65534)
    data, quiet = folder / "data", {"check": True, "stdout": subprocess.DEVNULL}
    try:
        subprocess.run([initdb, "-D", data, "-U", "bench", "-A", "trust"], **quiet, **user)
        options = f"-c listen_addresses= -c unix_socket_directories={folder}"
        subprocess.run([pg_ctl, "-D", data, "-w", "-o", options, "-l", folder / "log", "start"], **quiet, **user)
        yield f"postgresql:///postgres?host={folder}&user=bench"
    finally:
        subprocess.run([pg_ctl, "-D", data, "-m", "immediate", "stop"], stdout=subprocess.DEVNULL, check=False, **user)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--database", choices=["SQLite", "PostgreSQL"], help="only this one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        for name, address in (("SQLite", f"{folder}/account.db"), ("PostgreSQL", server)):
            if address is not None and options.database in (None, name):
                results[name] = measure(address, options.clients, options.seconds, options.entries)
                print(name, *(f"  {what}: {value:.4g}" for what, value in results[name].items()), sep="\n", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
