"""What long commands share: documents in the folder of `--out`, and notes on progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dprecipe.faults import UsageFault
from dprecipe.screen import write_note

NOTE_INTERVAL = 2.0
"""Seconds between two notes on progress."""


def write_documents(folder: Path, documents: Mapping[str, str]) -> None:
    """Write texts, by file name, into a folder; make the folder if there is none.

    Called with no documents it checks that the folder can be made, before any work is done.

    Raises:
        UsageFault: the folder can't be made, or a file can't be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageFault(f"{folder} can't be written: {error.strerror}", "name another folder with --out") from None


def limit_notes() -> Callable[[str], None]:
    """A function that writes a note to stderr, at most one every `NOTE_INTERVAL` seconds; it drops the others."""
    last = time.monotonic()

    def report(note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTE_INTERVAL:
            last = time.monotonic()
            write_note(note)

    return report
