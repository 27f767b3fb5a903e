"""Records that are declared public are not the private ones under another name."""

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
"""Records that are looked at together."""


def check_files(data: Data, root: Path) -> None:
    """Neither `data.public` nor a public `data.test` reads what `data.train` reads, whatever the file is called.

    Parts of one file whose ranges of records don't meet are disjoint. Different arrays of one file are for
    `check_records`. Paths that are equal are for the rules of a recipe; here links are followed. Files that are not
    there are for the reader.

    Raises:
        DataFault: one of them does.
    """
    for role, source in _in_the_training_file(data, root):
        if source.part == data.train.part and not _ranges_disjoint(data.train, source):
            raise DataFault(
                f"{source.features_file}: data.{role} is declared public, and this is the same file as that of the "
                "training records",
                "name other records: another file, or ranges (`records`) of one file that don't meet",
            )


def check_records(data: Data, root: Path, records: Callable[[Role], RecordSource | None]) -> None:
    """No array of the training file that is declared public holds a training record. Only of arrays of one file are
    records compared, by their features as they are before `preprocess`: a copy in another file is nobody's to find.

    `records` are those of a role, as they were read from the file; None where they were not.

    Raises:
        DataFault: one does.
    """
    for role, source in _in_the_training_file(data, root):
        if source.part == data.train.part:
            continue
        private, public = records("train"), records(role)
        if isinstance(private, Records) and isinstance(public, Records) and _share_a_record(private, public):
            raise DataFault(
                f"{source.features_file}: array {source.part!r} is declared public (data.{role}), and a record in it "
                "equals one of the training records",
                "leave the training records out of it; if the records are other people's and equal by chance, save "
                "them in a file of their own",
            )


def _in_the_training_file(data: Data, root: Path) -> Iterator[tuple[Role, AnySource]]:
    """The sources declared public that lie in the file of the training records."""
    mine = data.train.features_file
    sources: tuple[tuple[Role, AnySource | None], ...] = (("public", data.public), ("test", data.test))
    for role, source in sources:
        theirs = None if source is None or source.access != "public" else source.features_file
        if source is None or mine is None or theirs is None:
            continue
        files = (root / mine, root / theirs)
        if all(file.exists() for file in files) and files[0].samefile(files[1]):
            yield role, source


def _ranges_disjoint(one: AnySource, other: AnySource) -> bool:
    if one.records is None or other.records is None:
        return False
    (start, end), (first, last) = one.records, other.records
    return last <= start or end <= first


def _share_a_record(one: Records, other: Records) -> bool:
    """Whether a record of one has the features of a record of the other."""
    if one.features.shape[1:] != other.features.shape[1:]:
        return False
    numbers = np.random.default_rng(0).integers(1, 1 << 63, one.features[:1].size, np.uint64) | np.uint64(1)
    hashes_N, hashes_M = _hashes(one.features, numbers), _hashes(other.features, numbers)
    common = np.intersect1d(hashes_N, hashes_M)
    # Equal hashes are nearly always equal records; that they are is seen by looking.
    for value in common:
        rows, others = one.features[hashes_N == value], other.features[hashes_M == value]
        if {row.tobytes() for row in _rows(rows)} & {row.tobytes() for row in _rows(others)}:
            return True
    return False


def _hashes(features: NDArray[np.generic], numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number for each record, equal for equal features."""
    hashes = np.empty(len(features), np.uint64)
    for start in range(0, len(features), ROWS):
        bits = _rows(features[start : start + ROWS]).view(np.uint32)
        with np.errstate(over="ignore"):
            hashes[start : start + ROWS] = (bits.astype(np.uint64) * numbers).sum(axis=1, dtype=np.uint64)
    return hashes


def _rows(features: NDArray[np.generic]) -> NDArray[np.float32]:
    """(N, D), each record's features as models read them; of zeros none is negative."""
    flat: NDArray[np.float32] = np.ascontiguousarray(
        prepare_features(features, ()).reshape(len(features), -1)
    ) + np.float32(0)
    return flat
