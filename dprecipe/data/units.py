"""The unit that each record belongs to: where a person is protected, all of their records form one unit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Identities:
    """Permanent identities of N records, which do not change with other records.

    `names` are the distinct identities: texts, or the records' numbers in their source. `numbers` are int64 (N,):
    record i has the identity `names[numbers[i]]`, and `names[i]` where they are None. Records with the same identity
    form one group.
    """

    names: Sequence[str] | range | NDArray[np.int64]
    numbers: NDArray[np.int64] | None

    @property
    def of_record(self) -> NDArray[np.int64]:
        """The number of each record's identity, (N,)."""
        return np.arange(len(self.names)) if self.numbers is None else self.numbers

    def texts(self) -> Iterator[str]:
        """Yields the distinct identities as text, in order; numbers in decimal digits."""
        return map(str, self.names)

    @staticmethod
    def numbered(count: int, first: int = 0) -> Identities:
        """Returns the identities of `count` records, identified by their numbers from `first` on."""
        return Identities(range(first, first + count), None)

    @staticmethod
    def numbers_in(numbers: NDArray[np.int64]) -> Identities:
        """Records identified by their numbers in the source, (N,), all different."""
        return Identities(numbers, None)

    @staticmethod
    def named(texts: Sequence[str]) -> Identities:
        """Records identified by these texts, one for each record; distinct texts in order of first appearance."""
        numbers: dict[str, int] = {}
        of_record = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts))
        return Identities(tuple(numbers), of_record)
