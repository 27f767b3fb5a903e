"""`dprecipe copies`: prepared copies of records, listed, checked and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.data.copies import check_copy, delete_copy, find_folder, list_copies
from dprecipe.data.known_digests import forget_digests
from dprecipe.faults import UsageFault
from dprecipe.screen import write_output

SHORT = 12
"""Letters of a key that are printed."""
ALL = "all"


def copies(
    folder: Annotated[Path | None, typer.Argument(help="The folder; $DPRECIPE_PREPARED by default.")] = None,
    delete: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Delete a copy, by the first letters of its key; or `all`.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every byte, delete damaged copies, forget what is known of sources.")
    ] = False,
) -> int:
    """Lists the copies in a folder (`$DPRECIPE_PREPARED` by default), or deletes those whose keys begin so, or `all`.

    `check`: read every byte of each copy, delete those that are damaged, and forget what is known of files, so that
    the next run reads its sources again, too. Returns the exit code: 1 if a copy was damaged.

    Raises:
        UsageFault: no folder is named or it can't be read, a key fits no copy or several, a copy can't be deleted.
    """
    delete = delete or []
    if check and delete:
        raise UsageFault("--check and --delete are two errands", "give one of them")
    place = folder if folder is not None else find_folder(None, None)
    if place is None:
        raise UsageFault("no folder is named", "name it: dprecipe copies FOLDER; or set $DPRECIPE_PREPARED")
    try:
        kept = list_copies(place)
    except OSError as error:
        raise UsageFault(f"{place}: can't be read ({error.strerror})", "name a folder of prepared copies") from None
    if check:
        return _check(place, kept)
    chosen = {name for word in delete for name in _find(word, [name for name, _, _ in kept])}
    for name, size, files in kept:
        if delete and name not in chosen:
            continue
        if delete:
            _delete(place, name)
        made_of = ", ".join(files) or "not finished"
        write_output([f"{'deleted ' if delete else ''}{name[:SHORT]}  {size / 2**30:8.3f} GiB  {made_of}"])
    if ALL in delete:
        _forget(place)
    if not kept:
        write_output([f"{place}: no prepared copies"])
    return 0


def _check(place: Path, kept: Sequence[tuple[str, int, tuple[str, ...]]]) -> int:
    damaged = 0
    for name, size, files in kept:
        try:
            found = "whole" if check_copy(place, name) else "damaged, deleted"
        except BlockingIOError:
            found = "in use, not checked"
        except OSError as error:
            found = f"can't be read ({error.strerror})"
        damaged += found not in ("whole", "in use, not checked")
        write_output([f"{name[:SHORT]}  {size / 2**30:8.3f} GiB  {found}  {', '.join(files) or 'not finished'}"])
    _forget(place)
    write_output(["the next run reads every file of its sources again"])
    return int(damaged > 0)


def _forget(place: Path) -> None:
    try:
        forget_digests(place)
    except OSError as error:
        raise UsageFault(f"{place}: can't be written ({error.strerror})", "check its permissions") from None


def _find(word: str, names: Sequence[str]) -> list[str]:
    if word == ALL:
        return list(names)
    fitting = [name for name in names if word and name.startswith(word)]
    if len(fitting) != 1:
        raise UsageFault(
            f"{len(fitting) or 'no'} prepared copies have a key that begins with {word!r}",
            "write a key of the list, or `--delete all`",
        )
    return fitting


def _delete(place: Path, name: str) -> None:
    try:
        delete_copy(place, name)
    except BlockingIOError:
        raise UsageFault(f"{place / name}: a process is at work on it", "delete it when that has ended") from None
    except OSError as error:
        raise UsageFault(f"{place / name}: can't be deleted ({error.strerror})", "check its permissions") from None
