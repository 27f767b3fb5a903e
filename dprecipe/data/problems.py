"""What is wrong with data files, collected: all of it is told at once, and each thing once.

A message names the column and what is wrong with it. Where in a private file, and how often, is for a terminal only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from dprecipe.faults import DataFault

MAX_PROBLEMS = 20
"""Different problems that are told of one source."""


@dataclass(slots=True)
class _Seen:
    remedy: str
    place: str
    count: int = 0


@final
class Problems:
    """The problems of one source; `private`: places and counts are kept out of the message."""

    def __init__(self, private: bool) -> None:
        self._private = private
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._faults: list[DataFault] = []

    def add(self, what: str, problem: str, remedy: str, place: str = "", count: int = 1) -> None:
        """`problem` of `what` (a file, a column), `count` times from `place` on."""
        if (what, problem) in self._seen or len(self._seen) < MAX_PROBLEMS:
            self._seen.setdefault((what, problem), _Seen(remedy, place)).count += count

    def fault(self, what: str, problem: str, remedy: str, place: str = "") -> DataFault:
        """A fault of one place, by the same rule."""
        return _worded(what, problem, remedy, place, self._private)

    def stop(self, fault: DataFault) -> DataFault:
        """The fault to be raised where reading can't go on: with everything that was found before."""
        self._faults.append(fault)
        return raise_together(self._all())

    def check(self) -> None:
        """Raise what was found.

        Raises:
            DataFault: anything was.
        """
        result = self._all()
        if result:
            raise raise_together(result)

    def _all(self) -> list[DataFault]:
        results = []
        for (what, problem), seen in self._seen.items():
            often = f", {seen.count:,} in all" if seen.count > 1 else ""
            results.append(_worded(what, problem, seen.remedy, f"{seen.place}{often}", self._private))
        return results + self._faults


def _worded(what: str, problem: str, remedy: str, place: str, private: bool) -> DataFault:
    if private:
        return DataFault(f"{what}: {problem}", remedy, place)
    return DataFault(f"{what}: {problem}" + (f" ({place})" if place else ""), remedy)


def raise_together(faults: Sequence[DataFault]) -> DataFault:
    """One fault that tells of all, at least one, each once."""
    faults = list({(fault.message, fault.remedy): fault for fault in faults}.values())
    if len(faults) == 1:
        return faults[0]
    lines = ["the data are not what the recipe declares:"]
    for fault in faults:
        lines += [f"- {fault.message}", *([f"    {fault.remedy}"] if fault.remedy else [])]
    private = [f"- {fault.message}: {fault.private}" for fault in faults if fault.private]
    return DataFault("\n".join(lines), "", "\n".join(private))
