"""Limits on the processor time and memory that verifying a stranger's certificate may take, measured by the system.

An estimate from the certificate would not be enough: many things are expensive (codewords, events, phases, positions),
and later versions will add others.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import types
from collections.abc import Iterator
from pathlib import Path

REPEAT_SECONDS = 0.5
"""Seconds until the signal is sent again, in case some code caught the first exception."""
STATUS = Path("/proc/self/status")


class Exceeded(BaseException):
    """The time is over. Not an `Exception`: no handler on the way may swallow it and continue."""


@contextlib.contextmanager
def bound_resources(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Run a block for at most `seconds` of the process's time on all processors, and with at most `memory` bytes more
    than the process has now. None: no bound.

    Guarantees: the handler, timer and limit are restored. Time is bounded in the main thread of systems that have
    timers (not Windows), memory on Linux; elsewhere the block runs without a bound.

    Raises:
        Exceeded: the time is over.
        MemoryError: from the allocation that would exceed the memory.
    """
    with _bound_memory(memory), _bound_time(seconds):
        yield


@contextlib.contextmanager
def _bound_time(seconds: float | None) -> Iterator[None]:
    has_timer = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if seconds is None or not has_timer or signal.getitimer(signal.ITIMER_PROF)[0]:  # somebody's profiler
        yield
        return

    def raise_exceeded(number: int, frame: types.FrameType | None) -> None:
        raise Exceeded

    previous = signal.signal(signal.SIGPROF, raise_exceeded)
    try:
        signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextlib.contextmanager
def _bound_memory(memory: int | None) -> Iterator[None]:
    used = _read_data_size()
    if memory is None or used is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    max_data = used + memory
    for limit in (soft, hard):
        if limit != resource.RLIM_INFINITY:
            max_data = min(max_data, limit)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (max_data, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _read_data_size() -> int | None:
    """Bytes of data that the process has; None where the system does not report it."""
    try:
        match = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024
