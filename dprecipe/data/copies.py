"""Prepared copies: what a source was read to, kept in a folder for later runs, and mapped into memory.

    FOLDER/<key>/manifest.json   what each part is, and digests of its blocks; written last
    FOLDER/<key>/features …      the parts: plain arrays
    FOLDER/<key>.lock            held while the copy is written, opened, checked or deleted
    FOLDER/<key>.writing/        a copy in the making; left over by a process that was killed, it is thrown away

The key is a digest of the files' content, of what the recipe says of reading them, and of the version, with a secret of
the folder (FOLDER/secret): other files or another declaration have another copy.

| what happens | what a later run finds |
|---|---|
| a process is killed, or the disk is full, while it writes | no copy: it writes one |
| two processes need one copy at once | the second waits for the first, and reads its copy |
| a part is cut off or changed | the copy is thrown away and written again |
| a file of the source changes | another key |
| a file of the source changes while it is read | nothing: what was read is used once, and not kept |

Every byte of a file is read, of the source and of the copy, unless it is known unchanged (`known_digests`, which says
why that is safe).

A copy is private data, as its source is: files are for their owner alone (mode 0600), and are not encrypted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from dprecipe import __version__, durable
from dprecipe.data.counts import ColumnCounts, SequenceCounts, SourceCounts
from dprecipe.data.known_digests import KnownDigests, State, state_of
from dprecipe.data.raw import Raw, TextValues
from dprecipe.data.storage import MappedTexts, Storage, disk_fault, map_array, text_arrays
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault
from dprecipe.screen import write_note

SCHEMA = "dprecipe.prepared/v2"
MANIFEST = "manifest.json"
SECRET, SECRET_BYTES = "secret", 32
WRITING, LOCK = ".writing", ".lock"
KEY_LETTERS = 64
TYPES = frozenset(("|u1", "<f4", "<i8"))
BY_CONTENT = 10_000
"""A source of more files is known by their names, sizes and times of change."""


def find_folder(declared: str | None, recipe_file: str | Path | None) -> Path | None:
    """Returns the folder of copies: `runtime.prepared`, relative to the recipe, else `$DPRECIPE_PREPARED`; None:
    nowhere.
    """
    if declared is not None:
        return (Path() if recipe_file is None else Path(recipe_file).resolve().parent) / declared
    from_environment = os.environ.get("DPRECIPE_PREPARED", "")
    return Path(from_environment) if from_environment else None


def digest_files(files: Sequence[Path], known: KnownDigests) -> list[str]:
    """Returns digests of the files' content; for more than `BY_CONTENT`, of when they changed. Raises `OSError`."""
    if len(files) > BY_CONTENT:
        return [f"{file.name} {state_of(file)[:-1]}" for file in files]  # a device has another number after a restart
    return [known.digest(file) for file in files]


@final
class Copy:
    """The copy of one key, while its lock is held; made by `open_copy`."""

    def __init__(
        self,
        folder: Path,
        key: str,
        files: Sequence[Path],
        names: Sequence[str],
        before: Sequence[State],
        known: KnownDigests,
    ) -> None:
        """`files`: those of the source, and their states `before` the key was made. `names`: what the recipe calls
        them."""
        self.path, self._draft = folder / key, folder / f"{key}{WRITING}"
        self._files, self._names, self._before, self._known = files, names, list(before), known
        self.storage = Storage(0, self._open, folder)
        """Storage for the parts of the copy that is being made."""

    def load(self) -> tuple[Raw, SourceCounts] | None:
        """Returns the records of the copy; None where there is none, or it is damaged: then it is thrown away."""
        if not self.path.exists():
            return None
        try:
            return self._load()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Its key is no name for a log: a digest of private records confirms a guess of them.
            place = self.path.parent
            write_note(f"{place}: a prepared copy is damaged; it is thrown away, and the records are read again")
            shutil.rmtree(self.path, ignore_errors=True)
            return None

    def publish(self, raw: Raw, counts: SourceCounts) -> None:
        """Keeps what `storage` was given, and `raw` was made of.

        Raises:
            DataFault: the disk refuses.
        """
        try:
            if [state_of(file) for file in self._files] != self._before:
                return
            self._draft.mkdir(durable.FOLDER_MODE, exist_ok=True)
            parts = {name: self._describe(name, array) for name, array in _parts_of(raw).items()}
            texts = {name: column.start for name, column in raw.texts.items()}
            content = {
                "schema": SCHEMA,
                "version": __version__,
                "files": list(self._names),
                "parts": parts,
                "texts": texts,
                "units": raw.units,
                "counts": asdict(counts),
            }
            durable.replace_file(self._draft / MANIFEST, json.dumps(content).encode())
            durable.sync_folder(self._draft)
            os.rename(self._draft, self.path)
            durable.sync_folder(self.path.parent)
        except OSError as error:
            raise disk_fault(error, self.path.parent) from error

    def clean(self) -> None:
        """Deletes what is left of a copy that was being made."""
        shutil.rmtree(self._draft, ignore_errors=True)

    def _open(self, part: str) -> BinaryIO:
        self._draft.mkdir(durable.FOLDER_MODE, exist_ok=True)
        return open(durable.open_regular(self._draft / part, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")

    def _describe(self, part: str, array: NDArray[Any]) -> dict[str, Any]:
        path = self._draft / part
        digest = ""
        if array.size:
            durable.sync_folder(path)
            digest = self._known.digest_anew(path)
        return {"shape": array.shape, "type": array.dtype.str, "digest": digest}

    def _load(self) -> tuple[Raw, SourceCounts]:
        content = self._read_manifest()
        arrays = {name: self._map(name, part) for name, part in content["parts"].items()}
        identities = None
        if "numbers" in arrays:
            identities = Identities(MappedTexts(arrays["names"], arrays["names.ends"]), arrays["numbers"])
        elif "rows" in arrays:
            identities = Identities.numbers_in(arrays["rows"])
        texts = {
            name: TextValues(start, MappedTexts(arrays[f"texts.{number}"], arrays[f"texts.{number}.ends"]))
            for number, (name, start) in enumerate(content["texts"].items())
        }
        counts = content["counts"]
        columns = {name: ColumnCounts(**column) for name, column in counts["columns"].items()}
        records = Raw(arrays["features"], arrays["labels"], identities, texts, content["units"])
        sequences = SequenceCounts(**counts["sequences"])
        return records, SourceCounts(**{**counts, "columns": columns, "sequences": sequences})

    def _read_manifest(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(durable.read_bytes(self.path / MANIFEST))
        if content["schema"] != SCHEMA:
            raise ValueError("not a prepared copy")
        return content

    def _map(self, name: str, part: dict[str, Any]) -> NDArray[Any]:
        """Returns a part, unchanged since it was written. Raises `OSError`, `ValueError`."""
        shape, path = tuple(map(int, part["shape"])), self.path / name
        if part["type"] not in TYPES or min(shape) < 0 or name != Path(name).name:
            raise ValueError("not a part of a copy")
        dtype = np.dtype(part["type"])
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        with open(durable.open_regular(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size != math.prod(shape) * dtype.itemsize:
                raise ValueError("cut off")
            if self._known.digest(path) != part["digest"]:
                raise ValueError("changed")
            return map_array(file, shape, dtype)


def _parts_of(raw: Raw) -> dict[str, NDArray[Any]]:
    """Returns all arrays of records that were put into files, by their parts' names (`dprecipe.data.collector`)."""
    parts: dict[str, NDArray[Any]] = {"features": raw.features, "labels": raw.labels}
    texts = [(f"texts.{number}", column.values) for number, column in enumerate(raw.texts.values())]
    names = () if raw.identities is None else raw.identities.names
    if isinstance(names, np.ndarray):
        parts["rows"] = names
    elif raw.identities is not None:
        parts["numbers"] = raw.identities.of_record
        texts.append(("names", () if isinstance(names, range) else names))
    for name, values in texts:
        content, ends = text_arrays(values)
        parts |= {name: content, f"{name}.ends": ends}
    return parts


@contextmanager
def open_copy(
    folder: Path, declared: object, files: Sequence[Path], names: Sequence[str], anew: bool = False
) -> Iterator[Copy]:
    """Yields the copy of these files as they are read by what is `declared` (JSON), for this process alone while the
    block lasts: another one that needs it waits. `anew`: every byte of the files is read to find it, whatever was
    remembered.

    Raises:
        DataFault: a file of the source can't be read, or the disk refuses.
    """
    try:
        folder.mkdir(durable.FOLDER_MODE, parents=True, exist_ok=True)
        secret = _read_secret(folder / SECRET)
    except OSError as error:
        raise disk_fault(error, folder) from error
    known = KnownDigests(folder, secret, forgets=anew)
    try:
        before = [state_of(file) for file in files]
        digests = [known.digest(file) for file in files] if anew else digest_files(files, known)
    except OSError as error:
        raise DataFault(
            f"{names[0] if names else 'a file'}: can't be read ({error.strerror})", "check its permissions"
        ) from error
    description = json.dumps([SCHEMA, __version__, sys.byteorder, declared, digests])
    try:
        key = hashlib.blake2b(description.encode(), key=secret, digest_size=KEY_LETTERS // 2).hexdigest()
        locked = _lock(folder / f"{key}{LOCK}")
    except OSError as error:
        raise disk_fault(error, folder) from error
    copy = Copy(folder, key, files, names, before, known)
    try:
        copy.clean()  # of a process that was killed
        yield copy
    finally:
        known.save()
        copy.clean()
        os.close(locked)


def _read_secret(path: Path) -> bytes:
    """Returns the secret of a folder, made once. With it a copy's key, which lists and logs may show, tells nothing of
    the files that it is a digest of: guesses of the files can't be tried out. Raises `OSError`.
    """
    if not path.exists():
        draft = path.with_name(f"{SECRET}.{secrets.token_hex(8)}")
        durable.replace_file(draft, secrets.token_bytes(SECRET_BYTES))
        with suppress(FileExistsError):
            os.link(draft, path)  # whole or not at all; the first of several processes wins
        draft.unlink()
    content = durable.read_bytes(path)
    if len(content) != SECRET_BYTES:
        raise OSError(errno.EIO, f"{path.name} is damaged: delete it, and the copies beside it")
    return content


def _lock(path: Path, wait: bool = True) -> int:
    """Returns the open file of a lock that this process holds. Raises `OSError`, `BlockingIOError` where it is not to
    wait.
    """
    while True:
        file = durable.open_regular(path, os.O_RDWR | os.O_CREAT)
        if sys.platform == "win32":
            return file
        import fcntl

        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                write_note(f"{path.parent}: another process prepares the same copy; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.fstat(file).st_ino == path.stat().st_ino:  # or it was deleted meanwhile, with the copy
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def list_copies(folder: Path) -> list[tuple[str, int, tuple[str, ...]]]:
    """Returns (key, bytes, the source's files as the recipe names them) of each copy, and of what processes that
    were killed have left, which has no files. Raises `OSError`.
    """
    results: list[tuple[str, int, tuple[str, ...]]] = []
    for entry in sorted(folder.iterdir()):
        key = entry.name.removesuffix(WRITING)
        if not entry.is_dir() or not _is_key(key):
            continue
        size, files = sum(part.stat().st_size for part in entry.iterdir()), tuple[str, ...]()
        with suppress(OSError, ValueError, KeyError, TypeError):
            files = tuple(map(str, json.loads(durable.read_bytes(entry / MANIFEST))["files"]))
        results.append((entry.name, size, files))
    return results


def check_copy(folder: Path, name: str) -> bool:
    """Reads every byte of a copy of `list_copies`. False where one is not as it was written: then the copy is deleted.

    Raises:
        OSError: it can't be read; `BlockingIOError` where a process is at work on it.
    """
    if name.endswith(WRITING):
        return True  # the next run that needs it throws it away
    secret = _read_secret(folder / SECRET)
    locked = _lock(folder / f"{name}{LOCK}", wait=False)
    try:
        return Copy(folder, name, (), (), (), KnownDigests(folder, secret, forgets=True)).load() is not None
    finally:
        os.close(locked)


def delete_copy(folder: Path, name: str) -> None:
    """Deletes a copy of `list_copies`. A run that has mapped it keeps what it has. Raises `OSError`; `BlockingIOError`
    where a process is at work on it."""
    key = name.removesuffix(WRITING)
    lock = folder / f"{key}{LOCK}"
    locked = _lock(lock, wait=False)
    try:
        for path in (folder / key, folder / f"{key}{WRITING}"):
            if path.exists():
                shutil.rmtree(path)
        lock.unlink()
    finally:
        os.close(locked)


def _is_key(name: str) -> bool:
    return len(name) == KEY_LETTERS and set(name) <= set("0123456789abcdef")
