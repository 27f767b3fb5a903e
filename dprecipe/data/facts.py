"""What a recipe says about its data: the shape that the model sees, the classes, the columns. No data is read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from dprecipe.data.schema import (
    Category,
    Columns,
    Csv,
    Data,
    Digits,
    Hash,
    Idx,
    Npz,
    Numeric,
    OneHot,
    Parquet,
    Source,
)
from dprecipe.faults import RecipeError

DIGITS_SHAPE = (8, 8)
Role = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """Where a table's column lies in the feature vector: `width` features from `start`."""

    name: str
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class DataFacts:
    """The public constants of a data set, all of them written in the recipe."""

    shape: tuple[int, ...]
    """Of one record's features as the model sees them: (D,) or, for images, (channels, height, width)."""
    classes: int
    source_shape: tuple[int, ...]
    """The same before `flatten`."""
    class_names: tuple[str, ...] | None = None
    columns: tuple[ColumnFacts, ...] = ()

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def width(self) -> int:
        """The number of features of one record."""
        return math.prod(self.shape)


def facts(data: Data, role: Role = "train") -> DataFacts:
    """The facts of the training source, or of the test source (the training source's where there is none).

    Raises:
        RecipeError: `data` contradicts itself (every finding of `dprecipe.data.checks`).
    """
    from dprecipe.data.checks import check  # checks ask this module for widths and shapes

    findings = check(data)
    if findings:
        raise RecipeError(findings)
    source = data.test if role == "test" and data.test is not None else data.train
    columns = column_facts(data, source)
    before = (sum(column.width for column in columns),) if columns else layout(declared_shape(source))
    flat = any(step.flatten is not None for step in data.preprocess)
    shape = (math.prod(before),) if flat else before
    return DataFacts(shape, classes(source), before, class_names(source), columns)


def table_columns(source: Source) -> Columns | None:
    """The declared columns of a table; None for arrays and images."""
    return source.columns if isinstance(source, Csv | Parquet) else None


def declared_shape(source: Source) -> tuple[int, ...]:
    """The shape of one record in the source's own layout: (H, W), (H, W, C) or (D,). Not for tables."""
    match source:
        case Digits():
            return DIGITS_SHAPE
        case Idx() | Npz():
            return source.shape
        case Parquet(image=image) if image is not None:
            return image.shape
        case _:
            return ()


def layout(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A declared shape as models see it: channels first, one channel for grey images; vectors stay."""
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 3:
        return (shape[2], shape[0], shape[1])
    return shape


def column_facts(data: Data, source: Source) -> tuple[ColumnFacts, ...]:
    """The columns of a table in declared order, with the width that their encoding gives them."""
    found: list[ColumnFacts] = []
    start = 0
    columns = table_columns(source) or {}
    buckets = hashes(data)
    for name, column in columns.items():
        if isinstance(column, Numeric):
            width = 1
        elif isinstance(column, Category):
            width = len(column.values) + 1  # one more for `other`
        else:
            width = buckets[name].buckets if name in buckets else 0
        found.append(ColumnFacts(name, start, width))
        start += width
    return tuple(found)


def hashes(data: Data) -> dict[str, Hash]:
    """The hash step of each hashed column."""
    steps = [step.hash for step in data.preprocess if step.hash is not None]
    return {name: step for step in steps for name in step.columns}


def one_hot_columns(step: OneHot, columns: Columns) -> tuple[str, ...]:
    """The columns that a one_hot step encodes."""
    if step.columns is not None:
        return step.columns
    return tuple(name for name, column in columns.items() if isinstance(column, Category))


def classes(source: Source) -> int:
    """The number of classes, as declared."""
    match source:
        case Digits():
            return 10
        case Idx() | Npz():
            return source.classes
        case _:
            names = source.label.values
            return len(names) if names is not None else source.label.classes or 0


def class_names(source: Source) -> tuple[str, ...] | None:
    """The declared names of the classes, where they have names."""
    return source.label.values if isinstance(source, Csv | Parquet) else None
