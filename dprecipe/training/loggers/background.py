"""A sink in a thread of its own: whatever it does, the run goes on as without it.

Formal guarantee: `log` returns at once and raises nothing. A sink that raises, hangs or is too slow is reported once,
by its kind and the kind of error, and what it was to get is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from queue import Empty, Full, Queue
from threading import Thread
from typing import final

from dprecipe.progress import report_progress
from dprecipe.training.loggers.sinks import Sink, Status

MAX_WAITING = 1_000
"""Points that wait for a slow sink."""
MAX_SECONDS = 10.0
"""Largest number of seconds that the end of a run waits for it."""
Task = Callable[[Sink], None]


@final
class BackgroundSink:
    """See the module."""

    def __init__(self, name: str, open_sink: Callable[[], Sink]) -> None:
        self._name = name
        self._open = open_sink
        self._tasks: Queue[Task | None] = Queue(MAX_WAITING)
        self._broken = False
        self._thread = Thread(target=self._work, name=f"logger {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Passes the values of a step on."""
        self._put(lambda sink: sink.log(step, values))

    def finish(self, status: Status) -> None:
        """Ends the sink, and waits for it at most `MAX_SECONDS`."""
        self._put(lambda sink: sink.finish(status))
        until = time.monotonic() + MAX_SECONDS
        if not self._broken:
            self._put(None)
            self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive() and not self._broken:
            self._tell("it does not answer")

    def _put(self, task: Task | None) -> None:
        if self._broken:
            return
        try:
            self._tasks.put_nowait(task)
        except Full:
            self._tell("it is too slow")

    def _work(self) -> None:
        try:
            sink = self._open()
            while (task := self._tasks.get()) is not None:
                task(sink)
        except BaseException as error:  # a library of others may raise anything
            self._tell(type(error).__name__)  # its text may quote anything

    def _tell(self, reason: str) -> None:
        if self._broken:
            return
        self._broken = True
        report_progress(f"logger {self._name}: {reason}; the run goes on without it")
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            self._tasks.put(None)
