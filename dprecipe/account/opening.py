"""Accounts by their addresses."""

from __future__ import annotations

import secrets
from pathlib import Path

from dprecipe.account.account import DataAccount
from dprecipe.account.address import FileAddress, parse_address
from dprecipe.account.facts import AccountFacts
from dprecipe.account.store import AccountStore

SECRET_BYTES = 32


def open_account(address: str | Path, folder: Path = Path(), *, read_only: bool = False) -> DataAccount:
    """Opens the account at a path or a URL; a relative path is relative to `folder`.

    Raises:
        UsageFault: there is none, or the address has a password.
        AccountUnavailable: the database can't be reached or read.
    """
    return DataAccount(open_store(str(address), folder, read_only=read_only))


def create_account(address: str | Path, facts: AccountFacts) -> DataAccount:
    """Makes a new account. Raises like `open_account`, and `UsageFault` if there is one already."""
    store = open_store(str(address), name=facts.name)
    store.create(facts, secrets.token_bytes(SECRET_BYTES))
    return DataAccount(store)


def open_store(
    address: str, folder: Path = Path(), *, read_only: bool = False, name: str | None = None
) -> AccountStore:
    """Returns the database of an account, not yet connected to. `name`: the account's, where the address has none."""
    parsed = parse_address(address, folder)
    if isinstance(parsed, FileAddress):
        from dprecipe.account.sqlite_store import SqliteStore

        return SqliteStore(parsed.path, read_only=read_only)
    from dprecipe.account.postgres_store import PostgresStore

    return PostgresStore(parsed.url, parsed.name or name, read_only=read_only)
