"""Sources of arrays: `digits`, which come with the package, `idx`, the format of MNIST, and `npz`, of NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from dprecipe.data.columns import find_repeated
from dprecipe.data.sources.base import (
    RECORDS,
    UNREAD,
    Access,
    FileSource,
    Labelled,
    PublicRecords,
    Records,
    Shape,
    SourceBlock,
    WithoutFiles,
)
from dprecipe.data.sources.labels import (
    COUNT,
    MISSING,
    RANGE,
    SEVERAL,
    Classes,
    Count,
    Missing,
    Range,
    Several,
    choose_target,
    empty_range,
    not_one_kind,
)
from dprecipe.data.targets import ClassTarget, Target
from dprecipe.faults import Finding
from dprecipe.language.base import SparseBlock, Text

DIGITS_SHAPE = (8, 8)
DIGITS_CLASSES = 10


class AnyDigits(WithoutFiles):
    """The embedded handwritten digits, in both blocks."""

    source: Literal["digits"]
    split: Literal["train", "test"]
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    is_embedded: ClassVar[bool] = True

    @property
    def record_shape(self) -> tuple[int, ...]:
        return DIGITS_SHAPE

    @property
    def has_names(self) -> bool:
        return False

    @property
    def part(self) -> str:
        return self.split


class Digits(Labelled, AnyDigits):
    """The embedded handwritten digits: 1,797 real 8×8 images, every fifth held out as `test`."""

    @property
    def target(self) -> Target:
        return ClassTarget(DIGITS_CLASSES)


class PublicDigits(PublicRecords, AnyDigits):
    """The embedded handwritten digits, without their labels."""


class AnyIdx(SourceBlock):
    """Images in the IDX format, in both blocks."""

    source: Literal["idx"]
    images: Text
    labels: Text | None
    shape: Shape = Field((28, 28), description="of one image, checked against the file")
    classes: Classes = 10
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("shape",)

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def has_names(self) -> bool:
        return False

    @property
    def files(self) -> Mapping[str, str]:
        return {"images": self.images}

    @property
    def features_paths(self) -> tuple[str, ...]:
        return (self.images,)


class Idx(Labelled, AnyIdx):
    """Images and labels in the IDX format of MNIST, plain or gzipped; pixels become [0, 1]."""

    labels: Text

    shared: ClassVar[tuple[str, ...]] = ("shape", "classes")

    @property
    def files(self) -> Mapping[str, str]:
        return {"images": self.images, "labels": self.labels}

    @property
    def target(self) -> Target:
        return ClassTarget(self.classes)


class PublicIdx(PublicRecords, AnyIdx):
    """Images in the IDX format; no labels."""

    labels: Text | None = Field(None, description=UNREAD)
    classes: ClassVar[None] = None  # type: ignore[misc]  # no key of this block


class AnyNpz(FileSource, SparseBlock):
    """Arrays in a NumPy archive, in both blocks."""

    left_out: ClassVar[tuple[str, ...] | None] = ("missing",)

    source: Literal["npz"]
    path: Text
    features: Text = "features"
    labels: Text | None = Field(None, description=UNREAD)
    shape: Shape = Field(description="of one record's features, checked against the file")
    classes: Classes | None = Field(None, description=UNREAD)
    range: Range | None = Field(None, description=UNREAD)
    count: Count | None = Field(None, description=UNREAD)
    several: Several | None = Field(None, description=UNREAD)
    missing: Missing | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Access

    shared: ClassVar[tuple[str, ...]] = ("shape",)

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def part(self) -> str:
        return self.features


class Npz(Labelled, AnyNpz):
    """Arrays in a NumPy archive; unsigned bytes become [0, 1], other numbers stay as they are."""

    labels: Text = "labels"
    classes: Classes | None = Field(None, description="for integer labels 0 … classes-1")
    range: Range | None = Field(None, description=RANGE)
    count: Count | None = Field(None, description=COUNT)
    several: Several | None = Field(None, description=f"{SEVERAL}, in an array (N, K) of 0 and 1")
    missing: Missing | None = Field(None, description=f"{MISSING}. NaN in an array of floats is missing")

    shared: ClassVar[tuple[str, ...]] = (
        "features",
        "labels",
        "shape",
        "classes",
        "range",
        "count",
        "several",
        "missing",
    )

    @property
    def target(self) -> Target:
        return choose_target(self.classes, self.range, self.count, self.several)

    @property
    def omits_records(self) -> bool:
        return self.missing is not None

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
            if self.missing is not None:
                reason = "0 and 1 for each name have no gaps: `missing` says nothing of them"
                yield Finding("R331", reason, "remove it", f"{path}.missing")


class PublicNpz(PublicRecords, AnyNpz):
    """An array in a NumPy archive; no labels."""
