"""Putting things on disk so that they are still there after the power fails."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk. Raises `OSError`."""
    if os.name == "nt" and path.is_dir():  # folders can't be opened there
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
