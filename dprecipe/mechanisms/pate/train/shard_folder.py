"""The folder of `dprecipe teachers`: the key of the partition, the terms that all shards share, and their votes.

All of it is private, and none of it may be published: the votes of single teachers have no noise.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import final

from dprecipe import durable
from dprecipe.faults import DataFault, Interrupted, RunFailed, UsageFault
from dprecipe.mechanisms.pate.train.partition import KEY_BYTES, keep_content, load_key
from dprecipe.mechanisms.pate.train.shards import AGAIN, ShardTerms, TeacherShard, VoteStore, read_votes, seal_votes
from dprecipe.release.untrusted import ContentError, parse_object, read_bytes

KEY = "partition.key"
TERMS = "teachers.json"
README = "README.txt"
NOTE = (
    b"Private: votes of single teachers, without noise, and the key that deals records to them.\n"
    b"Never publish these files.\n"
)


@final
class ShardFolder:
    """A folder of shards, in which any number of processes train shards of their own."""

    def __init__(self, path: Path, insecure_seed: int | None = None) -> None:
        """Opens the folder, or makes it; the first process draws its key.

        Raises:
            UsageFault: it is no folder, or one of something else.
            RunFailed: it can't be read or written.
        """
        self.path = path
        if path.exists() and not path.is_dir():
            raise UsageFault(f"{path}: not a folder", "choose another with --out")
        try:
            names = [entry.name for entry in path.iterdir()] if path.exists() else []
        except OSError as error:
            raise RunFailed(f"{path}: can't be read: {error.strerror}", "choose another with --out") from None
        if KEY not in names and any(not name.startswith(".") for name in names):  # hidden: a key that is being written
            raise UsageFault(f"{path}: a folder of something else", "choose an empty or a new one with --out")
        with durable.writing(path, "choose another with --out"):
            durable.make_folders(path.parent)
            path.mkdir(mode=durable.FOLDER_MODE, exist_ok=True)
            path.chmod(durable.FOLDER_MODE)
            self.is_new = not (path / KEY).exists()
            self.key = load_key(path / KEY, insecure_seed)
            if self.is_new:
                keep_content(path / README, NOTE)

    def check_terms(self, terms: ShardTerms) -> None:
        """Refuses terms that differ from those of the folder's shards; the first shard records its own.

        Raises:
            UsageFault: they differ; names the field that does.
            RunFailed: they can't be written.
        """
        place = self.path / TERMS
        try:
            keep_content(place, (json.dumps(asdict(terms), indent=1) + "\n").encode())
            before = ShardTerms.read(parse_object(read_bytes(place), TERMS))
        except OSError as error:
            raise RunFailed(f"{place}: can't be written: {error.strerror}", "make room on the disk") from None
        except ContentError as error:
            raise UsageFault(f"{place}: {error}", "start in another folder, with --out") from None
        terms.check_same(before, place)

    def find(self, terms: ShardTerms, shard: TeacherShard) -> bool:
        """Returns whether the folder has the votes of a shard, whole and with these terms.

        Raises:
            UsageFault: the file's terms are others.
            DataFault: the file is damaged, or no shard.
        """
        file = self.path / shard.file
        if not os.path.lexists(file):
            return False
        read_votes(file, shard, terms, self.key)
        return True

    def train(self, terms: ShardTerms, shard: TeacherShard, train: Callable[[VoteStore], bool]) -> Path:
        """Has a shard trained by `train`, and seals its votes; returns the file.

        `train` gets the store for each teacher's votes, with those that an earlier process kept.

        Raises:
            UsageFault: another process trains this shard.
            Interrupted: `train` was stopped.
            RunFailed: the folder can't be written.
        """
        file, partial = self.path / shard.file, self.path / f"partial-{shard.number}-of-{shard.count}"
        with durable.writing(self.path, "make room on the disk; the same command continues"):
            partial.mkdir(mode=durable.FOLDER_MODE, exist_ok=True)
            with _locking(partial, shard):
                store = VoteStore(partial / "teachers", terms.asked, terms.classes)
                if not train(store):
                    raise Interrupted(f"stopped within shard {shard}", "the same command continues it")
                votes_TQ = store.votes(shard.teachers(terms.teachers))
                durable.replace_file(file, seal_votes(terms, shard, votes_TQ, self.key))
                shutil.rmtree(partial, ignore_errors=True)
        return file


@contextmanager
def _locking(folder: Path, shard: TeacherShard) -> Iterator[None]:
    """Keeps other processes from training this shard inside the block; does nothing on Windows."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    file = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageFault(
                f"{folder}: another process trains shard {shard}", "give each process a shard of its own"
            ) from None
        yield
    finally:
        os.close(file)


def read_key(folder: Path) -> bytes:
    """Reads the key of an existing folder of shards.

    Raises:
        UsageFault: it is no such folder.
        RunFailed: its key can't be read.
    """
    key = folder / KEY
    if not key.is_file() or key.stat().st_size != KEY_BYTES:
        raise UsageFault(f"{folder}: no folder of `dprecipe teachers`", "name the one that was given as its --out")
    return load_key(key)


def list_files(folder: Path) -> list[tuple[TeacherShard, Path]]:
    """Lists the shard files of a folder.

    Raises:
        DataFault: a folder, a link or anything else has the name of one; or the folder can't be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataFault(f"{folder}: can't be read: {error.strerror}", "check the folder's owner") from None
    found = [(shard, entry) for entry in entries if (shard := TeacherShard.named(entry.name)) is not None]
    for _, entry in found:
        if entry.is_symlink() or not entry.is_file():
            raise DataFault(f"{entry}: not a file", AGAIN)
    return found
