"""Partition of units among teachers: a keyed hash of a unit's identity decides, and nothing else.

Guarantees: the teacher of a unit depends on the unit's own identity and the key alone. So adding or removing one, or
replacing its records, leaves every other unit with its teacher and changes the part of one teacher. Nothing is
balanced, sorted or filtered, and no generator carries state from one unit to the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.faults import RunFailed

KEY_BYTES = 32
CHUNK = 1 << 16
"""Number of identities that are dealt at a time."""


def deal_parts(identities: Iterable[str], key: bytes, count: int) -> NDArray[np.int64]:
    """Returns the part, 0 … count-1, of each identity: the first 64 bits of HMAC-SHA256 under `key`, modulo `count`.

    Guarantees: to anyone without the key, the parts of distinct identities look independent and uniform (to within
    `count` × 2^-64).
    Source: RFC 2104.
    """
    keyed = hmac.new(key, digestmod="sha256")  # copied for each identity, so the key is absorbed only once

    def digest(identity: str) -> bytes:
        mac = keyed.copy()
        mac.update(identity.encode())
        return mac.digest()[:8]

    parts, digests = [np.zeros(0, np.int64)], map(digest, identities)
    while chunk := b"".join(itertools.islice(digests, CHUNK)):
        parts.append((np.frombuffer(chunk, dtype=">u8") % np.uint64(count)).astype(np.int64))
    return np.concatenate(parts)


def load_key(path: Path, insecure_seed: int | None = None) -> bytes:
    """Reads the key in the file; if there is no file, first draws a key from the operating system and writes it.

    For tests, the key is made from `insecure_seed`.

    Guarantees: a key that is returned is on disk whole.

    Raises:
        RunFailed: the file can't be read or written, or is not a key.
    """
    try:
        if not os.path.lexists(path):
            key = secrets.token_bytes(KEY_BYTES)
            if insecure_seed is not None:
                key = hashlib.sha256(f"dprecipe insecure partition {insecure_seed}".encode()).digest()
            keep_content(path, key)
        key = durable.read_bytes(path)
    except OSError as error:
        raise RunFailed(f"{path}: can't keep the partition's key: {error.strerror}", "make room on the disk") from None
    if len(key) != KEY_BYTES:
        raise RunFailed(f"{path}: not a partition's key", "start the run again in another folder")
    return key


def keep_content(path: Path, content: bytes) -> None:
    """Writes a private file unless it exists, whole or not at all, even if several processes try. Raises `OSError`."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(durable.open_regular(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
        file.write(content)
    durable.sync_folder(draft)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
    durable.sync_folder(path.parent)
