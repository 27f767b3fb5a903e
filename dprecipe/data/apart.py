"""Records that are declared public are not the private ones under another name."""

from __future__ import annotations

from pathlib import Path

from dprecipe.data.schema import AnySource, Data, Digits, Idx, Npz, PublicDigits, PublicIdx, PublicNpz
from dprecipe.faults import DataFault


def hold_apart(data: Data, root: Path) -> None:
    """Neither `data.public` nor a public `data.test` lies in the file of `data.train`, whatever they are called.

    Parts of one file whose ranges of records don't meet are apart, and so are two arrays of one NumPy archive. Paths
    that are equal are for the rules of a recipe; here links are followed. Files that are not there are for the reader.

    Raises:
        DataFault: one of them does.
    """
    for role, source in (("public", data.public), ("test", data.test)):
        if source is None or source.access != "public" or _disjoint(data.train, source):
            continue
        mine, theirs = _file(data.train), _file(source)
        if mine is None or theirs is None:
            continue
        files = (root / mine, root / theirs)
        if all(file.exists() for file in files) and files[0].samefile(files[1]):
            raise DataFault(
                f"{theirs}: data.{role} is declared public, and this is the same file as that of the training records",
                "name other records: another file, or ranges (`records`) of one file that don't meet",
            )


def _disjoint(train: AnySource, other: AnySource) -> bool:
    if train.records is not None and other.records is not None:
        (start, end), (first, last) = train.records, other.records
        if last <= start or end <= first:
            return True
    return isinstance(train, Npz) and isinstance(other, Npz | PublicNpz) and train.features != other.features


def _file(source: AnySource) -> str | None:
    """The file of the features; None for the embedded records, which have none."""
    match source:
        case Digits() | PublicDigits():
            return None
        case Idx() | PublicIdx():
            return source.images
        case _:
            return source.path
