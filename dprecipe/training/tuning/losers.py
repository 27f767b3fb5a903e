"""The runs that were not chosen: a table and a picture of their scores, their files encrypted, and then their end.

`losers.age` has the format of age (age-encryption.org/v1: X25519, HKDF-SHA256, ChaCha20-Poly1305), which tools of
others open: `age --decrypt -i key.txt losers.age | tar x`. It is written by the library rage, so no cipher is put
together here. In it is a tar file with a folder for each run: its values, its score where that is paid for, its weights
and what it recorded. A person who opens it has seen more than the certificate covers.

The files that stay are written first, whole or not at all, once the release is there; then `private/trials` is removed.
An attempt that was killed in between leaves the folder, and the next one ends the work.
"""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import tarfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from dprecipe import durable
from dprecipe.contract.drawing import MARK, Axes, Limits
from dprecipe.contract.panels import Panel, render_panels
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.language.tuning import Candidates
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.planning.candidates import Point
from dprecipe.privacy.ledger import lock_ledger
from dprecipe.release.untrusted import ContentError, read_bytes
from dprecipe.screen import write_note
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.draws import DRAWS, DrawnRuns, load
from dprecipe.training.tuning.trials import Trials
from dprecipe.training.tuning.winner import choose_winner, write_table

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


TABLE, FIGURE = "trials.csv", "trials.svg"


def locate_trials(folder: RunFolder) -> Path:
    """Returns the folder of all runs."""
    return folder.private / "trials"


def remove_losers(plan: Plan, folder: RunFolder, trials: Trials, recipient: Any | None) -> None:
    """Values and scores of all runs, for their owner; all but the winner encrypted to `recipient`, where there is one;
    and then what the runs made is deleted. No release needs it: a disk that refuses is a note.

    Guarantees: what was made is deleted only after all that is kept of it is on disk. It is made out of `private/`
    alone, so that a later attempt can do it.
    """
    place = locate_trials(folder)
    try:
        with lock_ledger(folder.ledger):
            if not place.exists():
                return
            kept = [folder.private / FIGURE, *([] if recipient is None else [folder.private / LOSERS])]
            if not all(path.exists() for path in kept):
                _keep(plan, folder, trials, load(folder.private / DRAWS, plan), recipient)
            shutil.rmtree(place)
    except (OSError, RunFailed) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        write_note(
            f"{folder.private}: the other runs could not be deleted ({reason}); mend this and write --resume, or "
            f"delete private/trials"
        )


def _keep(plan: Plan, folder: RunFolder, trials: Trials, drawn: DrawnRuns, recipient: Any | None) -> None:
    rows = write_table(folder.private / TABLE, plan, trials, drawn)
    if recipient is not None:
        winner = choose_winner(plan, trials, drawn).number
        keep_losers(folder.private / LOSERS, recipient, trials, drawn.points, winner)
    durable.replace_file(folder.private / FIGURE, draw_trials(plan, rows).encode())


def draw_trials(plan: Plan, rows: Sequence[tuple[Point, float | None]]) -> str:
    """Returns an SVG with a panel for each key, all with the same scores."""
    over = () if plan.tuning is None else plan.tuning.block.over
    figure_name = "" if plan.tuning is None else plan.tuning.block.score.figure.replace("_", " ")
    scored = [(point, score) for point, score in rows if score is not None and math.isfinite(score)]
    panels = [Panel(each.key, partial(_draw_key, each, scored, figure_name)) for each in over]
    return render_panels("scores of the runs", panels)


def _draw_key(each: Candidates, scored: Sequence[tuple[Point, float]], figure_name: str, axes: Axes) -> None:
    names = [str(value) for value in each.values or ()]
    for point, score in scored:
        value = str(point[each.key])
        axes.mark(names.index(value) if names else float(value), score, MARK)
    limits: Limits = (-0.5, len(names) - 0.5) if names else (None, None)
    axes.set(each.key.rpartition(".")[2], figure_name, limits, log_x=each.scale == "log" and not names, x_names=names)
