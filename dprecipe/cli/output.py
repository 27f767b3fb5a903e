"""Standard output that may fail: a full disk, a reader that has gone, a closed descriptor.

A failed write stops no run; it is reported at the end.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, final

CLOSED = "it is closed"


@final
class Output:
    """A text stream that remembers its first error, and drops everything after it."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream: TextIO = io.StringIO() if stream is None else stream
        self.error = CLOSED if stream is None else ""
        self.reader_left = False

    def write(self, text: str) -> int:
        self._try(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda: self.stream.flush())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def _try(self, act: Any) -> None:
        if self.error:
            return
        try:
            act()
        except (OSError, ValueError) as error:
            self.error = str(getattr(error, "strerror", None) or error)
            self.reader_left = isinstance(error, BrokenPipeError)
            with suppress(OSError, ValueError):
                # The buffered rest would fail again when the interpreter exits.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)


def open_descriptors() -> None:
    """Opens the descriptors 0, 1 and 2 where they are closed. Otherwise the next file opened, such as a ledger, would
    receive what libraries print."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


@contextmanager
def guarded_output() -> Iterator[Output]:
    """Makes the standard streams `Output`s inside the block; yields the standard output."""
    previous = sys.stdout, sys.stderr
    open_descriptors()
    out, err = Output(previous[0]), Output(previous[1])
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = previous
