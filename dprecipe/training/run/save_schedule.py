"""The times at which a run writes its checkpoint: what a crash loses has been paid for."""

from __future__ import annotations

import time
from typing import final

PARTS = 50
"""A run has this number of parts; a crash loses at most one of them, if writing takes little."""
WRITING_SHARE = 0.02
"""The largest share of the time for checkpoints more frequent than `checkpoint_seconds` asks for."""


@final
class SaveSchedule:
    """After each fiftieth of a run, unless writing would take more than `WRITING_SHARE` of the time; at the latest when
    `max_seconds` have passed since the last."""

    def __init__(self, steps: int, done: int, max_seconds: float) -> None:
        """A run of `steps`; its checkpoint or its start has the first `done` of them."""
        self._steps, self._max_seconds = steps, max_seconds
        self._saved_steps, self._saved = done, time.monotonic()
        self._due: float | None = None
        self._cost = 0.0

    def is_due(self, done: int) -> bool:
        """Returns True if a run that has made `done` steps writes its checkpoint now."""
        elapsed = time.monotonic() - self._saved
        part = (done - self._saved_steps) * PARTS >= self._steps
        due = elapsed >= self._max_seconds or (part and self._cost <= WRITING_SHARE * elapsed)
        if due and self._due is None:
            self._due = time.monotonic()
        return due

    def saved(self, done: int) -> None:
        """Notes that the checkpoint has these steps. What passed since it was due (the weights' way from other
        processes, too) is what the next one is expected to take."""
        now = time.monotonic()
        if self._due is not None:
            self._cost = now - self._due
        self._saved_steps, self._saved, self._due = done, now, None
