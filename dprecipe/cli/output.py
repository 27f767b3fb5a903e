"""What a command prints, where printing may fail: a full disk, a reader that has gone, a descriptor that is closed.

What can't be printed stops no run, and is told in the end.
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
    """A text stream that remembers its first error, and drops what comes after it."""

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
                # What is still in the buffer would fail again when the interpreter ends.
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self.stream.fileno())
                os.close(null)


def open_descriptors() -> None:
    """Have something behind the descriptors 0, 1 and 2: else the next file that is opened, a ledger, were to take what
    libraries print."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


@contextmanager
def guarded_output() -> Iterator[Output]:
    """While the block lasts, the standard output, which is given, and the standard error are `Output`s."""
    before = sys.stdout, sys.stderr
    open_descriptors()
    out, err = Output(before[0]), Output(before[1])
    sys.stdout, sys.stderr = out, err
    try:
        yield out
    finally:
        out.flush()
        err.flush()
        sys.stdout, sys.stderr = before
