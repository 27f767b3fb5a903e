"""The time that a run spends: seconds of each phase, on the clock and of the processor.

    with measure_run() as timeline:
        with phase("read"):
            ...
    timeline.totals()

A phase inside another one suspends it, so that the seconds of all phases add up to those of the run. Outside of
`measure_run`, and in other threads than its own, `phase` does nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, NamedTuple, final

Phase = Literal[
    "start", "plan", "read", "import", "prepare", "preprocess", "loop", "scores", "certificate", "report", "verify"
]
"""`start`: until the plan begins, and whatever belongs to no other phase. `prepare`: the model, the probe and the noise
check. `preprocess`: paid steps of preprocessing."""


class Seconds(NamedTuple):
    """Seconds of one phase."""

    wall: float
    processor: float
    """Processor seconds of all threads of this process."""

    def __add__(self, other: object) -> Seconds:
        if not isinstance(other, Seconds):
            return NotImplemented
        return Seconds(self.wall + other.wall, self.processor + other.processor)


def read_clocks() -> Seconds:
    """Returns the time now, on a clock that is never set back, and the processor's time of this process."""
    return Seconds(time.monotonic(), time.process_time())


@final
class Timeline:
    """The phases of one run, as they come."""

    def __init__(self, since: Seconds | None = None) -> None:
        self._totals: dict[Phase, Seconds] = {}
        self._open: list[Phase] = ["start"]
        self._mark = since or read_clocks()

    def enter(self, name: Phase) -> None:
        self._settle()
        self._open.append(name)

    def leave(self) -> None:
        self._settle()
        self._open.pop()

    def totals(self) -> Mapping[Phase, Seconds]:
        """Seconds of each phase so far, in the order in which they first ended or were suspended."""
        self._settle()
        return dict(self._totals)

    def _settle(self) -> None:
        now, name = read_clocks(), self._open[-1]
        spent = Seconds(now.wall - self._mark.wall, now.processor - self._mark.processor)
        self._totals[name] = self._totals.get(name, Seconds(0.0, 0.0)) + spent
        self._mark = now


PROCESS_START = Seconds(time.monotonic() - time.process_time(), 0.0)
"""Start of this process: an interpreter that imports is busy, so that it has run as long as it has computed."""
_current: ContextVar[Timeline | None] = ContextVar("_current", default=None)


@contextmanager
def measure_run(since: Seconds | None = None) -> Iterator[Timeline]:
    """Yields the timeline of the block: that of the caller where one is being measured, else a new one, from `since`
    on."""
    known = _current.get()
    if known is not None:
        yield known
        return
    timeline = Timeline(since)
    token = _current.set(timeline)
    try:
        yield timeline
    finally:
        _current.reset(token)


@contextmanager
def phase(name: Phase) -> Iterator[None]:
    """Measures the block, or the function that this decorates, as this phase of the run being measured."""
    timeline = _current.get()
    if timeline is None:
        yield
        return
    timeline.enter(name)
    try:
        yield
    finally:
        timeline.leave()


def current_timeline() -> Timeline | None:
    """Returns the timeline of the run being measured here; None where there is none."""
    return _current.get()
