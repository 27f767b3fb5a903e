"""Limits on the processor time and memory that verifying a stranger's document may take, measured by the system.

An estimate from the document would not be enough: many things are expensive (codewords, events, phases, positions),
and later versions will add others.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from dprecipe.faults import Fault

MAX_SECONDS = 120.0
"""Processor time that a stranger's document may take. The certificates of this repository's recipes take a few
seconds."""
MAX_MEMORY = 4 << 30
"""Bytes beyond what the process has at the start."""
REPEAT_SECONDS = 0.5
"""Seconds until the signal is sent again, in case some code caught the first exception."""
STATUS = Path("/proc/self/status")


class Exceeded(BaseException):
    """The time is over. Not an `Exception`: no handler on the way may swallow it and continue."""


@contextlib.contextmanager
def refusing_beyond(seconds: float | None, memory: int | None, refuse: Callable[[str], Fault]) -> Iterator[None]:
    """`bound_resources` for a block that recomputes a stranger's document. `refuse`: the fault for a message.

    Raises:
        Fault: of `refuse`, where the block needs more.
    """
    try:
        with bound_resources(seconds, memory):
            yield
    except (Exceeded, MemoryError) as error:
        is_memory = isinstance(error, MemoryError)
        spent = "memory" if is_memory else f"{seconds:g} s of processor time"
        raise refuse(
            f"recomputing it needs more than the allowed {spent}, so nothing of it is verified. If you trust its "
            f"source, allow more with --max-{'memory' if is_memory else 'seconds'}"
        ) from None


@contextlib.contextmanager
def bound_resources(seconds: float | None, memory: int | None) -> Iterator[None]:
    """Runs a block for at most `seconds` of the process's time on all processors, and with at most `memory` bytes more
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
