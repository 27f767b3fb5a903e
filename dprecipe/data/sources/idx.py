"""`idx`: images and labels in the format of MNIST."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dprecipe.data.sources.base import (
    ACCESS,
    RECORDS,
    UNREAD,
    Access,
    Classes,
    Labelled,
    Records,
    Shape,
    SourceBlock,
)
from dprecipe.data.targets import ClassTarget, Target
from dprecipe.language.base import Text

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading


class _Idx(SourceBlock):
    if TYPE_CHECKING:
        images: str
        shape: Shape

    @property
    def record_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def has_names(self) -> bool:
        return False

    @property
    def features_paths(self) -> tuple[str, ...]:
        return (self.images,)


class Idx(_Idx, Labelled):
    """Images and labels in the IDX format of MNIST, plain or gzipped; pixels become [0, 1]."""

    source: Literal["idx"]
    images: Text
    labels: Text
    shape: Shape = Field((28, 28), description="of one image, checked against the file")
    classes: Classes = 10
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    shared: ClassVar[tuple[str, ...]] = ("shape", "classes")

    @property
    def files(self) -> Mapping[str, str]:
        return {"images": self.images, "labels": self.labels}

    @property
    def target(self) -> Target:
        return ClassTarget(self.classes)

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_idx import read_idx

        return read_idx(self.images, self.labels, self.shape, self.classes, self.records, root, reading)


class PublicIdx(_Idx):
    """Images in the IDX format; no labels."""

    source: Literal["idx"]
    images: Text
    labels: Text | None = Field(None, description=UNREAD)
    shape: Shape = Field((28, 28), description="of one image, checked against the file")
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"

    shared: ClassVar[tuple[str, ...]] = ("shape",)

    @property
    def files(self) -> Mapping[str, str]:
        return {"images": self.images}

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_idx import read_idx

        return read_idx(self.images, None, self.shape, 0, self.records, root, reading)
