"""Checks of the `pate` block, each a small function: what can't be accounted for, what would not be worth its budget.

No data is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dprecipe.data.schema import Data
from dprecipe.faults import Finding
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.pate.schema import Pate

MOST_QUERIES = 10_000_000


def check(spec: Pate, facts: Facts) -> list[Finding]:
    """All findings of the block, errors and warnings."""
    return [finding for rule in RULES for finding in rule(spec, facts)]


def pool(data: Data) -> int | None:
    """How many public records there are; None where only the file knows."""
    records = None if data.public is None else data.public.records
    return None if records is None else records[1] - records[0]


RULES: Sequence[Callable[[Pate, Facts], Iterator[Finding]]] = ()
