"""Remembered digests of files: a file that has not changed is not read again only to know what it holds.

    FOLDER/digests.json   for each file: its state when it was read, and its digest; both under the folder's secret

*What is remembered decides which copy a run takes, and nothing else.* The records that a run trains on are bound to its
ledger and certificate by a commitment to the arrays themselves, which is made again at every start, from every byte
that is used. So a digest that is wrongly remembered can make a run train on the records that a
file held before; it cannot make a certificate speak of other records than those, nor a resumed run change them. Code
that states something about the *files* (an account is bound to them; weights state which they were learned from) reads
them again (`forgets`), so that the statement is about the records that are used.

*A file counts as unchanged* if its size, its times of change of content and of state (mtime, ctime; in ns), its inode
and its device are those of then. A write sets ctime to the system's clock, and no program can set it back, as it can
mtime. A digest is remembered only

1. where the state before reading was that after it, and
2. where ctime was then at least `SETTLED_SECONDS` ago: times are counted in ticks, and a second change within one tick
   would leave no trace. A file that was just written is read once more at the next start.

| what is not seen | what remains |
|---|---|
| a change through memory that another program had mapped before | as above; `dprecipe copies --check` reads all |
| a disk that returns other bytes than were written | the commitment differs, and a resumed run refuses |
| a clock that was set back by more than `SETTLED_SECONDS`, and a change in just the same nanosecond | as above |
| where ctime is no time of change (Windows) | nothing is remembered |

Anyone who can write into the folder can write into the copies: none of this protects against them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import final

from dprecipe import durable

NAME = "digests.json"
BLOCK_BYTES = 64 << 20
SETTLED_SECONDS = 5.0
MAX_KNOWN = 50_000
"""Files that are remembered; of more, those that were read last."""
State = tuple[int, ...]
HAS_CTIME = os.name != "nt"


def state_of(file: Path) -> State:
    """Returns size, times of change in ns, inode and device of a file. Raises `OSError`."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


@final
class KnownDigests:
    """Digests of files; those in `folder` are known. `secret`: the folder's, so that neither a file's name
    nor what it holds can be guessed from what is kept."""

    def __init__(self, folder: Path, secret: bytes, forgets: bool = False) -> None:
        """`forgets`: nothing counts as known."""
        self._path, self._secret = folder / NAME, secret
        self._known = {} if forgets else self._read()
        self._is_new = False

    def digest(self, file: Path) -> str:
        """Returns the digest of a file's content under the secret: remembered, or computed. Raises `OSError`."""
        name, before = self._name(file), state_of(file)
        known = self._known.get(name)
        if known is not None and known[0] == list(before):
            return known[1]
        digest = self.digest_anew(file)
        age = time.time_ns() - before[2]
        if HAS_CTIME and age > SETTLED_SECONDS * 1e9 and state_of(file) == before:
            self._known.pop(name, None)
            self._known[name] = (list(before), digest)
            self._is_new = True
        return digest

    def digest_anew(self, file: Path) -> str:
        """Returns the digest of every byte of a file, whatever is remembered. Raises `OSError`."""
        return self._keyed(" ".join(digest_blocks(file)).encode())

    def save(self) -> None:
        """Keeps what is new for later processes; where the disk refuses, they read the files again."""
        if not self._is_new:
            return
        kept = dict(list({**self._read(), **self._known}.items())[-MAX_KNOWN:])
        with suppress(OSError):
            durable.replace_file(self._path, json.dumps(kept).encode())
            self._is_new = False

    def _name(self, file: Path) -> str:
        return self._keyed(os.fsencode(file.resolve()))

    def _keyed(self, content: bytes) -> str:
        return hashlib.blake2b(content, key=self._secret, digest_size=32).hexdigest()

    def _read(self) -> dict[str, tuple[list[int], str]]:
        with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
            content = json.loads(durable.read_bytes(self._path))
            return {str(name): (list(map(int, state)), str(digest)) for name, (state, digest) in content.items()}
        return {}


def forget_digests(folder: Path) -> None:
    """Remembers nothing: the next start reads every file. Raises `OSError`."""
    (folder / NAME).unlink(missing_ok=True)


def digest_blocks(file: Path) -> list[str]:
    """Returns the SHA-256 of each block of a file, by as many threads as there are processors. Raises `OSError`."""
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
