"""Who a record belongs to: where a user or a patient is protected, all of their records stand or fall together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Identities:
    """What names each of N records for good, whatever happens to other records.

    `names` are the distinct names: texts, or the numbers that the records have in their source. Record i has the
    name `names[of_record[i]]`; `of_record` is int64 (N,). Records of one name stay together.
    """

    names: tuple[str, ...] | range
    of_record: NDArray[np.int64]

    def texts(self) -> Iterator[str]:
        """The distinct names as text, in order: a number in decimal digits."""
        return map(str, self.names)

    @staticmethod
    def numbered(count: int, first: int = 0) -> Identities:
        """`count` records that are named by their numbers, from `first` on."""
        return Identities(range(first, first + count), np.arange(count))

    @staticmethod
    def named(texts: Sequence[str]) -> Identities:
        """Records named by these texts, one each; distinct names in order of first appearance."""
        numbers: dict[str, int] = {}
        of_record = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts))
        return Identities(tuple(numbers), of_record)


def bound_units(units: NDArray[np.int64], max_records: int) -> NDArray[np.int64]:
    """The records that are kept (indices, in order), given the unit of each, (N,): the first `max_records` of each.

    What is kept of a unit depends on that unit's own records alone, so adding or removing one unit changes nothing of
    another.

    Guarantees: every unit keeps a record, and none more than `max_records`.
    """
    order = np.argsort(units, kind="stable")  # the records of each unit together, in their order
    grouped = units[order]
    place_within = np.arange(len(units)) - np.searchsorted(grouped, grouped)
    return np.sort(order[place_within < max_records])
