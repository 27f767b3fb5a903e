"""Partition of units among teachers, by a keyed hash of a unit's identity and nothing else; and the choice of queries.

Guarantees: the teacher of a unit depends on the unit's own identity and the key alone. So adding or removing one, or
replacing its records, leaves every other unit with its teacher and changes the part of one teacher. Nothing is
balanced, sorted or filtered, and no generator carries state from one unit to the next.

The queries are the first distinct public records. A repeated record is not asked again: its answer is replayed.

Axes: R public records, Q queries.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import itertools
import json
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe import durable
from dprecipe.data.preprocess import Floats
from dprecipe.data.records import Records
from dprecipe.faults import DataFault, RunFailed

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


NO_QUERY = -1


@final
@dataclass(frozen=True, slots=True, eq=False)
class ChosenQueries:
    """The public records that are asked, and the others to which their answers apply."""

    records: NDArray[np.int64]
    """Public record that each query is, (Q,)."""
    of_record: NDArray[np.int64]
    """Query that each public record is, or equals byte for byte, (R,); `NO_QUERY` for records that are not asked."""

    def labels(self, outcomes_Q: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the outcome of each public record's query, (R,); `NO_QUERY` if it has no query."""
        return np.where(self.of_record == NO_QUERY, NO_QUERY, outcomes_Q[self.of_record])


def digest_pending(records: object) -> NDArray[np.uint8] | None:
    """Returns digests, (R, 32), that tell apart records on which a paid step is pending; None if none is pending.

    They are digests of the records as read: their prepared values are not known before the paid step. Records that
    differ here and are equal afterwards are two queries, and each is paid for.
    """
    if not isinstance(records, Records) or records.next_stage is None:
        return None
    texts = [records.texts[name].values for name in sorted(records.texts)]
    digests = [
        hashlib.blake2b(row.tobytes() + json.dumps([column[index] for column in texts]).encode(), digest_size=32)
        for index, row in enumerate(records.features)
    ]
    return np.frombuffer(b"".join(digest.digest() for digest in digests), np.uint8).reshape(-1, 32)


def choose_queries(public: Floats | NDArray[np.uint8], max_queries: int) -> ChosenQueries:
    """Chooses the first `max_queries` distinct records of the public ones, (R, …).

    Raises:
        DataFault: there are fewer distinct records.
    """
    query_of_digest: dict[bytes, int] = {}
    firsts: list[int] = []
    of_record_R = np.full(len(public), NO_QUERY)
    for record, features in enumerate(np.ascontiguousarray(public)):
        digest = hashlib.blake2b(features.data, digest_size=32).digest()
        query = query_of_digest.setdefault(digest, len(query_of_digest))
        if query >= max_queries:
            continue
        of_record_R[record] = query
        if query == len(firsts):
            firsts.append(record)
    if len(query_of_digest) < max_queries:
        raise DataFault(
            f"data.public holds {len(query_of_digest)} different records, the plan puts {max_queries} queries",
            f"lower mechanism.queries.max to {len(query_of_digest)}, or name more public records"
            if query_of_digest
            else "name public records",
        )
    return ChosenQueries(np.array(firsts, np.int64), of_record_R)
