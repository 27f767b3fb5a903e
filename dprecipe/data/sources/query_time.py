"""A limit of the time that a database computes a query of somebody else's, however long its rows are used between."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from dprecipe.faults import DataFault

LEAST_SECONDS = 60.0
BYTES_PER_SECOND = 1_000_000
"""Bytes that a query reads in a second at least; DuckDB reads a hundred times as many."""


def allow_seconds(files: Iterable[Path]) -> float:
    """Returns the seconds that a query may take over files, by their sizes."""
    return LEAST_SECONDS + sum(file.stat().st_size for file in files if file.is_file()) / BYTES_PER_SECOND


@final
class QueryTime:
    """Interrupts a database that has computed for too long."""

    def __init__(self, seconds: float | None, interrupt: Callable[[], None]) -> None:
        """`seconds`: None for no limit. `interrupt`: stops what the database does, from another thread."""
        self._seconds, self._left, self._interrupt = seconds, seconds or 0.0, interrupt
        self._is_over = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """A block in which the database computes.

        Raises:
            DataFault: all blocks together take longer than the limit.
        """
        if self._seconds is None:
            yield
            return
        timer = threading.Timer(self._left, self._stop)
        timer.daemon = True
        began = time.monotonic()
        timer.start()
        try:
            yield
        except Exception:
            if self._is_over:
                raise self._fault() from None
            raise
        finally:
            timer.cancel()
            self._left = max(0.0, self._left - (time.monotonic() - began))
        if self._is_over:
            raise self._fault()

    def _stop(self) -> None:
        self._is_over = True
        self._interrupt()

    def _fault(self) -> DataFault:
        return DataFault(
            f"the query takes longer than {self._seconds:.0f} s, the most for files of this size",
            "name files that hold its result; or ask for a release with a simpler query",
        )
