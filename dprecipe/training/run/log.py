"""Logs of a run: numbers in columns, for its owner's eyes. No release needs one.

Guarantees: whatever the file holds (a line cut short by a crash, other people's bytes, nothing), reading it gives its
sound lines, and writing mends it first. A log that can't be written is reported once, and nothing else comes of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from dprecipe import durable
from dprecipe.progress import report_progress

MAX_BYTES = 1 << 28
"""A longer file is no log of ours."""


@final
@dataclass(frozen=True, slots=True)
class Lines:
    """The contents of a log."""

    names: tuple[str, ...]
    """Its columns; none where the file is new or no log."""
    rows: tuple[dict[str, float], ...]
    """The rows in the order they were written; the first column is a whole number of at least 0."""
    damaged: int
    """Lines that are no rows, and are left out."""
    sound: bool
    """The next line can be written at the end of the file."""


def read(path: Path) -> Lines:
    """Reads the sound lines of a log; never raises."""
    try:
        content = durable.read_bytes(path) if path.stat().st_size <= MAX_BYTES else b"?"
    except FileNotFoundError:
        return Lines((), (), 0, sound=False)
    except OSError:
        return Lines((), (), 1, sound=False)
    lines = content.split(b"\n")
    cut = lines.pop()
    names = _names(lines[0]) if lines else ()
    result = [_row(names, line) for line in lines[1:]] if names else [None] * len(lines)
    rows = tuple(row for row in result if row is not None)
    damaged = len(result) - len(rows) + bool(cut)
    return Lines(names, rows, damaged, sound=bool(names) and not damaged)


def append_line(path: Path, row: Mapping[str, float]) -> None:
    """Adds a line; the first column is a whole number. A damaged log is mended first; one with other columns is
    replaced."""
    names = tuple(row)
    try:
        before = read(path)
        if before.sound and before.names == names:
            with open(durable.open_regular(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
                file.write(_line(list(row.values())))
            return
        previous = before.rows if before.names == names else ()
        lines = [",".join(names).encode() + b"\n", *(_line(list(each.values())) for each in (*previous, row))]
        durable.replace_file(path, b"".join(lines))
    except OSError as error:
        if path not in _reported:
            _reported.add(path)
            report_progress(f"{path}: can't be written ({error.strerror}); the run goes on without this log")


_reported: set[Path] = set()


def _line(values: Sequence[float]) -> bytes:
    return ",".join([f"{values[0]:.0f}", *(f"{value:.9g}" for value in values[1:])]).encode() + b"\n"


def _names(line: bytes) -> tuple[str, ...]:
    names = tuple(line.rstrip(b"\r").decode("ascii", "replace").split(","))
    return names if all(map(str.isidentifier, names)) and len(set(names)) == len(names) else ()


def _row(names: Sequence[str], line: bytes) -> dict[str, float] | None:
    fields = line.rstrip(b"\r").split(b",")
    try:
        if len(fields) != len(names) or not fields[0].isdigit():
            return None
        return {names[0]: int(fields[0]), **dict(zip(names[1:], map(float, fields[1:]), strict=True))}
    except ValueError:
        return None
