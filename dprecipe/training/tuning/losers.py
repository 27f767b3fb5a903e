"""The runs that were not chosen, encrypted for somebody whose private key is elsewhere.

The file has the format of age (age-encryption.org/v1: X25519, HKDF-SHA256, ChaCha20-Poly1305), which tools of others
open: `age --decrypt -i key.txt losers.age | tar x`. It is written by the library rage, so no cipher is put together
here. In it is a tar file with a folder for each run: its values, its score where that is paid for, its weights and what
it recorded. A person who opens it has seen more than the certificate covers.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.planning.candidates import Point
from dprecipe.release.untrusted import ContentError, read_bytes
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.trials import Trials

LOSERS = "losers.age"
HOW_TO_MAKE = "make one with `age-keygen -o key.txt`, and write its line `public key` (age1…) alone into this file"
RECIPIENT = re.compile(r"age1[02-9ac-hj-np-z]{58}")


def load_recipient(plan: Plan) -> Any | None:
    """Returns the public key to which a recipe's losers are encrypted; None where they are deleted. Call it before
    anything is spent.

    Raises:
        UsageFault: the library is missing, or there is no public key in the file.
    """
    if plan.tuning is None or plan.tuning.block.keep is None:
        return None
    check_libraries("tuning.keep", "pyrage")
    path = Path(plan.source.file).parent / plan.tuning.block.keep.encrypt_to
    try:
        text = read_bytes(path).decode("ascii").strip()
    except (ContentError, UnicodeDecodeError):
        raise UsageFault(f"{path}: no public key of age can be read here", HOW_TO_MAKE) from None
    if "AGE-SECRET-KEY" in text:
        raise UsageFault(f"{path}: a private key, and with it the runs could be opened here", HOW_TO_MAKE)
    if not RECIPIENT.fullmatch(text):
        raise UsageFault(f"{path}: expected one public key of age, age1…", HOW_TO_MAKE)
    with importing_libraries("tuning.keep"):
        from pyrage import RecipientError, x25519

    try:
        return x25519.Recipient.from_str(text)
    except RecipientError:
        raise UsageFault(f"{path}: a public key of age with a wrong letter", HOW_TO_MAKE) from None


def keep_losers(path: Path, recipient: Any, trials: Trials, points: Sequence[Point], winner: int) -> None:
    """Writes every run but the winner, encrypted to `recipient`; whole, or not at all. Nothing else is written.

    Raises:
        OSError: the disk refuses.
    """
    with importing_libraries("tuning.keep"):
        from pyrage import encrypt_io

    with io.BytesIO() as plain:
        with tarfile.open(fileobj=plain, mode="w") as archive:
            for number, point in enumerate(points):
                if number != winner:
                    _add_run(archive, number, point, trials)
        plain.seek(0)
        with durable.replacing_file(path) as file:
            encrypt_io(plain, _Writer(file), [recipient])


class _Writer:
    """A file to which the library writes, and which it does not close."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, content: bytes) -> int:
        return self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


def _add_run(archive: tarfile.TarFile, number: int, point: Point, trials: Trials) -> None:
    _add(archive, f"{number}/values.json", json.dumps(dict(point)).encode())
    if not trials.has_no_model(number):
        for entry in sorted(locate_result(trials.folder(number)).iterdir()):
            _add(archive, f"{number}/{entry.name}", entry.read_bytes())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), durable.FILE_MODE
    archive.addfile(entry, io.BytesIO(content))
