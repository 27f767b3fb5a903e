"""The records of a source as a reader hands them over, a chunk at a time, and their units.

Names of units or records become numbers in order of first appearance, as they come and in bounded memory. A name of at
most 15 bytes is its own key, so that names that differ have keys that differ. A longer one has 120 bits of its BLAKE2b,
keyed with secret bits of this process: two of N long names share a key with a probability of less than N² / 2^121,
which is 10^-21 for fifty million, and two that do can't be searched for.

Memory: 24 bytes a name that is expected, 16 more where names are written otherwise than they are compared
(`dprecipe.text.spelling`), and 8 to 16 bytes of table, whatever the length of names. Names themselves are kept
elsewhere (`dprecipe.data.storage`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.problems import Place
from dprecipe.data.raw import (
    Labels,
    Raw,
    Reading,
    TextValues,
    drop_labels,
    respelt_fault,
    size_fault,
    unordered_fault,
)
from dprecipe.data.storage import TextWriter
from dprecipe.data.units import Identities
from dprecipe.progress import LateProgress

SHORT = 15
"""Bytes of a name that is its own key; the sixteenth byte is its length."""
_LONG = SHORT + 1


class TooManyNames(Exception):
    """There are more names than expected."""


@final
class NameNumbers:
    """A table of names: each has the number of names before it."""

    def __init__(self, expected: int) -> None:
        """`expected`: upper bound on the names, a public number."""
        self._expected = expected
        self._secret = secrets.token_bytes(32)
        self._factors = np.frombuffer(secrets.token_bytes(16), np.uint64) | np.uint64(1)
        # Memory that is not written to is not taken: what a declared number asks for in vain costs nothing.
        self._slots = np.zeros(1 << (2 * expected).bit_length(), np.int32 if expected < 1 << 30 else np.int64)
        self._keys = np.empty((expected, 2), np.uint64)
        self._records = np.zeros(expected, np.int64)
        self._spellings = np.zeros((expected, 2), np.uint64)  # keys; 0: as the name itself
        self._has_spellings = False
        self.count = 0
        """Names so far."""

    def number(self, names: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the number of each name, (R,); and the rows of those that are new, in the order of their numbers.

        Raises:
            TooManyNames: there are more than expected.
        """
        keys, before = self._key_names(names), self.count
        numbers = np.full(len(names), -1, np.int64)
        places = self._places(keys)
        first_rows, new_slots = np.empty(0, np.int64), np.empty(0, np.int64)
        waiting = np.arange(len(names))
        while len(waiting):
            slots = places[waiting]
            known = self._slots[slots].astype(np.int64) - 1
            taken = known >= 0
            same = np.zeros(len(waiting), np.bool_)
            same[taken] = (self._keys[known[taken]] == keys[waiting[taken]]).all(axis=1)
            numbers[waiting[same]] = known[same]
            other = waiting[taken & ~same]
            places[other] = (places[other] + 1) & (len(self._slots) - 1)
            # Of the rows at one free place the first gets it; the others look again.
            rows, free = waiting[~taken], slots[~taken]
            if self.count + len(rows) > self._expected:
                rows, free = self._first_of_keys(rows, free, keys)
            won_slots, won = np.unique(free, return_index=True)
            winners = rows[won]
            if self.count + len(winners) > self._expected:
                raise TooManyNames
            own = np.arange(self.count, self.count + len(winners))
            self._keys[own], self._slots[won_slots] = keys[winners], own + 1
            self.count += len(winners)
            first_rows, new_slots = np.concatenate([first_rows, winners]), np.concatenate([new_slots, won_slots])
            waiting = waiting[~same]
        # A name may have got its place after one that came later.
        order = np.argsort(first_rows)
        if len(order):
            self._keys[before : self.count] = self._keys[before : self.count][order]
            self._slots[new_slots[order]] = np.arange(before, self.count) + 1
            final_of = np.empty(len(order), np.int64)
            final_of[order] = np.arange(before, self.count)
            fresh = numbers >= before
            numbers[fresh] = final_of[numbers[fresh] - before]
        return numbers, first_rows[order]

    def bound(self, numbers: NDArray[np.int64], max_records: int) -> NDArray[np.int64]:
        """Returns the rows, in order, that are among the first `max_records` of their names, those of earlier calls
        included.

        Which rows of a name these are depends on its own rows alone.
        """
        order = np.argsort(numbers, kind="stable")
        grouped = numbers[order]
        place = np.arange(len(order)) - np.searchsorted(grouped, grouped) + self._records[grouped]
        chosen: NDArray[np.int64] = np.sort(order[place < max_records])
        np.add.at(self._records, numbers[chosen], 1)
        return chosen

    def find_respelt(
        self, numbers: NDArray[np.int64], first_rows: NDArray[np.int64], names: Sequence[str], written: Sequence[str]
    ) -> NDArray[np.int64]:
        """Returns the rows, in order, that write their name in another way than the row where it came first.

        `numbers`, `first_rows`: as `number` returned them for `names`. `written`: how each row writes its name.
        """
        if written is names and not self._has_spellings:
            return np.empty(0, np.int64)
        keys = np.zeros((len(names), 2), np.uint64)
        rows = [row for row, (name, text) in enumerate(zip(names, written, strict=True)) if name != text]
        if rows:
            keys[rows], self._has_spellings = self._key_names([written[row] for row in rows]), True
        self._spellings[numbers[first_rows]] = keys[first_rows]
        found: NDArray[np.int64] = np.flatnonzero((self._spellings[numbers] != keys).any(axis=1))
        return found

    def _first_of_keys(
        self, rows: NDArray[np.int64], free: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Keeps the first row of each key: where the table is nearly full, rows of one name must not count as
        several."""
        _, first = np.unique(keys[rows], axis=0, return_index=True)
        first.sort()
        return rows[first], free[first]

    def _places(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns where in the table the search for each key starts. Names cannot be chosen so that they collide."""
        with np.errstate(over="ignore"):
            mixed = keys[:, 0] * self._factors[0]
            mixed ^= mixed >> np.uint64(32)
            mixed = (mixed + keys[:, 1]) * self._factors[1]
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0x9E3779B97F4A7C15)
        places: NDArray[np.int64] = (mixed >> np.uint64(65 - len(self._slots).bit_length())).astype(np.int64)
        return places

    def _key_names(self, names: Sequence[str]) -> NDArray[np.uint64]:
        encoded = [name.encode("utf-8", "surrogatepass") for name in names]
        keys = np.zeros((len(names), _LONG), np.uint8)
        if encoded:
            lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
            keys[:, :SHORT] = np.array(encoded, f"S{SHORT}").view(np.uint8).reshape(-1, SHORT)
            keys[:, SHORT] = np.minimum(lengths, _LONG)
            for row in np.flatnonzero(lengths > SHORT).tolist():
                digest = hashlib.blake2b(encoded[row], digest_size=SHORT, key=self._secret).digest()
                keys[row, :SHORT] = np.frombuffer(digest, np.uint8)
        return keys.view(np.uint64)


@final
class RecordCollector:
    """Chunks of features, labels, texts and names; `raw` are all of them.

        chosen = collector.choose(texts, rows, place)    # which rows of the chunk are used; None: all of them
        collector.append(features, labels)        # of those rows

    They are put where the reading says (`dprecipe.data.storage`), so a source larger than memory takes no more of it
    than a chunk, a few numbers a record, and the table of names.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._features = reading.storage.rows("features")
        self._labels = reading.storage.rows("labels")
        self._texts: dict[str, TextWriter] = {}
        known = reading.role == "train" and reading.units is None and not reading.data.hides_size
        total = reading.data.max_units if known and reading.split is None else None
        self._progress = LateProgress("reading", "record", total, private=reading.private)
        self._rows = 0
        origin = reading.data.train.selection
        self._is_ordered = origin is None or not origin.declared
        if reading.split is not None and reading.name_column is None:
            self._own_numbers = reading.storage.rows("rows")
        if reading.name_column is not None:
            self._table, self._other_side = NameNumbers(reading.data.max_units), NameNumbers(reading.data.max_units)
            self._numbers = reading.storage.rows("numbers")
            self._names = reading.storage.texts("names")

    def choose(self, texts: Mapping[str, Sequence[str]], rows: int, place: Place) -> NDArray[np.int64] | None:
        """Chooses the rows of a chunk of `rows` that are used: their numbers, (B,), increasing; None for all.

        They are on the side of a split that is read, and are among the first `max_records` of their unit in the source.

        Guarantees: whether a row is used depends on the rows of its own unit alone (`dprecipe.data.split`). A database
        joins and groups in an order that other units' rows decide, so where that may be, no unit's rows are cut.

        `texts`: of the reading's `naming_columns`. `place`: of a row.

        Raises:
            DataFault: there are more units than declared, or more rows of one than are used where rows have no order
                of their own; a unit's name is written in two ways; the disk refuses.
        """
        reading, first = self._reading, self._rows
        self._rows += rows
        folded = {column: reading.fold(column, written) for column, written in texts.items()}
        side = None if reading.split is None else reading.select_side(folded, first, rows)
        if reading.name_column is None:
            if side is not None:
                self._own_numbers.append(reading.first_number + first + side)
            return side
        names, written, units = folded[reading.name_column], texts[reading.name_column], reading.units
        try:
            numbers, first_rows = self._number(self._table, names, written, side, place)
            if side is not None and units is not None:  # no unit is on both sides
                self._number(self._other_side, names, written, np.delete(np.arange(rows), side), place)
                if self._table.count + self._other_side.count > units[0]:
                    raise TooManyNames
        except TooManyNames:
            raise reading.problems.stop(size_fault(reading.data, None)) from None
        self._names.append([names[row] for row in (first_rows if side is None else side[first_rows]).tolist()])
        if units is not None:
            chosen = self._table.bound(numbers, units[1])
            if len(chosen) < len(numbers) and not self._is_ordered:
                raise reading.problems.stop(unordered_fault(reading.data))
            numbers, side = numbers[chosen], chosen if side is None else side[chosen]
        self._numbers.append(numbers)
        return None if side is not None and len(side) == rows else side

    def _number(
        self,
        table: NameNumbers,
        names: Sequence[str],
        written: Sequence[str],
        side: NDArray[np.int64] | None,
        place: Place,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns `table.number` of the rows of one side.

        Raises:
            TooManyNames: there are more than declared.
            DataFault: a unit's name is written in two ways.
        """
        if side is not None:
            rows, same = side.tolist(), written is names
            names = [names[row] for row in rows]
            written = names if same else [written[row] for row in rows]
        numbers, first_rows = table.number(names)
        if self._reading.units is not None:
            respelt = table.find_respelt(numbers, first_rows, names, written)
            if len(respelt):
                row = int(respelt[0] if side is None else side[respelt[0]])
                subject, _, within = place(row).partition(", ")
                problems = self._reading.problems
                raise problems.stop(respelt_fault(self._reading.data, subject, within, problems))
        return numbers, first_rows

    def append(self, features: NDArray[Any], labels: Labels) -> None:
        """Appends the features (B, …) and labels of records.

        Raises:
            DataFault: the disk refuses.
        """
        self._features.append(features)
        self._labels.append(labels)
        self._progress.show(self._features.count)

    def append_texts(self, name: str, values: Sequence[str]) -> None:
        """Appends the values of a column whose items a paid step will release.

        Raises:
            DataFault: the disk refuses.
        """
        if name not in self._texts:
            self._texts[name] = self._reading.storage.texts(f"texts.{len(self._texts)}")
        self._texts[name].append(values)

    def raw(self, empty: NDArray[Any], starts: dict[str, int] | None = None) -> Raw:
        """Returns all records. `empty`: features of no record. `starts`: where the features of each column of texts
        begin.

        Raises:
            DataFault: the disk refuses.
        """
        self._progress.end(self._features.count)
        identities = None
        if self._reading.name_column is not None:
            identities = Identities(self._names.finish(), self._numbers.finish(np.zeros(0, np.int64)))
        elif self._reading.split is not None:
            identities = Identities.numbers_in(self._own_numbers.finish(np.zeros(0, np.int64)))
        texts = {}
        for name, start in (starts or {}).items():
            values = self._texts[name].finish() if name in self._texts else ()
            texts[name] = TextValues(start, values)
        units = self._rows
        if self._reading.name_column is not None and self._reading.units is not None:
            units = self._table.count + self._other_side.count
        return Raw(self._features.finish(empty), self._labels.finish(drop_labels(0)), identities, texts, units)
