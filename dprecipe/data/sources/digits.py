"""`digits`: real handwritten digits that come with the package, for a first run without a download."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dprecipe.data.sources.base import ACCESS, RECORDS, Access, Labelled, Records, SourceBlock
from dprecipe.data.targets import ClassTarget, Target

if TYPE_CHECKING:
    from dprecipe.data.raw import Raw, Reading


SHAPE = (8, 8)
CLASSES = 10


class _Digits(SourceBlock):
    if TYPE_CHECKING:
        split: Literal["train", "test"]

    @property
    def record_shape(self) -> tuple[int, ...]:
        return SHAPE

    @property
    def has_names(self) -> bool:
        return False

    @property
    def files(self) -> Mapping[str, str]:
        return {}

    @property
    def features_paths(self) -> tuple[str, ...]:
        return ()

    @property
    def part(self) -> str:
        return self.split

    def read(self, root: Path, reading: Reading) -> Raw:
        from dprecipe.data.sources.read_digits import read_digits

        return read_digits(self.split, self.records, isinstance(self, Labelled), reading)


class Digits(_Digits, Labelled):
    """The embedded handwritten digits: 1,797 real 8×8 images, every fifth held out as `test`."""

    source: Literal["digits"]
    split: Literal["train", "test"]
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)

    @property
    def target(self) -> Target:
        return ClassTarget(CLASSES)


class PublicDigits(_Digits):
    """The embedded handwritten digits, without their labels."""

    source: Literal["digits"]
    split: Literal["train", "test"]
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"
