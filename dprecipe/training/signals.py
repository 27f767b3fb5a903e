"""Ctrl-C, and what a cluster sends before it takes a machine away, end a run where it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, final

import lightning.pytorch as lightning

from dprecipe.screen import note


@contextmanager
def stopping_on_signals(request_stop: Callable[[], None], what: str = "step") -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks for a stop after the step in hand; the second interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        request_stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        note("", f"stopping after this {what}; press Ctrl-C again to stop at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@final
class Stopping(lightning.Callback):
    """`stopping_on_signals` while a trainer trains.

    From within its loop: the trainer sets a handler of SIGTERM of its own before that, which would end the run without
    a checkpoint.
    """

    def __init__(self, request_stop: Callable[[], None]) -> None:
        self._request_stop = request_stop
        self._stack = ExitStack()

    def on_train_start(self, *_: Any) -> None:
        self._stack.enter_context(stopping_on_signals(self._request_stop))

    def on_train_end(self, *_: Any) -> None:
        self._stack.close()

    def on_exception(self, *_: Any) -> None:
        self._stack.close()
