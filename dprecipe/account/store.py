"""The interface of a database that keeps accounts."""

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
    """One account in a database. Every method raises `AccountUnavailable` if the database fails.

    Guarantees: a transaction has the account to itself until it ends; what it wrote is on disk when it returns, and
    none of it is written if it raises or the process dies.
    """

    place: str
    """The database's address, as people write it."""

    def create(self, facts: AccountFacts, secret: bytes) -> None:
        """Makes the account. Raises `UsageFault` if there is one of this name."""

    def transaction(self) -> AbstractContextManager[Books]:
        """Opens the account, locked, for reading and appending."""

    def snapshot(self) -> AbstractContextManager[Books]:
        """Opens the account for reading, as it is at one moment."""

    def list_siblings(self) -> Sequence[Sibling]:
        """Returns the other accounts of the database, or of the files beside this one."""

    def close(self) -> None:
        """Closes the connection; the next use opens another."""
