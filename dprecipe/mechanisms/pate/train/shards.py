"""Votes of teachers on disk: a file for each teacher of a run, and one for a shard that is trained before it.

A shard file is four bytes with the length of a header, the header (JSON), the votes, teacher by teacher, and a keyed
digest of all of it. So a file that was damaged, or made by someone without the key of the partition, is refused. The
file is read as untrusted input: its largest size is known before it is read, and nothing in it is run.

Axes: T teachers of a shard, Q queries.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.faults import DataFault, RunFailed, UsageFault
from dprecipe.mechanisms.pate.aggregators import Counts
from dprecipe.release.untrusted import ContentError, parse_object

SCHEMA = "dprecipe.teacher-votes/v1"
MAX_HEADER = 1 << 14
MAX_TEXT = 1_000
MAX_NUMBER = 1 << 31
DIGEST_BYTES = 32
NAMED = re.compile(r"shard-([1-9][0-9]{0,4})-of-([1-9][0-9]{0,4})\.votes")
AGAIN = "delete it, and train the shard again: dprecipe teachers"


@final
@dataclass(frozen=True, order=True, slots=True)
class TeacherShard:
    """Shard `number`, from 1, of `count`."""

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> TeacherShard:
        """Parses a shard such as "3/40".

        Raises:
            UsageFault: the text is no shard.
        """
        known = re.fullmatch(r"([0-9]{1,5})/([0-9]{1,5})", text)
        shard = TeacherShard(int(known[1]), int(known[2])) if known else TeacherShard(0, 0)
        if not 1 <= shard.number <= shard.count:
            raise UsageFault(f"--shard {text}: expected I/N with 1 <= I <= N", "write for example --shard 3/40")
        return shard

    @staticmethod
    def named(name: str) -> TeacherShard | None:
        """Returns the shard whose file has this name; None if it is no shard's."""
        known = NAMED.fullmatch(name)
        return TeacherShard(int(known[1]), int(known[2])) if known else None

    @property
    def file(self) -> str:
        """Returns the name of its file."""
        return f"shard-{self.number}-of-{self.count}.votes"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def teachers(self, teachers: int) -> range:
        """Returns the shard's part of `teachers` teachers: consecutive ones. Shards differ in size by at most one.

        Raises:
            UsageFault: there are more shards than teachers.
        """
        if self.count > teachers:
            raise UsageFault(
                f"--shard {self}: the recipe has {teachers} teachers, fewer than shards",
                f"cut them into {teachers} shards at most",
            )
        return range((self.number - 1) * teachers // self.count, self.number * teachers // self.count)


@final
@dataclass(frozen=True, slots=True)
class ShardTerms:
    """Terms that determine the votes of all shards of a run. Every field is the same in all of them."""

    plan: str
    version: str
    lesson: str
    """Digest of the settings that every teacher shares."""
    records: str
    """Keyed digest of the training records and of the teacher of each."""
    queries: str
    """Keyed digest of the public records that are asked about."""
    device: str
    machine: str
    """Kind of machine, which decides how sums are rounded."""
    teachers: int
    asked: int
    """Number of queries."""
    classes: int

    @staticmethod
    def read(content: Mapping[str, Any]) -> ShardTerms:
        """Reads the terms from a JSON object.

        Raises:
            ContentError: the object does not have this form.
        """
        names = {field.name: field.type for field in fields(ShardTerms)}
        if content.keys() != names.keys():
            raise ContentError("not the terms of a shard")
        for name, kind in names.items():
            value = content[name]
            is_text = kind == "str" and type(value) is str and len(value) <= MAX_TEXT
            is_number = kind == "int" and type(value) is int and 1 <= value < MAX_NUMBER
            if not (is_text or is_number):
                raise ContentError(f"{name}: not of a shard's terms")
        return ShardTerms(**content)

    def find_difference(self, other: ShardTerms) -> str | None:
        """Returns the name of the first field that differs; None if none does."""
        mine, theirs = asdict(self), asdict(other)
        return next((name for name, value in mine.items() if theirs[name] != value), None)

    def check_same(self, other: ShardTerms, place: Path) -> None:
        """Refuses `other`, the terms found in `place`, if they differ.

        Raises:
            UsageFault: they differ; names the field that does.
        """
        name = self.find_difference(other)
        if name is not None:
            difference, remedy = DIFFERENCES[name]
            shown = f": {getattr(other, name)}, not {getattr(self, name)}" if name in SHOWN else ""
            raise UsageFault(f"{place}: {difference}{shown}", remedy)


SHOWN = ("version", "device", "machine")
_SAME = "train these teachers again with this recipe, in another folder"
DIFFERENCES: Mapping[str, tuple[str, str]] = {
    "plan": ("votes of another plan", "give the same recipe, and the same --set, as `dprecipe teachers` had"),
    "version": ("votes of another version of dprecipe", "install one version on every machine"),
    "lesson": (
        "votes of teachers with another runtime.seed, runtime.physical_batch or runtime.insecure",
        "set them to the values with which the shards were trained",
    ),
    "records": ("votes of teachers of other training records", _SAME),
    "queries": ("votes on other public records", _SAME),
    "device": ("votes of teachers on another device", "set runtime.device to the same for all shards and the run"),
    "machine": (
        "votes of teachers of another kind of machine, which rounds differently",
        "train all shards on machines of one kind (of Slurm: --constraint)",
    ),
    "teachers": ("votes of another number of teachers", _SAME),
    "asked": ("votes on another number of queries", _SAME),
    "classes": ("votes for another number of classes", _SAME),
}
"""For each field of the terms: the meaning of a difference, and the remedy."""


def vote_type(classes: int) -> np.dtype[Any]:
    """Returns the integer type that votes are kept in."""
    return np.dtype("<u2" if classes <= 1 << 16 else "<u4")


def derive_key(key: bytes, purpose: str) -> bytes:
    """Derives a key for one purpose from the partition's key."""
    return hmac.digest(key, f"dprecipe teachers, {purpose}".encode(), "sha256")


def seal_votes(terms: ShardTerms, shard: TeacherShard, votes_TQ: NDArray[Any], key: bytes) -> bytes:
    """Returns the content of a shard file. `key` is that of the partition."""
    header = {"schema": SCHEMA, "shard": shard.number, "shards": shard.count, **asdict(terms)}
    text = json.dumps(header).encode()
    content = b"".join([len(text).to_bytes(4, "big"), text, votes_TQ.astype(vote_type(terms.classes)).tobytes()])
    return content + _digest(content, key)


def read_terms(path: Path, shard: TeacherShard) -> ShardTerms:
    """Reads the terms in the header of a shard file; does not check the digest.

    Raises:
        DataFault: it is no shard file, or not the shard of its name.
    """
    return _parse_terms(path, shard, _read_start(path, 4 + MAX_HEADER))


def read_votes(path: Path, shard: TeacherShard, terms: ShardTerms, key: bytes) -> NDArray[Any]:
    """Reads and checks the votes of a shard with these terms, (T, Q).

    The file is read once, so the content that is checked is used, even if the file is replaced meanwhile.

    Raises:
        UsageFault: the file's terms differ.
        DataFault: it is no shard file, or it is damaged.
    """
    votes = len(shard.teachers(terms.teachers)), terms.asked
    kind = vote_type(terms.classes)
    size = votes[0] * votes[1] * kind.itemsize
    content = _read_start(path, 4 + MAX_HEADER + size + DIGEST_BYTES + 1)
    terms.check_same(_parse_terms(path, shard, content), path)
    start = 4 + int.from_bytes(content[:4], "big")
    if len(content) != start + size + DIGEST_BYTES:
        raise _damaged(path, "it has another size than its votes")
    if not hmac.compare_digest(_digest(content[:-DIGEST_BYTES], key), content[-DIGEST_BYTES:]):
        raise _damaged(path, "its digest differs: it changed, or was made with another key")
    votes_TQ = np.frombuffer(content, kind, votes[0] * votes[1], start).reshape(votes)
    if bool((votes_TQ >= terms.classes).any()):
        raise _damaged(path, "it holds a vote for no class")
    return votes_TQ


def _read_start(path: Path, size: int) -> bytes:
    """Reads at most the first `size` bytes of a file."""
    try:
        with open(durable.open_regular(path, os.O_RDONLY), "rb") as file:
            return file.read(size)
    except OSError as error:
        raise DataFault(f"{path}: can't be read: {error.strerror}", "check the disk and the file's owner") from None


def _parse_terms(path: Path, shard: TeacherShard, content: bytes) -> ShardTerms:
    """Parses the terms in the header of a shard file that begins with `content`."""
    length = int.from_bytes(content[:4], "big")
    try:
        header = parse_object(content[4 : 4 + length] if 2 <= length <= MAX_HEADER else b"", "the header")
        stated = (header.pop("schema", None), header.pop("shard", None), header.pop("shards", None))
        if stated != (SCHEMA, shard.number, shard.count):
            raise ContentError("the header is that of another file")
        return ShardTerms.read(header)
    except ContentError as error:
        raise _damaged(path, str(error)) from None


def _digest(content: bytes, key: bytes) -> bytes:
    return hmac.digest(derive_key(key, "votes"), content, hashlib.sha256)


def _damaged(path: Path, why: str) -> DataFault:
    return DataFault(f"{path}: no votes of a shard, or damaged: {why[:MAX_TEXT]}", AGAIN)


@final
class VoteStore:
    """The folder of votes: `<teacher>.npy` holds the class that a teacher votes for on each of Q queries."""

    def __init__(self, folder: Path, queries: int, classes: int) -> None:
        self.folder = folder
        self._queries = queries
        self._classes = classes
        self._dtype = vote_type(classes)
        whole = io.BytesIO()
        np.save(whole, np.zeros(queries, self._dtype), allow_pickle=False)
        self._header = whole.getvalue()[: whole.tell() - queries * self._dtype.itemsize]

    def missing(self, teachers: Iterable[int]) -> list[int]:
        """Lists those of the teachers whose votes are absent or damaged."""
        names = {entry.name for entry in os.scandir(self.folder)} if self.folder.exists() else set()
        return [teacher for teacher in teachers if f"{teacher}.npy" not in names or self._read(teacher) is None]

    def put(self, teacher: int, votes_Q: NDArray[Any]) -> None:
        """Keeps a teacher's votes, whole or not at all.

        Raises:
            RunFailed: they can't be written.
        """
        target = self.folder / f"{teacher}.npy"
        try:
            self.folder.mkdir(mode=durable.FOLDER_MODE, exist_ok=True)
            with durable.replacing_file(target) as file:
                np.save(file, votes_Q.astype(self._dtype), allow_pickle=False)
        except OSError as error:
            raise RunFailed(
                f"{target}: can't keep a teacher's votes: {error.strerror}",
                "make room on the disk, then continue with --resume",
            ) from None

    def counts(self, teachers: int) -> Counts:
        """Counts the teachers that vote for each class, (Q, M).

        Raises:
            RunFailed: the votes of a teacher are gone.
        """
        counts_QM = np.zeros((self._queries, self._classes), np.int32)
        queries = np.arange(self._queries)
        for teacher in range(teachers):
            counts_QM[queries, self._read_kept(teacher)] += 1
        return counts_QM

    def votes(self, teachers: Sequence[int]) -> NDArray[Any]:
        """Reads the votes of these teachers, (T, Q).

        Raises:
            RunFailed: the votes of a teacher are gone.
        """
        votes_TQ = np.zeros((len(teachers), self._queries), self._dtype)
        for row, teacher in enumerate(teachers):
            votes_TQ[row] = self._read_kept(teacher)
        return votes_TQ

    def _read_kept(self, teacher: int) -> NDArray[Any]:
        votes_Q = self._read(teacher)
        if votes_Q is None:
            raise RunFailed(f"{self.folder}: the votes of teacher {teacher} are gone", "continue with --resume")
        return votes_Q

    def _read(self, teacher: int) -> NDArray[Any] | None:
        """Reads a teacher's votes, (Q,); returns None if they are absent or damaged."""
        # Only the exact header that `put` writes is accepted: no other header is parsed.
        start, size = self._header, self._queries * self._dtype.itemsize
        try:
            with open(durable.open_regular(self.folder / f"{teacher}.npy", os.O_RDONLY), "rb") as file:
                content = file.read(len(start) + size + 1)
        except OSError:
            return None
        if not content.startswith(start) or len(content) != len(start) + size:
            return None
        votes_Q: NDArray[Any] = np.frombuffer(content, self._dtype, self._queries, len(start))
        return votes_Q if bool((votes_Q < self._classes).all()) else None


def save_votes(store: VoteStore, teachers: Sequence[int], votes_TQ: NDArray[Any]) -> None:
    """Keeps the votes of several teachers, (T, Q)."""
    for teacher, votes_Q in zip(teachers, votes_TQ, strict=True):
        store.put(teacher, votes_Q)
