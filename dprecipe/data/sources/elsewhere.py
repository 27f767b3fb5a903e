"""`elsewhere`: private records that a run never opens. Only what they are labelled with is declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dprecipe.data.columns import find_repeated
from dprecipe.data.sources.base import Labelled, WithoutFiles
from dprecipe.data.sources.labels import Classes, not_one_kind
from dprecipe.data.targets import ClassTarget, Target
from dprecipe.faults import Finding
from dprecipe.language.base import Name


class Elsewhere(Labelled, WithoutFiles):
    """Records that stay where they are: teachers have learned from them, and the run reads votes alone."""

    source: Literal["elsewhere"]
    classes: Classes | None = Field(None, description="the number of classes, 0 … classes-1")
    values: Annotated[tuple[Name, ...], Field(min_length=2)] | None = Field(
        None, description="class names, instead of `classes`"
    )
    access: Literal["private_internal"] = "private_internal"

    records: ClassVar[None] = None  # type: ignore[misc]  # no key of this block

    @property
    def record_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def has_names(self) -> bool:
        return False

    @property
    def target(self) -> Target:
        return ClassTarget(self.classes or len(self.values or ()), self.values)

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from not_one_kind({"classes": self.classes, "values": self.values}, path)
        yield from find_repeated(self.values or (), f"{path}.values")
