"""Ctrl-C, and what a cluster sends before it takes a machine away, end a run where it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dprecipe.screen import write_note


@contextmanager
def stopping_on_signals(request_stop: Callable[[], None], unit: str = "step") -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for a stop after the step in hand; the second interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        request_stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        write_note("", f"stopping after this {unit}; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
