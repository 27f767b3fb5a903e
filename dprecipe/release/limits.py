"""What a stranger's certificate may cost whoever verifies it: processor time and memory, counted by the system.

No estimate from the certificate itself would do: what is dear (codewords, events, phases, places) is many things, and
the next one is not known yet.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import types
from collections.abc import Iterator
from pathlib import Path

AGAIN = 0.5
"""Seconds until the end is told again, to code that took it for a fault of its own."""
STATUS = Path("/proc/self/status")


class Exceeded(BaseException):
    """The time is over. No `Exception`: nothing on the way may take it for something it can go on after."""


@contextlib.contextmanager
def bound_resources(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Run a block for at most `seconds` of the process's time on all processors, and with at most `memory` bytes more
    than the process has now; None: without that bound.

    Guarantees: handler, timer and limit are left as they were. Time is bounded in the main thread of systems that have
    timers (not Windows), memory on Linux; elsewhere the block runs as it would.

    Raises:
        Exceeded: the time is over.
        MemoryError: from the allocation that would exceed the memory.
    """
    with _memory(memory), _time(seconds):
        yield


@contextlib.contextmanager
def _time(seconds: float | None) -> Iterator[None]:
    timers = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if seconds is None or not timers or signal.getitimer(signal.ITIMER_PROF)[0]:  # somebody's profiler
        yield
        return

    def over(number: int, frame: types.FrameType | None) -> None:
        raise Exceeded

    before = signal.signal(signal.SIGPROF, over)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds, AGAIN)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def _memory(memory: int | None) -> Iterator[None]:
    held = _held()
    if memory is None or held is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = held + memory
    for limit in (soft, hard):
        if limit != resource.RLIM_INFINITY:
            most = min(most, limit)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _held() -> int | None:
    """Bytes of data that the process has; None where the system does not say so."""
    try:
        match = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024
