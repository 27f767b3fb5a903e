"""`private/answers.jsonl`: the outcomes so far, so that a query that was paid for is never asked again.

Each line is a JSON object: `{"ledger": …, "is_answer": …, "queries": […], "outcomes": […]}`. It is written and fsynced
after the ledger has recorded the events that produced the outcomes, and names that ledger line. An outcome is a label,
`NOTHING`, or `PASSED`: checked and still to be answered. A crash may leave an incomplete last line: it is cut off, and
its queries are asked and paid for again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.aggregators import NOTHING
from dprecipe.privacy.ledger import Ledger

PASSED = -1
"""Outcome of a query that passed its check and is still to be answered."""
UNASKED = -3
"""Mark of a query that has no outcome yet."""

Outcomes = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class AnswerEntry:
    """The outcomes of some queries."""

    queries: NDArray[np.int64]
    outcomes: Outcomes
    is_answer: bool
    """True for the teachers' answers, false for the outcomes of a check."""


@final
class AnswersFile:
    """The open answers file: `append` adds to it, and `before` holds the entries of earlier attempts."""

    def __init__(self, path: Path, before: Ledger | None, queries: int, classes: int) -> None:
        """Opens the file and reads its entries. `before` is the ledger as this attempt found it.

        Raises:
            RunFailed: the file is damaged, does not belong to this ledger, or can't be read or written.
        """
        self._path = path
        try:
            content = durable.read_bytes(path) if os.path.lexists(path) else b""
            whole = content[: content.rfind(b"\n") + 1]
            heads = frozenset() if before is None else before.heads
            self.before = tuple(self._entry(line, heads, queries, classes) for line in whole.splitlines())
            self._file = durable.open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.ftruncate(self._file, len(whole))
            durable.sync_folder(path.parent)
        except OSError as error:
            raise self._refused(error) from None

    def append(self, entry: AnswerEntry, ledger_head: str) -> None:
        """Writes outcomes to disk; `ledger_head` names the ledger line that pays for them.

        Raises:
            RunFailed: they can't be written; the queries count as paid, and will be asked again.
        """
        content = {
            "ledger": ledger_head,
            "is_answer": entry.is_answer,
            "queries": entry.queries.tolist(),
            "outcomes": entry.outcomes.tolist(),
        }
        line = json.dumps(content, separators=(",", ":")).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise self._refused(error) from None

    def close(self) -> None:
        os.close(self._file)

    def _entry(self, line: bytes, heads: frozenset[str], queries: int, classes: int) -> AnswerEntry:
        try:
            content = json.loads(line)
            numbers, outcomes = np.array(content["queries"], np.int64), np.array(content["outcomes"], np.int64)
            head, is_answer = content["ledger"], content["is_answer"]
            sound = numbers.shape == outcomes.shape == (len(numbers),) and isinstance(is_answer, bool)
            sound = sound and bool(((numbers >= 0) & (numbers < queries)).all())
            sound = sound and bool(((outcomes >= NOTHING) & (outcomes < classes)).all())
        except (ValueError, TypeError, KeyError, OverflowError):
            sound = False
        if not sound:
            raise RunFailed(f"{self._path}: damaged", "start the run again in another folder")
        if head not in heads:
            raise RunFailed(
                "the answers are not of this ledger: the certificate would leave out their cost",
                "put the run's own ledger back, or start again in another folder",
            )
        return AnswerEntry(numbers, outcomes, is_answer)

    def _refused(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"{self._path}: can't keep the answers: {error.strerror}",
            "make room on the disk, then continue with --resume",
        )
