"""Checks that records declared public are not private ones under another name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import Role
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.records import Records, RecordSource
from dprecipe.data.schema import AnySource, Data
from dprecipe.faults import DataFault

ROWS = 4096
"""Records processed at a time."""


def check_files(data: Data, root: Path) -> None:
    """Checks that neither `data.public` nor a public `data.test` reads records of `data.train`, also through links.

    Ranges that do not overlap are disjoint where both count over the same files. `check_records` compares different
    arrays of one file. Equal paths are for the rules of a recipe, and missing files for the reader.

    Raises:
        DataFault: one of them does.
    """
    for role, source, same in _in_training_files(data, root):
        if source.part == data.train.part and not (same and _ranges_disjoint(data.train, source)):
            raise DataFault(
                f"{_paths(source)}: data.{role} is declared public, but this is "
                + ("the file" if len(source.features_files(root)) == 1 else "or holds a file")
                + " of the training records",
                "name other records: another file, or ranges (`records`) of the same files that do not overlap",
            )


def check_records(data: Data, root: Path, records: Callable[[Role], RecordSource | None]) -> None:
    """Checks that no array of the training file that is declared public contains a training record.

    Records are compared by their features before `preprocess`, and only between arrays of one file: a copy in another
    file is not detected. `records`: returns the records of a role as read from the file, or None if they were not read.

    Raises:
        DataFault: one contains a training record.
    """
    for role, source, _ in _in_training_files(data, root):
        if source.part == data.train.part:
            continue
        private, public = records("train"), records(role)
        if isinstance(private, Records) and isinstance(public, Records) and _share_a_record(private, public):
            raise DataFault(
                f"{_paths(source)}: array {source.part!r} is declared public (data.{role}), but one of its "
                "records equals a training record",
                "remove the training records from it; if the records are other people's and equal by chance, save "
                "them in a separate file",
            )


def _paths(source: AnySource) -> str:
    return ", ".join(source.features_paths[:3])


def _in_training_files(data: Data, root: Path) -> Iterator[tuple[Role, AnySource, bool]]:
    """Yields the sources declared public that read a training file, and whether all files of both are the same."""
    sources: tuple[tuple[Role, AnySource | None], ...] = (("public", data.public), ("test", data.test_source))
    public = [(role, source) for role, source in sources if source is not None and source.access == "public"]
    mine = _identify(data.train.features_files(root)) if public else []
    for role, source in public:
        theirs = _identify(source.features_files(root))
        if not set(mine).isdisjoint(theirs):
            yield role, source, mine == theirs


def _identify(files: list[Path]) -> list[tuple[int, int]]:
    """Returns the identity of each file, whatever its name: device and number."""
    return [(status.st_dev, status.st_ino) for status in map(Path.stat, files)]


def _ranges_disjoint(one: AnySource, other: AnySource) -> bool:
    if one.records is None or other.records is None:
        return False
    (start, end), (first, last) = one.records, other.records
    return last <= start or end <= first


def _share_a_record(one: Records, other: Records) -> bool:
    """Returns True if a record of one has the same features as a record of the other."""
    if one.features.shape[1:] != other.features.shape[1:]:
        return False
    numbers = np.random.default_rng(0).integers(1, 1 << 63, one.features[:1].size, np.uint64) | np.uint64(1)
    hashes_N, hashes_M = _hashes(one.features, numbers), _hashes(other.features, numbers)
    common = np.intersect1d(hashes_N, hashes_M)
    # Equal hashes nearly always mean equal records; the comparison decides.
    for value in common:
        rows, others = one.features[hashes_N == value], other.features[hashes_M == value]
        if {row.tobytes() for row in _rows(rows)} & {row.tobytes() for row in _rows(others)}:
            return True
    return False


def _hashes(features: NDArray[np.generic], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a number for each record, equal for equal features."""
    hashes = np.empty(len(features), np.uint64)
    for start in range(0, len(features), ROWS):
        bits = _rows(features[start : start + ROWS]).view(np.uint32)
        with np.errstate(over="ignore"):
            hashes[start : start + ROWS] = (bits.astype(np.uint64) * numbers).sum(axis=1, dtype=np.uint64)
    return hashes


def _rows(features: NDArray[np.generic]) -> NDArray[np.float32]:
    """Returns each record's features as models read them, (N, D), without negative zeros."""
    flat: NDArray[np.float32] = np.ascontiguousarray(
        prepare_features(features, ()).reshape(len(features), -1)
    ) + np.float32(0)
    return flat
