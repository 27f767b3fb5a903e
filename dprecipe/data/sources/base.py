"""The base classes of all sources of records.

A source is two blocks of a recipe: one with labels, whose records are private unless it says otherwise, and one of
public records, whose labels are never read. Each block says which files it reads, what shape a record has, and how the
records are read. No numpy: readers are imported on use.
"""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.data.columns import Columns as Columns
from dprecipe.data.files import find_existing, is_pattern, leaves_root
from dprecipe.data.targets import (
    MAX_COUNT,
    MAX_NAMES,
    NEXT_TOKEN,
    SEPARATOR,
    ClassTarget,
    CountTarget,
    LabelTarget,
    NumberTarget,
    SeveralTarget,
    Target,
)
from dprecipe.data.writing import AFFIXES, DECIMAL, Affixes, Decimal, Writing, find_writing
from dprecipe.faults import Finding
from dprecipe.language.base import Block, Name, NonNegativeInt, PositiveInt, SparseBlock, Text, word_form

if TYPE_CHECKING:
    from dprecipe.data.query import RowOrigin
    from dprecipe.data.raw import Raw, Reading

Access = Literal["public", "private_internal"]
Records = Annotated[tuple[NonNegativeInt, ...], Field(min_length=2, max_length=2)]
Shape = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=4)]
Classes = Annotated[int, Field(ge=2, le=100_000)]
Range = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]
Several = Annotated[tuple[Annotated[Name, Field(max_length=200)], ...], Field(min_length=2, max_length=MAX_NAMES)]
Paths = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Annotated[tuple[Text, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "text"),
]

RECORDS = "[first, end): the part of the source that is used"
RANGE = "[lowest, highest]: a number to be predicted, clipped to this range; declared, never measured"
PATHS = "a file, a pattern (`visits/*.parquet`) or a list of them, read one after the other"
ACCESS = "`public`: metrics may be released; `private_internal`: they stay in `private/`"


class Count(Block):
    """A label that says how many: 0, 1, 2 …"""

    max: Annotated[int, Field(ge=1, le=MAX_COUNT)] = Field(
        description="largest count; larger ones are clipped to it; declared, never measured"
    )


COUNT = "how many there are, predicted as the rate of a Poisson distribution"
SEVERAL = "names of which any may apply to a record: a yes or a no for each; declared, never measured"


class Label(SparseBlock):
    """Label that is to be learned: declared and never measured. The `column` holds a class (`values` or `classes`), a
    number (`range`), a count (`count`) or the names that apply (`several`); `columns` hold a yes or a no each."""

    left_out: ClassVar[tuple[str, ...] | None] = ("decimal", "affixes")

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


UNREAD = "accepted, so that a labelled set can be named without changes; never read"


class SourceBlock(Block):
    """A source of records, public or private."""

    if TYPE_CHECKING:
        source: str
        records: Records | None
        access: Access

    shared: ClassVar[tuple[str, ...]] = ()
    """The keys that describe records and not files: other sources of the recipe take them over from `data.train`."""

    @property
    @abstractmethod
    def record_shape(self) -> tuple[int, ...]:
        """The shape of one record in the source's own layout: (H, W), (H, W, C) or (D,); () for a table."""

    @property
    def shape_key(self) -> str:
        """The key, below the source, that declares `record_shape`."""
        return "shape"

    @property
    def image_resize(self) -> Literal["stretch", "crop"] | None:
        """Way to bring images of another size to `record_shape`; None if they are refused."""
        return None

    @property
    def table_columns(self) -> Columns | None:
        """The declared columns of a table; None for arrays and images."""
        return None

    @property
    @abstractmethod
    def has_names(self) -> bool:
        """True if a column or an array can name the records."""

    @property
    @abstractmethod
    def files(self) -> Mapping[str, str]:
        """The paths and patterns of what is read, by their keys below the source; empty if the records come with the
        package."""

    @property
    @abstractmethod
    def features_paths(self) -> tuple[str, ...]:
        """Paths of the features, in order; empty if they come with the package."""

    def features_files(self, root: Path) -> list[Path]:
        """Returns the files of the features that exist, in order."""
        return find_existing(self.features_paths, root)

    def all_files(self, root: Path) -> list[Path]:
        """Returns every file that is read and exists."""
        return find_existing(tuple(self.files.values()), root)

    @property
    def part(self) -> str:
        """The part of the file, or of the embedded set, that is read: a split or an array; "" for all of it."""
        return ""

    @property
    def origins(self) -> tuple[tuple[str, str], ...]:
        """The files and their part, as the recipe names them, without the range of records. Sources of different origin
        may still read the same records: through a link, from a copy, or from another array of the same file."""
        paths = self.features_paths or (f"{self.source}:",)
        return tuple((posixpath.normpath(path), self.part) for path in paths)

    @property
    def folder_suffixes(self) -> tuple[str, ...]:
        """The endings of the files that are read below `path`, of a source whose path is a folder."""
        return ()

    @property
    def names_elsewhere(self) -> tuple[tuple[str, str], ...]:
        """The name of each data set that is no file, and a glob of all names that it may have.

        See docs/how-to/policy.md.
        """
        return () if self.files else ((f"{self.source}:", f"{self.source}:"),)

    def format_of(self, key: str, path: str) -> str:
        """Returns the source that reads such a file as `path` of `files`."""
        return self.source

    @property
    def selection(self) -> RowOrigin | None:
        """Origin of records that a query makes of the rows of tables; None if each record is one row."""
        return None

    def keeps_column(self, name: str) -> bool:
        """Returns True if the column of this name is surely that of the files or tables, and not one that a query
        makes."""
        return True

    def contradictions(self, path: str) -> Iterator[Finding]:
        """Yields the contradictions within this block (R2xx); `path` is the block's own."""
        yield from ()

    @abstractmethod
    def read(self, root: Path, reading: Reading) -> Raw:
        """Returns the selected records; the labels of a public source are zeros.

        Raises:
            DataFault: a file is missing, damaged, or not what the recipe declares.
        """


class FileSource(SourceBlock):
    """A source of files, in which a column or an array can name the records."""

    if TYPE_CHECKING:

        @property
        def path(self) -> str | tuple[str, ...]: ...

    @property
    def has_names(self) -> bool:
        return True

    @property
    def files(self) -> Mapping[str, str]:
        if isinstance(self.path, str):
            return {"path": self.path}
        return {f"path.{number}": path for number, path in enumerate(self.path)}

    @property
    def features_paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path


class SeveralFiles(FileSource):
    """A source whose path may be a pattern or a list."""

    def contradictions(self, path: str) -> Iterator[Finding]:
        for key, value in self.files.items():
            if is_pattern(value) and leaves_root(value):
                yield Finding(
                    "R240",
                    f"the pattern {value!r} leaves the data root",
                    "write a pattern relative to the data root (--data-root or $DPRECIPE_DATA), without `..`; a single "
                    "path may lie elsewhere",
                    f"{path}.{key}",
                )


class Labelled(SourceBlock):
    """A source whose labels are read."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """Kind of the labels, as declared."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The declared names of the classes, or of what may apply; None if there are none."""
        return self.target.names if isinstance(self.target, ClassTarget | SeveralTarget) else None

    @property
    def described(self) -> frozenset[str]:
        """The columns or arrays that are features or the label; none of them can name a record."""
        return frozenset()

    @property
    def label_columns(self) -> frozenset[str]:
        """The columns or arrays that are labels; records are not divided by them."""
        return frozenset()


class ColumnLabelled(Labelled):
    """A source with its label in a column of a file, or in several."""

    if TYPE_CHECKING:
        label: AnyLabel

    @property
    def read_label(self) -> Label | None:
        """The label that columns hold; None for `next_token`, which the texts themselves hold."""
        return None if self.label == "next_token" else self.label

    @property
    def target(self) -> Target:
        return NEXT_TOKEN if self.label == "next_token" else self.label.target

    @property
    def described(self) -> frozenset[str]:
        return frozenset(self.table_columns or {}) | self.label_columns

    @property
    def label_columns(self) -> frozenset[str]:
        return frozenset(() if self.label == "next_token" else self.label.read_columns)
