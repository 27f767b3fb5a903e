"""The head of an account: how many entries there were at a moment, and the digest of the last.

An account can't know by itself that it was rolled back: a restored backup is a valid account. A head reveals it, if
kept where those who write to the database can't write: the account must extend that head.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dprecipe.account.canonical import DIGEST, Fields
from dprecipe.account.facts import NAME, AccountFacts
from dprecipe.account.state import Totals

HEAD_SCHEMA = "dprecipe.account-head/v1"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of an account at one moment. `account`: the account's id."""

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
    """Reads the head from an untrusted JSON value. Raises `ValueError`."""
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


def find_rollback(facts: AccountFacts, count: int, digest_at: Callable[[int], str], head: Head) -> str | None:
    """Returns what is wrong if an account of `count` entries does not extend this head; None if it does.

    `digest_at`: returns the digest of the line with a number.
    """
    if head.account != facts.id:
        return "the head is of another account"
    if head.count > count:
        missing = head.count - count
        return f"{missing} entries that were there on {head.time} are missing: it was rolled back (a restored backup?)"
    if head.head != (digest_at(head.count - 1) if head.count else facts.digest):
        return f"entry {head.count - 1} is not the one of {head.time}: the entries were rewritten"
    return None
