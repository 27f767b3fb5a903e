"""`npz`: arrays in a NumPy archive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dprecipe.data.columns import find_repeated
from dprecipe.data.sources.base import (
    ACCESS,
    COUNT,
    RANGE,
    RECORDS,
    SEVERAL,
    UNREAD,
    Access,
    Classes,
    Count,
    FileSource,
    Labelled,
    Range,
    Records,
    Several,
    Shape,
    choose_target,
)
from dprecipe.data.sources.label_checks import empty_range, not_one_kind
from dprecipe.data.targets import Target
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
    count: Count | None = Field(None, description=COUNT)
    several: Several | None = Field(None, description=f"{SEVERAL}, in an array (N, K) of 0 and 1")
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("features", "labels", "shape", "classes", "range", "count", "several")

    @property
    def target(self) -> Target:
        return choose_target(self.classes, self.range, self.count, self.several)

    @property
    def described(self) -> frozenset[str]:
        return frozenset((self.features, self.labels))

    @property
    def label_columns(self) -> frozenset[str]:
        return frozenset((self.labels,))

    def contradictions(self, path: str) -> Iterator[Finding]:
        kinds = {"classes": self.classes, "range": self.range, "count": self.count, "several": self.several}
        yield from not_one_kind(kinds, path)
        yield from empty_range(self.range, f"{path}.range")
        if self.several is not None:
            yield from find_repeated(self.several, f"{path}.several")

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
    count: Count | None = Field(None, description=UNREAD)
    several: Several | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("shape",)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_npz import read_npz

        return read_npz(self.path, self.features, self.shape, None, self.records, root, reading)
