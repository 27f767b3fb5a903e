"""The head of an account: how many entries there were at a moment, and the digest of the last.

An account can't know by itself that it was rolled back: a restored backup is a whole account. Its head, kept where who
can write to the database can't write, shows it: the account must have gone on from there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from dprecipe.account.books import Books
from dprecipe.account.canonical import DIGEST, Fields, digest_of
from dprecipe.account.facts import NAME, AccountFacts
from dprecipe.account.state import Totals

HEAD_SCHEMA = "dprecipe.account-head/v1"


@dataclass(frozen=True, slots=True)
class Head:
    """`account`: the account's id."""

    name: str
    account: str
    count: int
    head: str
    time: str

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": HEAD_SCHEMA,
            "name": self.name,
            "account": self.account,
            "count": self.count,
            "head": self.head,
            "time": self.time,
        }


def make_head(facts: AccountFacts, totals: Totals) -> Head:
    return Head(facts.name, facts.id, totals.count, totals.head, totals.time)


def read_head(content: Any) -> Head:
    """The head in an untrusted JSON value. Raises `ValueError`."""
    fields = Fields(content)
    fields.text("schema", re.escape(HEAD_SCHEMA))
    head = Head(
        fields.text("name", NAME),
        fields.text("account", "[0-9a-f]{32}"),
        fields.whole("count", 0),
        fields.text("head", DIGEST.pattern),
        fields.moment("time"),
    )
    fields.end()
    return head


def find_rollback(books: Books, head: Head) -> str | None:
    """What is wrong if the account has not gone on from this head; None if it has."""
    if head.account != books.facts.id:
        return "the head is of another account"
    if head.count > books.totals.count:
        missing = head.count - books.totals.count
        return f"{missing} entries that were there on {head.time} are missing: it was rolled back (a restored backup?)"
    line = books.read_line(head.count - 1) if head.count else None
    found = books.facts.digest if head.count == 0 else digest_of((line or "").encode())
    if found != head.head:
        return f"entry {head.count - 1} is another one than on {head.time}: the entries were written anew"
    return None
