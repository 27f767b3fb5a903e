"""The kinds of column a table has. Each says what is read, how many features it makes, and what would contradict it.

Whatever shapes features is declared: nothing is measured. How fields become features is in `dprecipe.data.encoders`.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, Tag
from pydantic_core import PydanticCustomError

from dprecipe.data.gaps import GAP_FORM, AnswerGap, DateGap, Gap, NumberGap, Whole, WholeGap
from dprecipe.data.writing import AFFIXES, DECIMAL, Affixes, Decimal, Writing, find_writing, find_wrong_affixes
from dprecipe.faults import Finding
from dprecipe.language.base import NAMES_ALIKE, Block, Name, SparseBlock, Text
from dprecipe.text.spelling import normalise_text

Marks = Annotated[tuple[Name, ...], Field(min_length=1)]
MISSING = "what an empty field or NA counts as; without it, such a field is an error"
GAPS = f"{MISSING}; or {{fill: …, indicator: true}}, which adds a feature that says that the field was missing"
MARKS = "further texts that count as missing"


class ColumnBlock(Block):
    """A column that is read as features."""

    if TYPE_CHECKING:
        kind: str

    step: ClassVar[Literal["one_hot", "hash", "sequences"] | None] = None
    """The step of `preprocess` that makes it features; None if it needs none."""

    @property
    def width(self) -> int:
        """The number of its features; 0 where a step decides it."""
        return 1

    @property
    def limits(self) -> tuple[float, float] | None:
        """The declared range of a quantity, which becomes [0, 1]; None if it is none."""
        return None

    @property
    def is_plain_number(self) -> bool:
        """True for a number that is written as programs write it: a reader may parse it on its own."""
        return self.limits is not None

    def contradictions(self, path: str) -> Iterator[Finding]:
        """Yields the contradictions within this block (R2xx); `path` is its own."""
        yield from ()


class IncompleteColumn(ColumnBlock):
    """A column whose fields may be missing."""

    if TYPE_CHECKING:

        @property
        def missing(self) -> object: ...
        @property
        def marks(self) -> Marks | None: ...

    @property
    @abstractmethod
    def example(self) -> str:
        """The `missing` that a remedy proposes, as a recipe has it: a usual value, the middle of what is declared."""

    @property
    def fill(self) -> Any:
        """The value that a missing field counts as; None if there is none."""
        return self.missing.fill if isinstance(self.missing, Gap) else self.missing

    @property
    def has_indicator(self) -> bool:
        """True if the last feature says that the field was missing."""
        return isinstance(self.missing, Gap) and self.missing.indicator

    @property
    def width(self) -> int:
        return 1 + self.has_indicator

    def write_missing(self) -> str:
        """Returns what is declared of missing fields, else the example, as a recipe has it."""
        if isinstance(self.missing, Gap):
            return f"{{fill: {self.missing.fill}, indicator: {str(self.missing.indicator).lower()}}}"
        return self.example if self.missing is None else str(self.missing)

    def contradictions(self, path: str) -> Iterator[Finding]:
        if self.marks is not None and self.missing is None:
            yield Finding(
                "R203",
                "`marks` lists texts that count as missing, and no value for missing fields is given",
                f"add missing: {self.example}, or another value for missing fields",
                f"{path}.marks",
            )


class Quantity(IncompleteColumn, SparseBlock):
    """A number within a declared range."""

    left_out: ClassVar[tuple[str, ...] | None] = ("decimal", "affixes")

    if TYPE_CHECKING:

        @property
        def min(self) -> float: ...
        @property
        def max(self) -> float: ...
        @property
        def missing(self) -> object: ...
        @property
        def decimal(self) -> Decimal | None: ...
        @property
        def affixes(self) -> Affixes | None: ...

    @property
    def limits(self) -> tuple[float, float]:
        return float(self.min), float(self.max)

    @property
    def writing(self) -> Writing | None:
        """The way in which numbers are written; None for the way of programs."""
        return find_writing(self.decimal, self.affixes)

    @property
    def is_plain_number(self) -> bool:
        return self.writing is None

    @property
    def example(self) -> str:
        return f"{{fill: {self._write_middle()}, indicator: true}}"

    def _write_middle(self) -> str:
        """Returns the middle of the range, in as many digits as its width needs."""
        low, high = self.limits
        middle = low / 2 + high / 2
        if isinstance(self, Integer):
            return str((int(self.min) + int(self.max)) // 2)
        width = high / 2 - low / 2
        digits = 3 if width == 0 else max(3, math.ceil(math.log10(max(abs(middle) / width, 1.0))) + 2)
        rounded = float(f"{middle:.{digits}g}")
        return str(int(rounded)) if rounded.is_integer() and abs(rounded) < 1e15 else repr(rounded)

    def contradictions(self, path: str) -> Iterator[Finding]:
        low, high = self.limits
        if not low / 2 < high / 2:  # halves, as features are mapped with
            in_doubles = ", in the 16 digits that are computed with" if self.min < self.max else ""
            coarser = "; or store the column less a constant, such as seconds since the first day" if in_doubles else ""
            yield Finding(
                "R203",
                f"min {write_number(self.min)} is not below max {write_number(self.max)}{in_doubles}",
                "write the range of possible values, from domain knowledge and not measured on private data" + coarser,
                f"{path}.min",
            )
        yield from find_repeated(self.affixes or (), f"{path}.affixes")
        yield from find_wrong_affixes(self.affixes, f"{path}.affixes")
        yield from super().contradictions(path)


class Numeric(Quantity):
    """A number, clamped to the declared range and mapped to [0, 1]; the range is declared, never measured."""

    kind: Literal["numeric"]
    min: float
    max: float
    missing: Annotated[Annotated[float, Tag("value")] | Annotated[NumberGap, Tag("block")], GAP_FORM] | None = Field(
        None, description=GAPS
    )
    marks: Marks | None = Field(None, description=MARKS)
    decimal: Decimal | None = Field(None, description=DECIMAL)
    affixes: Affixes | None = Field(None, description=AFFIXES)


class Integer(Quantity):
    """A whole number, clamped to the declared range and mapped to [0, 1]; any other number is an error."""

    kind: Literal["integer"]
    min: Whole
    max: Whole
    missing: Annotated[Annotated[Whole, Tag("value")] | Annotated[WholeGap, Tag("block")], GAP_FORM] | None = Field(
        None, description=GAPS
    )
    marks: Marks | None = Field(None, description=MARKS)
    decimal: Decimal | None = Field(None, description=DECIMAL)
    affixes: Affixes | None = Field(None, description=AFFIXES)


class Boolean(IncompleteColumn):
    """No or yes, which become 0 and 1."""

    kind: Literal["boolean"]
    values: Annotated[tuple[Name, ...], Field(min_length=2, max_length=2)] | None = Field(
        None, description="the texts for no and for yes; true, yes, 1 and their like in any capitals when left out"
    )
    missing: Annotated[Annotated[bool, Tag("value")] | Annotated[AnswerGap, Tag("block")], GAP_FORM] | None = Field(
        None, description=GAPS
    )
    marks: Marks | None = Field(None, description=MARKS)

    @property
    def example(self) -> str:
        return "{fill: false, indicator: true}"

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from find_repeated(self.values or (), f"{path}.values")
        yield from super().contradictions(path)


class Ordinal(IncompleteColumn):
    """One of values that have an order, from 0 for the first to 1 for the last; any other is an error."""

    kind: Literal["ordinal"]
    values: Annotated[tuple[Name, ...], Field(min_length=2)]
    missing: Name | None = Field(None, description=MISSING)
    marks: Marks | None = Field(None, description=MARKS)

    @property
    def example(self) -> str:
        return self.values[len(self.values) // 2]

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from find_repeated(self.values, f"{path}.values")
        yield from super().contradictions(path)
        if self.missing is not None and self.missing not in self.values:
            yield Finding(
                "R203",
                f"a missing field counts as {self.missing!r}, which is none of the values",
                f"write missing: {self.example}, or another of them",
                f"{path}.missing",
            )


DatePart = Literal["time", "month", "weekday", "hour"]
PART_WIDTHS: dict[DatePart, int] = {"time": 1, "month": 12, "weekday": 7, "hour": 24}


class Date(IncompleteColumn):
    """A day, or a day and a time of day. `time` is its place between `min` (0) and `max` (1), as an age is against a
    declared day; months, weekdays and hours are indicators."""

    kind: Literal["date"]
    min: date
    max: date
    parts: Annotated[tuple[DatePart, ...], Field(min_length=1)] = Field(("time",), description="features, in order")
    format: Text | None = Field(
        None, description='such as "%d.%m.%Y", in quotes; ISO 8601 (2024-05-17, 2024-05-17T14:30) when left out'
    )
    missing: Annotated[Annotated[date, Tag("value")] | Annotated[DateGap, Tag("block")], GAP_FORM] | None = Field(
        None, description=GAPS
    )
    marks: Marks | None = Field(None, description=MARKS)

    @property
    def width(self) -> int:
        return sum(PART_WIDTHS[part] for part in self.parts) + self.has_indicator

    @property
    def example(self) -> str:
        return f"{{fill: {self.min + (self.max - self.min) // 2}, indicator: true}}"

    def contradictions(self, path: str) -> Iterator[Finding]:
        if not self.min < self.max:
            yield Finding(
                "R203",
                f"min {self.min} is not before max {self.max}",
                "write the first and the last day that can occur, from domain knowledge",
                f"{path}.min",
            )
        yield from find_repeated(self.parts, f"{path}.parts")
        yield from super().contradictions(path)
        if self.format is not None:
            yield from find_unknown_format(self.format, f"{path}.format")


class Category(ColumnBlock):
    """One of the declared values; any other becomes a category of its own, `other`."""

    kind: Literal["category"]
    values: Annotated[tuple[Name, ...], Field(min_length=1)]

    step: ClassVar[Literal["one_hot", "hash", "sequences"] | None] = "one_hot"

    @property
    def width(self) -> int:
        return len(self.values) + 1  # one more for `other`

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from find_repeated(self.values, f"{path}.values")


class TextColumn(ColumnBlock):
    """Free text, or categories that are not declared. A step of `preprocess` hashes it, or makes it tokens."""

    kind: Literal["text"]

    step: ClassVar[Literal["one_hot", "hash", "sequences"] | None] = "hash"

    @property
    def width(self) -> int:
        return 0


class ChatColumn(ColumnBlock):
    """The messages of a conversation, in order: a list of {role, content}, or the same as a text in JSON. The step
    `sequences` makes it tokens."""

    kind: Literal["chat"]

    step: ClassVar[Literal["one_hot", "hash", "sequences"] | None] = "sequences"

    @property
    def width(self) -> int:
        return 0


if TYPE_CHECKING:
    Column = ColumnBlock
else:
    Column = Annotated[
        Numeric | Integer | Boolean | Ordinal | Date | Category | TextColumn | ChatColumn, Field(discriminator="kind")
    ]


def _normalise_names(columns: dict[str, Column]) -> dict[str, Column]:
    """Returns the columns by their normalised names. Two that look equal are refused."""
    names = list(map(normalise_text, columns))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PydanticCustomError(NAMES_ALIKE, "two names look equal", {"name": twice})
    return dict(zip(names, columns.values(), strict=True))


Columns = Annotated[dict[Text, Column], Field(min_length=1), AfterValidator(_normalise_names)]


def write_number(value: float) -> str:
    """Returns a number as a message has it: a whole one whole, however large."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def find_unknown_format(text: str, path: str) -> Iterator[Finding]:
    """Yields the finding for a form of days that can't be read."""
    directives = re.findall(r"%(.?)", text)
    unknown = [f"%{letter}" for letter in directives if letter not in "YmdHMSf" or not letter]
    if not unknown and set("Ymd") <= set(directives) and len(set(directives)) == len(directives):
        return
    message = f"{text!r} does not say where year, month and day stand, each once"
    remedy = 'write for example "%d.%m.%Y", or "%Y-%m-%d %H:%M"; known are %Y %m %d %H %M %S %f'
    if unknown:
        message = f"{text!r} has {' and '.join(unknown)}, which is not known"
    if "%z" in unknown:
        remedy = "remove it, if times are written as 2024-05-08T16:37:56+02:00: they need no format"
    yield Finding("R203", message, remedy, path)


def find_repeated(values: tuple[str, ...], path: str) -> Iterator[Finding]:
    """Yields the finding for values that are listed more than once."""
    twice = sorted({value for value in values if values.count(value) > 1})
    if twice:
        yield Finding(
            "R202",
            f"{', '.join(map(repr, twice))} {'is' if len(twice) == 1 else 'are'} listed more than once",
            "write each value once; blanks around a value, and the form of an accent, do not count",
            path,
        )
