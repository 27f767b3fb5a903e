"""The watch of `dprecipe validate --watch`: it asks the file system, twice a second, whether a file has changed.

Asking works everywhere, on folders of other machines too, and needs no library.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dprecipe.cli.guard import is_output_read, list_lines
from dprecipe.faults import Fault
from dprecipe.policy.find import POLICY_FILE
from dprecipe.screen import write_note

INTERVAL = 0.5
SUFFIXES = (".yaml", ".yml")
Stamp = tuple[int, int, int]
"""Time of the last change, size and number of a file."""


def watch(check: Callable[[], Iterable[str]], list_recipes: Callable[[], Iterable[Path]]) -> None:
    """Calls `check` now, and again whenever a file has changed: a recipe, one that it extends, another YAML file in
    their folders, or a policy above them. Ends when the output has no reader any more; a person ends it with Ctrl-C.

    `check` prints, and returns the files that it has read. `list_recipes` returns those that there are to check.

    Guarantees: a change of a recipe while it is checked is not missed.

    Raises:
        Fault: the first check does. Later ones are printed, since the next change may mend them.
    """
    before = _stamp_all(list_recipes())
    files = _add_files([], check())
    while is_output_read():
        now = _stamp_all([*_list_existing(list_recipes), *files])
        seen = {file: before.get(file, stamp) for file, stamp in now.items()}
        write_note(f"watching {len(now)} file{'s' * (len(now) != 1)}; Ctrl-C ends")
        while (changed := _find_change(seen, now)) is None and is_output_read():
            time.sleep(INTERVAL)
            now = _stamp_all([*_list_existing(list_recipes), *files])
        if changed is not None:
            write_note("", f"{changed} has changed")
            before = now
            try:
                files = _add_files(files, check())
            except Fault as fault:
                write_note(*list_lines(fault))


def _add_files(known: list[Path], names: Iterable[str]) -> list[Path]:
    """Returns the known files, which may be gone and come back, and those among the texts that were read now; an
    override is none."""
    return list(dict.fromkeys([*known, *(file for file in map(Path, names) if file.is_file())]))


def _list_existing(list_recipes: Callable[[], Iterable[Path]]) -> list[Path]:
    """Returns the recipes; none while a folder has none."""
    try:
        return list(list_recipes())
    except Fault:
        return []


def _stamp_all(recipes: Iterable[Path]) -> dict[Path, Stamp]:
    """Returns the stamps of these files, of YAML files beside them, and of policies above them, as far as there are
    any."""
    own = list(recipes)
    folders = dict.fromkeys(file.parent for file in own)
    beside = [file for folder in folders for file in _list_folder(folder)]
    above = [parent / POLICY_FILE for folder in folders for parent in (folder.absolute(), *folder.absolute().parents)]
    stamps = {}
    for file in dict.fromkeys([*own, *beside, *above]):
        try:
            status = file.stat()
        except (OSError, ValueError):
            continue
        stamps[file] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return stamps


def _list_folder(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if name.endswith(SUFFIXES)]
    except OSError:
        return []


def _find_change(seen: dict[Path, Stamp], now: dict[Path, Stamp]) -> Path | None:
    """Returns the first file that was changed, made or deleted."""
    return next((file for file in (*now, *seen) if seen.get(file) != now.get(file)), None)
