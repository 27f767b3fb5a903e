"""Progress: a bar in a terminal or a notebook, otherwise a line every few seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, final

from tqdm import tqdm

from dprecipe.notebook import NotebookBar
from dprecipe.screen import is_notebook, is_watched, write_note

LINE_SECONDS = 10.0
QUIET_SECONDS = 2.0
_silent: ContextVar[bool] = ContextVar("_silent", default=False)


@contextmanager
def silence_progress() -> Iterator[None]:
    """Shows no progress while the block lasts: where a line for each part would tell how many parts there are."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


@final
class Progress:
    """Shows `done` of `total` on the standard error, or in a notebook."""

    def __init__(self, what: str, unit: str, total: int | None, done: int = 0, *, private: bool = False) -> None:
        """`what`: the name of the work. `unit`: the name of one part. `total`: None where it is unknown. `private`:
        the number of parts, or their pace, tells of private records: a terminal shows it; a log, or a notebook, which
        keeps it, gets nothing."""
        self._unit = unit
        self._total = total
        self._said = time.monotonic()
        self._line = ""
        self._bar: Any = None
        self._silent = _silent.get() or (private and not is_watched())
        self._notebook: NotebookBar | None = None
        if self._silent:
            return
        if is_watched():
            self._bar = tqdm(total=total, initial=done, unit=unit, desc=what)
        elif is_notebook() and total is not None:
            self._notebook = NotebookBar(what, unit, total, done)

    def show(self, done: int, status: Callable[[], str] = str) -> None:
        """Reports `done` parts; `status` is called only when it is shown."""
        if self._bar is not None:
            self._bar.set_postfix_str(status(), refresh=False)
            self._bar.update(done - self._bar.n)
        elif self._notebook is not None:
            if self._notebook.is_due():
                self._notebook.show(done, status())
        elif time.monotonic() - self._said >= LINE_SECONDS:
            self._say(done, status())

    def end(self, done: int, status: Callable[[], str] = str) -> None:
        """Reports `done` parts for the last time."""
        if self._notebook is not None:
            self._notebook.show(done, status(), end=True)
            return
        if self._bar is None:
            self._say(done, status())
            return
        self._bar.set_postfix_str(status(), refresh=True)
        self._bar.update(done - self._bar.n)
        self._bar.close()

    def _say(self, done: int, status: str) -> None:
        if self._silent:
            return
        self._said = time.monotonic()
        of_total = "" if self._total is None else f" of {self._total}"
        line = f"{self._unit} {done}{of_total}{', ' if status else ''}{status}"
        if line != self._line:  # the last step may already be reported
            write_note(line)
        self._line = line


@final
class LateProgress:
    """`Progress` of work that usually takes no time: shown from `QUIET_SECONDS` on."""

    def __init__(self, what: str, unit: str, total: int | None, *, private: bool) -> None:
        self._make = partial(Progress, what, unit, total, private=private)
        self._began = time.monotonic()
        self._progress: Progress | None = None

    def show(self, done: int) -> None:
        """Reports `done` parts."""
        if self._progress is None and time.monotonic() - self._began > QUIET_SECONDS:
            self._progress = self._make()
        if self._progress is not None:
            self._progress.show(done)

    def end(self, done: int) -> None:
        """Reports `done` parts for the last time."""
        if self._progress is not None:
            self._progress.end(done)


def report_progress(text: str) -> None:
    """Prints a line of progress; of several processes, the first one prints it."""
    if int(os.environ.get("RANK", "0")) == 0 and not _silent.get():
        write_note(text)
