"""Prepared copies: what a source was read to, kept in a folder for later runs, and mapped into memory.

    FOLDER/<key>/manifest.json   what each part is, and digests of its blocks; written last
    FOLDER/<key>/features …      the parts: plain arrays
    FOLDER/<key>.lock            held while the copy is written, read for the first time or deleted
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
from numpy.typing import NDArray

from dprecipe import __version__, durable
from dprecipe.data.counts import ColumnCounts, SourceCounts
from dprecipe.data.raw import Raw, TextValues
from dprecipe.data.storage import MappedTexts, Storage, disk_fault, map_array, text_arrays
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault
from dprecipe.screen import write_note

SCHEMA = "dprecipe.prepared/v1"
BLOCK_BYTES = 64 << 20
MANIFEST = "manifest.json"
SECRET, SECRET_BYTES = "secret", 32
WRITING, LOCK = ".writing", ".lock"
KEY_LETTERS = 64
TYPES = frozenset(("|u1", "<f4", "<i8"))
BY_CONTENT = 10_000
"""A source of more files is known by their names, sizes and times of change."""


def find_folder(declared: str | None, recipe_file: str | Path | None) -> Path | None:
    """The folder of copies: `runtime.prepared`, relative to the recipe, else `$DPRECIPE_PREPARED`; None: nowhere."""
    if declared is not None:
        return (Path() if recipe_file is None else Path(recipe_file).resolve().parent) / declared
    from_environment = os.environ.get("DPRECIPE_PREPARED", "")
    return Path(from_environment) if from_environment else None


def digest_files(files: Sequence[Path]) -> list[str]:
    """What the files hold; of more than `BY_CONTENT`, when they changed. Raises `OSError`."""
    if len(files) > BY_CONTENT:
        return [f"{file.name} {_changed(file)}" for file in files]
    return [" ".join(digest_blocks(file)) for file in files]


def _changed(file: Path) -> tuple[int, int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def digest_blocks(file: Path) -> list[str]:
    """The SHA-256 of each block of a file, by as many threads as there are processors. Raises `OSError`."""
    starts = range(0, file.stat().st_size, BLOCK_BYTES)
    with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="digest") as pool:
        return list(pool.map(partial(_digest_block, file), starts))


def _digest_block(file: Path, start: int) -> str:
    digest, left = hashlib.sha256(), BLOCK_BYTES
    with open(durable.open_regular(file, os.O_RDONLY), "rb") as stream:
        stream.seek(start)
        while left and (part := stream.read(min(1 << 20, left))):
            digest.update(part)
            left -= len(part)
    return digest.hexdigest()


@final
class Copy:
    """The copy of one key, while its lock is held; made by `open_copy`."""

    def __init__(
        self,
        folder: Path,
        key: str,
        files: Sequence[Path],
        names: Sequence[str],
        before: Sequence[tuple[int, int, int]],
    ) -> None:
        """`files`: those of the source, and their states `before` the key was made. `names`: what the recipe calls
        them."""
        self.path, self._draft = folder / key, folder / f"{key}{WRITING}"
        self._files, self._names, self._before = files, names, list(before)
        self.storage = Storage(0, self._open, folder)
        """Where the parts of a copy in the making are put."""

    def load(self) -> tuple[Raw, SourceCounts] | None:
        """The records of the copy; None where there is none, or it is damaged: then it is thrown away."""
        if not self.path.exists():
            return None
        try:
            return self._load()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Its key is no name for a log: a digest of private records tells whoever has a guess of them.
            place = self.path.parent
            write_note(f"{place}: a prepared copy is damaged; it is thrown away, and the records are read again")
            shutil.rmtree(self.path, ignore_errors=True)
            return None

    def publish(self, raw: Raw, counts: SourceCounts) -> None:
        """Keep what `storage` was given, and `raw` was made of.

        Raises:
            DataFault: the disk refuses.
        """
        try:
            if [_changed(file) for file in self._files] != self._before:
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
        """Throw away what is left of a copy in the making."""
        shutil.rmtree(self._draft, ignore_errors=True)

    def _open(self, part: str) -> BinaryIO:
        self._draft.mkdir(durable.FOLDER_MODE, exist_ok=True)
        return open(durable.open_regular(self._draft / part, os.O_RDWR | os.O_CREAT | os.O_EXCL), "w+b")

    def _describe(self, part: str, array: NDArray[Any]) -> dict[str, Any]:
        path = self._draft / part
        digests = []
        if array.size:
            durable.sync_folder(path)
            digests = digest_blocks(path)
        return {"shape": array.shape, "type": array.dtype.str, "digests": digests}

    def _load(self) -> tuple[Raw, SourceCounts]:
        content = json.loads(durable.read_bytes(self.path / MANIFEST))
        if content["schema"] != SCHEMA:
            raise ValueError("not a prepared copy")
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
        return records, SourceCounts(**{**counts, "columns": columns})

    def _map(self, name: str, part: dict[str, Any]) -> NDArray[Any]:
        """A part, every byte of which is as it was written. Raises `OSError`, `ValueError`."""
        shape, path = tuple(map(int, part["shape"])), self.path / name
        if part["type"] not in TYPES or min(shape) < 0 or name != Path(name).name:
            raise ValueError("not a part of a copy")
        dtype = np.dtype(part["type"])
        if math.prod(shape) == 0:
            return np.zeros(shape, dtype)
        with open(durable.open_regular(path, os.O_RDONLY), "rb") as file:
            if os.fstat(file.fileno()).st_size != math.prod(shape) * dtype.itemsize:
                raise ValueError("cut off")
            if digest_blocks(path) != part["digests"]:
                raise ValueError("changed")
            return map_array(file, shape, dtype)


def _parts_of(raw: Raw) -> dict[str, NDArray[Any]]:
    """All arrays of records that were put into files, by their parts' names (`dprecipe.data.collector`)."""
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
def open_copy(folder: Path, declared: object, files: Sequence[Path], names: Sequence[str]) -> Iterator[Copy]:
    """The copy of these files as they are read by what is `declared` (JSON), for this process alone while the block
    lasts: another one that needs it waits.

    Raises:
        DataFault: a file of the source can't be read, or the disk refuses.
    """
    try:
        before, digests = [_changed(file) for file in files], digest_files(files)
    except OSError as error:
        raise DataFault(
            f"{names[0] if names else 'a file'}: can't be read ({error.strerror})", "check its permissions"
        ) from error
    description = json.dumps([SCHEMA, __version__, sys.byteorder, declared, digests])
    try:
        folder.mkdir(durable.FOLDER_MODE, parents=True, exist_ok=True)
        secret = _read_secret(folder / SECRET)
        key = hashlib.blake2b(description.encode(), key=secret, digest_size=KEY_LETTERS // 2).hexdigest()
        locked = _lock(folder / f"{key}{LOCK}")
    except OSError as error:
        raise disk_fault(error, folder) from error
    copy = Copy(folder, key, files, names, before)
    try:
        copy.clean()  # of a process that was killed
        yield copy
    finally:
        copy.clean()
        os.close(locked)


def _read_secret(path: Path) -> bytes:
    """The secret of a folder, made once. With it a copy's key, which lists and logs may show, tells nothing of the
    files that it is a digest of: nobody can try out which files they are. Raises `OSError`."""
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
    """The open file of a lock that this process holds. Raises `OSError`, `BlockingIOError` where it is not to wait."""
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
    """(key, bytes, the source's files as the recipe names them) of each copy, and of what processes that were killed
    have left, which has no files. Raises `OSError`."""
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


def delete_copy(folder: Path, name: str) -> None:
    """Delete a copy of `list_copies`. A run that has mapped it keeps what it has. Raises `OSError`; `BlockingIOError`
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
