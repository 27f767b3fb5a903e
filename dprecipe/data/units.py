"""The unit that each record belongs to: where a person is protected, all of their records form one unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Identities:
    """What identifies each of N records permanently, whatever happens to other records.

    `names` are the distinct identities: texts, or the records' numbers in their source. Record i has the identity
    `names[of_record[i]]`; `of_record` is int64 (N,). Records with the same identity form one group.
    """

    names: tuple[str, ...] | range
    of_record: NDArray[np.int64]

    def texts(self) -> Iterator[str]:
        """The distinct identities as text, in order; numbers in decimal digits."""
        return map(str, self.names)

    @staticmethod
    def numbered(count: int, first: int = 0) -> Identities:
        """`count` records, identified by their numbers from `first` on."""
        return Identities(range(first, first + count), np.arange(count))

    @staticmethod
    def named(texts: Sequence[str]) -> Identities:
        """Records identified by these texts, one for each record; distinct texts in order of first appearance."""
        numbers: dict[str, int] = {}
        of_record = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts))
        return Identities(tuple(numbers), of_record)


def bound_units(units: NDArray[np.int64], max_records: int) -> NDArray[np.int64]:
    """The first `max_records` records of each unit: indices in order, given the unit of each record, (N,).

    Guarantees: every unit keeps at least one record and at most `max_records`. Which records a unit keeps depends only
    on its own records, so adding or removing one unit does not affect another. No records: no indices.
    """
    order = np.argsort(units, kind="stable")  # the records of each unit together, in their order
    grouped = units[order]
    place_within = np.arange(len(units)) - np.searchsorted(grouped, grouped)
    return np.sort(order[place_within < max_records])
