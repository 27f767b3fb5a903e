"""What a database that keeps accounts can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from dprecipe.account.books import Books
from dprecipe.account.facts import AccountFacts


@dataclass(frozen=True, slots=True)
class Sibling:
    """Another account that this program can read: its name, its key, and the data it is bound to, if any."""

    name: str
    secret: bytes
    commitment: str | None


class AccountStore(Protocol):
    """One account in a database. Every method raises `AccountUnavailable` where the database fails.

    Guarantees: a transaction has the account to itself until it ends; what it wrote is on disk when it returns, and
    nothing of it is written if it raises or the process dies.
    """

    place: str
    """The database as people write it."""

    def create(self, facts: AccountFacts, secret: bytes) -> None:
        """Make the account. Raises `UsageFault` where there is one of this name."""

    def transaction(self) -> AbstractContextManager[Books]:
        """The account, locked, to read and to append to."""

    def snapshot(self) -> AbstractContextManager[Books]:
        """The account as it is at one moment, to read."""

    def list_siblings(self) -> Sequence[Sibling]:
        """The other accounts of the database, or of the files beside this one."""

    def close(self) -> None:
        """Let go of the connection; the next use makes another."""
