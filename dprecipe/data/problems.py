"""Problems of data files, collected: all are reported at once, and each of them once.

A message names the column and the problem. The place in a private file and the number of occurrences go to a terminal
only, never to a log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from dprecipe.faults import DataFault

MAX_PROBLEMS = 20
"""Different problems that are reported for one source."""
MAX_PLACES = 20
"""Places of one problem that are listed where only the file can be corrected."""
Place = Callable[[int], str]
"""The place of a row of a chunk: a name that a log may have, a comma, and the rest: `adult.csv, line 12`."""


@final
class NotedPlaces:
    """The places of a chunk's rows; `rows` are those that were asked for, which have a problem."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.rows: set[int] = set()

    def __call__(self, row: int) -> str:
        self.rows.add(row)
        return self._place(row)


@dataclass(slots=True)
class _Entry:
    remedy: str
    places: list[str]
    count: int = 0


@final
class Problems:
    """The problems of one source. If it is `private`, places and counts are left out of the message.

    `finished`: the records are for a release, whose recipe no one can change. Remedies are then for the file alone, and
    `MAX_PLACES` of a problem are listed instead of the first.
    """

    def __init__(self, private: bool, finished: bool = False) -> None:
        self._private = private
        self.finished = finished
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._faults: list[DataFault] = []

    def add(self, subject: str, problem: str, remedy: str, place: str = "", count: int = 1) -> None:
        """Adds a `problem` of `subject` (a file, a column), which occurs `count` times, first at `place`."""
        if (subject, problem) in self._entries or len(self._entries) < MAX_PROBLEMS:
            entry = self._entries.setdefault((subject, problem), _Entry(remedy, []))
            entry.count += count
            if len(entry.places) < (MAX_PLACES if self.finished else 1):
                entry.places.append(place)

    def fault(self, subject: str, problem: str, remedy: str, place: str = "") -> DataFault:
        """Returns the fault for a problem at one place, by the same rule."""
        return _fault(subject, problem, remedy, place, self._private)

    @property
    def found(self) -> bool:
        """True if a problem was found."""
        return bool(self._entries or self._faults)

    def stop(self, fault: DataFault) -> DataFault:
        """Returns the fault to raise where reading can't go on: this one, together with all problems so far."""
        self._faults.append(fault)
        return combine_faults(self.list_faults(), self.finished)

    def check(self) -> None:
        """Raises the problems, if there are any.

        Raises:
            DataFault: there is a problem.
        """
        result = self.list_faults()
        if result:
            raise combine_faults(result, self.finished)

    def list_faults(self) -> list[DataFault]:
        """Returns a fault for each problem."""
        results = []
        for (subject, problem), entry in self._entries.items():
            often = f", {entry.count:,} in all" if entry.count > len(entry.places) else ""
            results.append(_fault(subject, problem, entry.remedy, f"{', '.join(entry.places)}{often}", self._private))
        return results + self._faults


def _fault(subject: str, problem: str, remedy: str, place: str, private: bool) -> DataFault:
    if private:
        return DataFault(f"{subject}: {problem}", remedy, place)
    return DataFault(f"{subject}: {problem}" + (f" ({place})" if place else ""), remedy)


@final
class SeveralFaults(DataFault):
    """Several `faults` of the data, each of them single, as one. `finished`: see `Problems`."""

    def __init__(self, faults: Sequence[DataFault], finished: bool) -> None:
        lines = [f"the data do not match the {'release' if finished else 'recipe'}:"]
        for fault in faults:
            lines += [f"- {fault.message}", *([f"    {fault.remedy}"] if fault.remedy else [])]
        private = [f"- {fault.message}: {fault.private}" for fault in faults if fault.private]
        super().__init__("\n".join(lines), "", "\n".join(private))
        self.faults = tuple(faults)


def combine_faults(faults: Sequence[DataFault], finished: bool = False) -> DataFault:
    """Returns one fault that reports each of `faults` once; there is at least one. `finished`: see `Problems`."""
    single = separate_faults(faults)
    return single[0] if len(single) == 1 else SeveralFaults(single, finished)


def separate_faults(faults: Sequence[DataFault]) -> list[DataFault]:
    """Returns single faults, each once: both sides of a split meet the same ones, in an order of their own. What each
    says in private is kept."""
    found: dict[tuple[str, str], DataFault] = {}
    for fault in faults:
        for one in fault.faults if isinstance(fault, SeveralFaults) else (fault,):
            words = one.message, one.remedy
            said = [other.private for other in (found.get(words), one) if other is not None and other.private]
            private = "\n".join(dict.fromkeys(said))
            found[words] = one if one.private == private else DataFault(*words, private)
    return list(found.values())
