"""Labels: a class, a number, a count or several names, in a column or in several, and the contradictions in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.data.columns import Columns, find_repeated
from dprecipe.data.targets import (
    MAX_COUNT,
    MAX_NAMES,
    SEPARATOR,
    ClassTarget,
    CountTarget,
    LabelTarget,
    NumberTarget,
    SeveralTarget,
)
from dprecipe.data.writing import AFFIXES, DECIMAL, Affixes, Decimal, Writing, find_writing, find_wrong_affixes
from dprecipe.faults import Finding
from dprecipe.language.base import Block, Name, SparseBlock, word_form

Classes = Annotated[int, Field(ge=2, le=100_000)]
Range = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]
Several = Annotated[tuple[Annotated[Name, Field(max_length=200)], ...], Field(min_length=2, max_length=MAX_NAMES)]

RANGE = "[lowest, highest]: a number to be predicted, clipped to this range; declared, never measured"


class Count(Block):
    """A label that says how many: 0, 1, 2 …"""

    max: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        description="largest count; larger ones are clipped to it; declared, never measured"
    )


COUNT = "how many there are, predicted as the rate of a Poisson distribution"
Missing = Literal["omit"]
MISSING = "`omit`: a record whose label is missing takes part with weight zero; without it, such a label is an error"
SEVERAL = "names of which any may apply to a record: a yes or a no for each; declared, never measured"


class Label(SparseBlock):
    """Label that is to be learned: declared and never measured. The `column` holds a class (`values` or `classes`), a
    number (`range`), a count (`count`) or the names that apply (`several`); `columns` hold a yes or a no each."""

    left_out: ClassVar[tuple[str, ...] | None] = ("decimal", "affixes", "missing")

    column: Name | None = None
    columns: Several | None = Field(None, description="in place of `column`: each holds a yes or a no")
    values: Annotated[tuple[Name, ...], Field(min_length=2)] | None = Field(
        None,
        description="class names; a label that is none of them is an error; of `columns` the texts for no and yes",
    )
    classes: Classes | None = Field(None, description="for integer labels 0 … classes-1")
    range: Range | None = Field(None, description=RANGE)
    count: Count | None = Field(None, description=COUNT)
    several: Several | None = Field(None, description=SEVERAL)
    separator: Annotated[str, Field(min_length=1, max_length=4)] | None = Field(
        None, description=f"between the names of `several` in a field; `{SEPARATOR}` when left out"
    )
    empty: Literal["none"] | None = Field(
        None, description="that in an empty field none of `several` applies; without it, such a field is an error"
    )
    missing: Missing | None = Field(None, description=MISSING)
    decimal: Decimal | None = Field(None, description=f"of a `range` or `count`: {DECIMAL}")
    affixes: Affixes | None = Field(None, description=f"of a `range` or `count`: {AFFIXES}")

    @property
    def writing(self) -> Writing | None:
        """The way in which its numbers are written; None for the way of programs."""
        return find_writing(self.decimal, self.affixes)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that hold it."""
        return self.columns or ((self.column,) if self.column is not None else ())

    @property
    def target(self) -> LabelTarget:
        """See `Labelled`."""
        if self.columns is not None:
            return SeveralTarget(self.columns)
        if self.values is not None:
            return ClassTarget(len(self.values), self.values)
        if self.several is not None:
            return SeveralTarget(self.several, self.separator or SEPARATOR)
        return choose_target(self.classes, self.range, self.count)


AnyLabel = Annotated[
    Annotated[Literal["next_token"], Tag("word")] | Annotated[Label, Tag("block")],
    Discriminator(lambda value: "word" if word_form(value) == "word" else "block"),
]
"""A label that columns hold, or `next_token`: each token of a text is learned from those before it."""


def choose_target(
    classes: int | None, limits: Range | None, count: Count | None, several: tuple[str, ...] | None = None
) -> LabelTarget:
    """Returns the target of labels that declare exactly one of these keys."""
    if several is not None:
        return SeveralTarget(several)
    if limits is not None:
        return NumberTarget(limits[0], limits[1])
    return ClassTarget(classes or 1) if count is None else CountTarget(count.max)


def label_contradictions(label: Label | None, columns: Columns | None, path: str) -> Iterator[Finding]:
    """Yields the contradictions within the label of a table or of images; `path` is the source's."""
    if label is None:
        return
    where = f"{path}.label"
    if (label.column is None) == (label.columns is None):
        yield Finding(
            "R330",
            "the label has no column" if label.column is None else "the label has both `column` and `columns`",
            "write column: name, or columns: [name, name] where several columns hold a yes or a no each",
            where,
        )
        return
    if label.columns is None:
        kinds = {key: getattr(label, key) for key in _KINDS}
        yield from not_one_kind(kinds, where)
    yield from _misused_keys(label, where)
    yield from _misused_writing(label, where)
    yield from empty_range(label.range, f"{where}.range")
    for key in ("values", "several", "columns"):
        if getattr(label, key) is not None:
            yield from find_repeated(getattr(label, key), f"{where}.{key}")
    separator = label.separator or SEPARATOR
    for name in label.several or label.columns or ():
        if separator in name:
            yield Finding(
                "R331",
                f"{name!r} contains {separator!r}, which stands between two names",
                "write another label.separator" if label.several else "rename the column in the file, and here",
                f"{where}.{'several' if label.several else 'columns'}",
            )
    for name in label.read_columns:
        if name in (columns or {}):
            yield Finding(
                "R216",
                f"column {name!r} is the label and a feature: the model would read the answer",
                f"remove {name!r} from `columns`",
                f"{path}.columns.{name}",
            )


def _misused_keys(label: Label, path: str) -> Iterator[Finding]:
    """Keys that have no meaning beside the others."""
    if label.columns is not None:
        reason = "`columns` hold a yes or a no each"
        keys = ["classes", "range", "count", "several", "separator", "empty", "missing"]
        if label.values is not None and len(label.values) != 2:
            yield Finding(
                "R331",
                f"{reason}, and {len(label.values)} `values` are named",
                "write two texts, the one for no first: values: ['no', 'yes']; or remove `values`",
                f"{path}.values",
            )
    else:
        reason = "the column holds one value a record"
        keys = ["missing"] if label.several is not None else ["separator", "empty"]
    for key in keys:
        if getattr(label, key) is not None:
            instead = "" if label.several or label.columns else ", or name in `several` what the fields may hold"
            yield Finding("R331", f"{reason}: `{key}` says nothing of them", f"remove it{instead}", f"{path}.{key}")


def _misused_writing(label: Label, path: str) -> Iterator[Finding]:
    """Keys that say how numbers are written, beside a label that is no number; and what is wrong with them."""
    if label.range is None and label.count is None:
        for key in ("decimal", "affixes"):
            if getattr(label, key) is not None:
                reason = f"`{key}` says how numbers are written, and the label is none"
                remedy = "remove it, or declare the number as a `range` or a `count`"
                yield Finding("R331", reason, remedy, f"{path}.{key}")
    yield from find_repeated(label.affixes or (), f"{path}.affixes")
    yield from find_wrong_affixes(label.affixes, f"{path}.affixes")


_KINDS = {
    "values": "`values` (class names, in order)",
    "classes": "`classes` (for integers 0 … classes-1)",
    "range": "`range` (for a number to be predicted)",
    "count": "`count` (for how many there are)",
    "several": "`several` (names of which any may apply)",
}
"""The kinds of label, by the key that declares each."""


def not_one_kind(declared: Mapping[str, object], path: str) -> Iterator[Finding]:
    """Yields the finding for labels that are declared as several kinds, or as none."""
    declared_keys = [key for key, value in declared.items() if value is not None]
    if len(declared_keys) != 1:
        *others, last = (_KINDS[key] for key in declared)
        yield Finding(
            "R201",
            f"labels need exactly one of {', '.join(others)} and {last}",
            f"keep one of {' and '.join(declared_keys)}" if declared_keys else f"add {' or '.join(declared)}",
            path,
        )


def empty_range(declared: Sequence[float] | None, path: str) -> Iterator[Finding]:
    """Yields the finding for a range that contains no number."""
    if declared is not None and not declared[0] / 2 < declared[1] / 2:  # halves, as the labels are mapped with
        yield Finding(
            "R203",
            f"{declared[0]:g} is not below {declared[1]:g}",
            "write [lowest, highest] of the values that can occur: from domain knowledge, not measured on private data",
            path,
        )
