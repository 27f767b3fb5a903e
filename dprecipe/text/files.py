"""Reading a recipe's file: bounded, and never anything but a plain UTF-8 file."""

from __future__ import annotations

import os
import stat

from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.text.load import MAX_BYTES, report_too_large


def read_file(path: str) -> str:
    """Returns the text of a file, verbatim.

    Raises:
        RecipeError: it is missing, a folder, a device, unreadable, too large or not UTF-8; one finding.
    """
    try:
        # A pipe or device would block or never end, so the kind is asked before opening.
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise _refusal(path, "Y101", "it is a folder", "name a file")
        if not stat.S_ISREG(mode):
            raise _refusal(path, "Y101", "it is not a regular file", "name a file")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refusal(path, "Y101", "there is no such file", "check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "the path is not valid"
        raise _refusal(
            path, "Y101", f"it can't be read: {reason.lower()}", "check the path and its permissions"
        ) from None
    if len(data) > MAX_BYTES:
        raise RecipeError((report_too_large(path),))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        finding = Finding(
            "Y103", "the file is not UTF-8 text", "save it as plain UTF-8", place=Place(path, line, column)
        )
        raise RecipeError((finding,)) from None


def _refusal(path: str, code: str, message: str, remedy: str) -> RecipeError:
    return RecipeError((Finding(code, message, remedy, place=Place(path, 1, 1)),))
