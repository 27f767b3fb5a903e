"""A file that a command writes: it appears whole, and replaces nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dprecipe.faults import RunFailed, UsageFault
from dprecipe.release.folder import CERTIFICATE_FILES


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
    return any(proofs) and os.path.lexists(folder / "model.json")


@contextmanager
def writing_new(out: Path) -> Iterator[Path]:
    """Yields a path to write to; the file gets its name when the block succeeds, and is removed otherwise.

    Raises:
        UsageFault: a file of this name has appeared.
        RunFailed: the disk refuses.
    """
    draft = out.with_name(f".{out.stem}.{secrets.token_hex(4)}{out.suffix}")
    try:
        yield draft
        os.link(draft, out)  # unlike a rename, it replaces nothing
    except FileExistsError:
        check_absent(out)
        raise
    except OSError as error:
        raise RunFailed(
            f"{out}: can't be written: {error.strerror}", "free space on its disk, or choose another place"
        ) from None
    finally:
        draft.unlink(missing_ok=True)
