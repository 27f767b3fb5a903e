"""Files that commands write, in folders and files named by `--out`; releases that they read; notes on progress.

A new file appears whole, and replaces nothing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from dprecipe import durable
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.privacy.rounding import write_number
from dprecipe.release.folder import CERTIFICATE_FILES
from dprecipe.screen import write_note

if TYPE_CHECKING:
    from dprecipe.release.verify import Verified

NOTE_INTERVAL = 2.0
"""Seconds between two notes on progress."""


def write_documents(folder: Path, documents: Mapping[str, str]) -> None:
    """Writes texts, by file name, into a folder; makes the folder if there is none.

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


def check_output(path: Path, force: bool) -> None:
    """Checks, before any work is done, that a file can be made here, or replaced.

    Raises:
        UsageFault: it exists, and `force` is not set; or its folder does not.
    """
    if path.exists() and not force:
        raise UsageFault(f"{path} exists already", "name another file, or replace it with --force")
    if not path.parent.is_dir():
        raise UsageFault(f"there is no folder {path.parent}", "make it, or name another with --out")


def replace_output(path: Path, content: bytes) -> None:
    """Writes the whole file or nothing. Anybody may read it, as far as the user's mask allows.

    Raises:
        UsageFault: it can't be written; what was there is unchanged.
    """
    try:
        durable.replace_file(path, content, durable.PUBLIC_MODE)
    except OSError as error:
        raise UsageFault(f"{path} can't be written: {error.strerror}", "name another file with --out") from None


def path_in_recipe(recipe: Path, file: Path) -> str:
    """Returns the path of a file as a recipe has it: relative to the recipe's folder, in quotes where YAML needs
    them."""
    try:
        relative = os.path.relpath(file.resolve(), recipe.resolve().parent)
    except ValueError:  # another drive
        relative = str(file.resolve())
    path = PurePath(relative).as_posix()
    return path if re.fullmatch(r"[\w./-]+", path) else json.dumps(path, ensure_ascii=False)


def verify_release(release: Path, public_key: Path | None) -> Verified:
    """Verifies a release, and notes its claim. Raises as `release.verify.verify`."""
    from dprecipe.release.verify import verify

    verified = verify(release, public_key)
    claim = verified.claim
    write_note(f"verified {release}: ε = {claim.epsilon:g} at δ = {write_number(claim.delta)}")
    return verified


def limit_notes() -> Callable[[str], None]:
    """Returns a function that writes a note to stderr, at most one every `NOTE_INTERVAL` seconds; it drops the
    others."""
    last = time.monotonic()

    def report(note: str) -> None:
        nonlocal last
        if time.monotonic() - last >= NOTE_INTERVAL:
            last = time.monotonic()
            write_note(note)

    return report


def check_absent(out: Path) -> None:
    """Checks that there is nothing of this name, and that its folder is no release, which another file would spoil.

    Raises:
        UsageFault: there is, or it is.
    """
    if os.path.lexists(out):
        raise UsageFault(f"{out} exists, and nothing is overwritten", "choose another file with --out")
    if is_release(out.parent):
        raise UsageFault(
            f"{out.parent} is a release, which holds what its certificate names and nothing else",
            "choose another folder with --out",
        )


def is_release(folder: Path) -> bool:
    """Returns True if a folder looks like the release of a run."""
    proofs = (os.path.lexists(folder / name) for name in sorted(CERTIFICATE_FILES))
    return any(proofs) and any(os.path.lexists(folder / name) for name in ("model.json", "metrics.json"))


@contextmanager
def writing_new(out: Path) -> Iterator[Path]:
    """Yields a path to write to; the file gets its name when the block succeeds, on disk as a whole, and is removed
    otherwise.

    Raises:
        UsageFault: a file of this name has appeared.
        RunFailed: the disk refuses.
    """
    draft = out.with_name(f".{out.stem}.{secrets.token_hex(4)}{out.suffix}")
    try:
        yield draft
        durable.sync_folder(draft)
        os.link(draft, out)  # unlike a rename, it replaces nothing
        durable.sync_folder(out.parent)
    except FileExistsError:
        check_absent(out)
        raise
    except OSError as error:
        raise RunFailed(
            f"{out}: can't be written: {error.strerror}", "free space on its disk, or choose another place"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
