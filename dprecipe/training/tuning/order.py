"""An order for a worker of a cluster: one run of a tuned run, in a folder that the worker deletes.

Its records come from a disk that all machines share, and are compared with those of the process that leads before
anything is trained. What it made goes back as bytes; it keeps nothing, and writes no ledger but that of its own run.
The folder is deleted after the run; what a killed worker left is deleted by the next one on its machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dprecipe import __version__
from dprecipe.contract.plan import Plan, RecipeSource
from dprecipe.data.facts import Role
from dprecipe.durable import FOLDER_MODE
from dprecipe.faults import Fault, RunFailed, UsageFault
from dprecipe.libraries import ignoring_warnings
from dprecipe.models.schema import Pretrained
from dprecipe.planning.candidates import Point
from dprecipe.release.facts import commit_to_data
from dprecipe.training.program.gather import Gathered
from dprecipe.training.publish.provenance import as_bytes, private_of
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.parcel import pack_fault, pack_loss, pack_model, pack_refusal
from dprecipe.training.tuning.trials import Constants, Trials, describe_error

ROLES: tuple[Role, ...] = ("train", "public", "test")
SHARED = "data and recipe have to lie at the same paths on every machine: put them on a disk that all of them share"


@dataclass(frozen=True, slots=True)
class RunTerms:
    """Terms that all runs have in common."""

    source: RecipeSource
    """Source of the recipe; its file is an absolute path."""
    root: Path
    key: bytes
    """Key of the commitments; of this tuned run alone."""
    commitments: Mapping[str, str]
    """Commitments to what every run reads, by its role."""
    scratch: Path | None
    """Folder for the folders of runs; None: the folder for temporary files of the worker's machine."""
    constants: Constants = ()
    version: str = __version__


@dataclass(frozen=True, slots=True)
class RunOrder:
    """One run, please. The token is in the answer, so that no answer is taken for another."""

    terms: RunTerms
    number: int
    point: Point
    token: str


def commit_to_inputs(plan: Plan, root: Path, key: bytes, gathered: Gathered) -> dict[str, str]:
    """Returns a commitment to everything that a run reads: records as it will see them, and the file that it starts
    from."""
    parts: dict[str, list[bytes | memoryview]] = {}
    for role in ROLES:
        arrays = private_of(gathered.prepared(role))
        if arrays is not None:
            parts[role] = [as_bytes(array) for array in arrays]
    model = plan.model
    if isinstance(model, Pretrained) and model.init is not None:
        file = Path(plan.source.file).parent / model.init
        with file.open("rb") as opened:
            parts["model.init"] = [hashlib.file_digest(opened, "sha256").digest()]
    return {name: commit_to_data(key, *those) for name, those in parts.items()}


@ignoring_warnings()
def make_parcel(order: RunOrder) -> bytes:
    """Makes the run of an order. Every fault is an answer, and nothing is raised: after the run began, it is lost."""
    try:
        with make_scratch(order.terms.scratch) as place:
            trials = _ready_trials(order.terms, place)
            try:
                return _make_run(trials, order)
            except Exception as error:
                if not trials.has_begun(order.number):
                    raise
                return pack_loss(order.token, describe_error(error))
    except Exception as error:
        return pack_fault(order.token, _as_fault(error))


def _make_run(trials: Trials, order: RunOrder) -> bytes:
    trials.make(order.number, order.point)
    if trials.is_refused(order.number):
        return pack_refusal(order.token)
    loss = trials.read_loss(order.number)
    if loss is not None:
        return pack_loss(order.token, loss)
    return pack_model(order.token, locate_result(trials.folder(order.number)))


@ignoring_warnings()
def check_machine(terms: RunTerms, token: str) -> bytes:
    """Checks that a run could be made here: answers as one that makes no model, or with a fault."""
    try:
        _ready_trials(terms, Path())
        return pack_refusal(token)
    except Exception as error:
        return pack_fault(token, _as_fault(error))


def _as_fault(error: Exception) -> Fault:
    if isinstance(error, Fault):
        return error
    return RunFailed(f"a worker failed: {type(error).__name__}: {str(error)[:300]}", "see the logs of the cluster")


_ready: tuple[bytes, Trials] | None = None
"""Tuned run that this process works for: its records are read once."""


def _ready_trials(terms: RunTerms, place: Path) -> Trials:
    """Returns the runs in a new place, with records that are those of the process that leads.

    Raises:
        UsageFault: another version, other records, another file of weights.
    """
    global _ready
    if terms.version != __version__:
        raise UsageFault(
            f"dprecipe {__version__} is installed on a machine of the cluster, {terms.version} on this one",
            "install the same version on every machine",
        )
    if _ready is None or _ready[0] != terms.key:
        trials = Trials(terms.source, place, terms.root)
        if not Path(terms.source.file).parent.is_dir():
            raise UsageFault("the recipe's folder is missing on a machine of the cluster", SHARED)
        own = commit_to_inputs(trials.planner.whole, terms.root, terms.key, trials.gather())
        other = sorted(name for name in {**own, **terms.commitments} if own.get(name) != terms.commitments.get(name))
        if other:
            raise UsageFault(f"a machine of the cluster has another {', another '.join(other)}", SHARED)
        _ready = terms.key, trials
    return _ready[1].at(place, terms.constants)


PREFIX = "dprecipe-run-"
MAX_TRIES = 10
"""Largest number of times that a folder is made again because another worker took it for one that was left."""


@contextmanager
def make_scratch(parent: Path | None) -> Iterator[Path]:
    """Yields a folder that is gone after the block. `parent`: where it is made; None: in the machine's folder for
    temporary files.

    Guarantees: a folder of a process that was killed is deleted by the next call on its machine with this `parent`, by
    the same user. A folder in use is never deleted, where files have locks (not on Windows, where none is deleted).

    Raises:
        OSError: the disk refuses.
    """
    if parent is not None:
        parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
    place = parent or Path(tempfile.gettempdir())
    _delete_abandoned(place)
    path, lock = _make_locked(place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _make_locked(parent: Path) -> tuple[Path, int | None]:
    """Returns a new folder, and a lock on it for as long as this process lives; another may delete it before it is
    locked."""
    for _ in range(MAX_TRIES if sys.platform != "win32" else 0):
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = _lock(path)
        if lock is not None:
            if path.exists():
                return path, lock
            os.close(lock)
        shutil.rmtree(path, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)), None  # where files have no locks, nothing is deleted


def _delete_abandoned(parent: Path) -> None:
    if sys.platform == "win32":
        return
    for path in parent.glob(f"{PREFIX}*"):
        if path.is_symlink() or not path.is_dir():
            continue
        lock = _lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Returns a lock of this user's folder; None where another process has it, or it is not there or another user's."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(file).st_uid == os.getuid():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
    except OSError:
        pass
    os.close(file)
    return None
