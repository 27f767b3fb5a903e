"""Digests of weights and of training records, which processes of a run compare before it begins; in memory only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.records import RecordSource
from dprecipe.training.program.records import CHUNK_RECORDS
from dprecipe.training.publish.provenance import private_of


def digest_set(records: RecordSource) -> str:
    """Returns a digest of training records; for a custom source, of all that it gives. A unit that differs between
    processes would be in two parts of a batch, and could move the sum twice as far as is accounted for."""
    private = private_of(records)
    return digest_of(_read_all(records) if private is None else private)


def _read_all(records: RecordSource) -> Iterator[NDArray[Any]]:
    yield np.array([len(records), records.unit_count])
    if records.units is not None:
        yield np.asarray(records.units)
    for start in range(0, len(records), CHUNK_RECORDS):
        yield from map(np.asarray, records.batch(slice(start, min(len(records), start + CHUNK_RECORDS))))


def digest_of(parts: Iterable[NDArray[Any] | bytes]) -> str:
    """Returns a digest of the numbers, their types and shapes; sent to other processes of the run and never written to
    disk."""
    digest = hashlib.sha256()
    for part in parts:
        kind = f"bytes {len(part)}" if isinstance(part, bytes) else f"{part.dtype.str} {part.shape}"
        digest.update(f"{kind}\0".encode())
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).data)
    return digest.hexdigest()
