"""`npz`: arrays in a NumPy archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dprecipe.data.sources.base import (
    ACCESS,
    RANGE,
    RECORDS,
    UNREAD,
    Access,
    Classes,
    FileSource,
    Labelled,
    Range,
    Records,
    Shape,
    empty_range,
    not_one_kind,
)
from dprecipe.faults import Finding
from dprecipe.language.base import Text

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading


class _Npz(FileSource):
    if TYPE_CHECKING:
        features: str
        shape: Shape

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def part(self) -> str:
        return self.features


class Npz(_Npz, Labelled):
    """Arrays in a NumPy archive; unsigned bytes become [0, 1], other numbers stay as they are."""

    source: Literal["npz"]
    path: Text
    features: Text = "features"
    labels: Text = "labels"
    shape: Shape = Field(description="of one record's features, checked against the file")
    classes: Classes | None = Field(None, description="for integer labels 0 … classes-1")
    range: Range | None = Field(None, description=RANGE)
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("features", "labels", "shape", "classes", "range")

    @property
    def class_count(self) -> int:
        return self.classes or 1

    @property
    def target(self) -> tuple[float, float] | None:
        return None if self.range is None else (self.range[0], self.range[1])

    @property
    def described(self) -> frozenset[str]:
        return frozenset((self.features, self.labels))

    @property
    def label_columns(self) -> frozenset[str]:
        return frozenset((self.labels,))

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from not_one_kind({"classes": self.classes, "range": self.range}, path)
        yield from empty_range(self.range, f"{path}.range")

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_npz import read_npz

        return read_npz(self.path, self.features, self.shape, self, self.records, root, reading)


class PublicNpz(_Npz):
    """An array in a NumPy archive; no labels."""

    source: Literal["npz"]
    path: Text
    features: Text = "features"
    labels: Text | None = Field(None, description=UNREAD)
    shape: Shape = Field(description="of one record's features, checked against the file")
    classes: Classes | None = Field(None, description=UNREAD)
    range: Range | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("shape",)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_npz import read_npz

        return read_npz(self.path, self.features, self.shape, None, self.records, root, reading)
