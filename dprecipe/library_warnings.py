"""Warnings of libraries: words to programmers, which reach no user's screen and decide nothing.

A filter that makes errors of warnings (`python -W error`) would make one wherever a library finds something to say: in
the middle of a step, whose noise is drawn; or where a failure means that a model goes through another engine.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_to_the_end = False
_caller_filters: warnings.catch_warnings[None] | None = None


@contextmanager
def ignoring_warnings() -> Iterator[None]:
    """Shows and raises no warning inside the block, whatever the caller's filters are; also a decorator.

    Python's filters are those of the whole process. Several threads may be inside: the last one out restores them.
    """
    global _inside, _caller_filters
    with _lock:
        if _inside == 0:
            _caller_filters = warnings.catch_warnings(action="ignore")
            _caller_filters.__enter__()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _caller_filters is not None:
                _caller_filters.__exit__(None, None, None)


def ignore_all_warnings() -> None:
    """Ignores warnings until the end of this process, which runs a command or a part of one, and no caller's code."""
    global _to_the_end
    _to_the_end = True
    warnings.simplefilter("ignore")


def silence_loggers() -> None:
    """Drops the warnings that libraries log, in a process that ignores all warnings; elsewhere loggers are the
    caller's.

    Called where libraries are imported: a command that needs none does not wait for `logging`.
    """
    if _to_the_end:
        import logging

        logging.disable(logging.WARNING)
