"""The base classes of all sources of records.

A source is two blocks of a recipe: one with labels, whose records are private unless it says otherwise, and one of
public records, whose labels are never read. Each block says which files it reads, what shape a record has, and how the
records are read. No numpy: readers are imported on use.
"""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.data.columns import Columns as Columns
from dprecipe.data.files import find_existing, is_pattern, leaves_root
from dprecipe.data.sources.labels import AnyLabel, Label, label_contradictions
from dprecipe.data.targets import NEXT_TOKEN, ClassTarget, SeveralTarget, Target
from dprecipe.faults import Finding
from dprecipe.language.base import Block, NonNegativeInt, PositiveInt, Text
from dprecipe.libraries import importing_libraries

if TYPE_CHECKING:
    from dprecipe.data.query import RowOrigin
    from dprecipe.data.raw import Raw, Reading

Access = Literal["public", "private_internal"]
Records = Annotated[tuple[NonNegativeInt, ...], Field(min_length=2, max_length=2)]
Shape = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=4)]
Paths = Annotated[
    Annotated[Text, Tag("text")] | Annotated[Annotated[tuple[Text, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "text"),
]

RECORDS = "[first, end): the part of the source that is used"
PATHS = "a file, a pattern (`visits/*.parquet`) or a list of them, read one after the other"
ACCESS = "`public`: metrics may be released; `private_internal`: they stay in `private/`"
UNREAD = "accepted, so that a labelled set can be named without changes; never read"
READERS: Mapping[str, str] = {
    "csv": "dprecipe.data.sources.read_csv",
    "datasets": "dprecipe.data.sources.read_datasets",
    "digits": "dprecipe.data.sources.read_digits",
    "duckdb": "dprecipe.data.sources.read_duckdb",
    "idx": "dprecipe.data.sources.read_idx",
    "image_folder": "dprecipe.data.sources.read_image_folder",
    "json_lines": "dprecipe.data.sources.read_json_lines",
    "npz": "dprecipe.data.sources.read_npz",
    "parquet": "dprecipe.data.sources.read_parquet",
    "postgres": "dprecipe.data.sources.read_postgres",
}
"""The module that reads each kind of source, by its `read`; `existing_files` of one whose path is a folder."""


class SourceBlock(Block):
    """A source of records, public or private."""

    if TYPE_CHECKING:
        source: str
        records: Records | None
        access: Access

    shared: ClassVar[tuple[str, ...]] = ()
    """The keys that describe records and not files: other sources of the recipe take them over from `data.train`."""
    is_embedded: ClassVar[bool] = False
    """True if the records come with the package, so that everyone has them."""

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

    @property
    def read_label(self) -> Label | None:
        """The label that is read from columns; None if there is none."""
        return None

    def import_reader(self) -> Any:
        """Returns the module of `READERS` for such a source.

        Raises:
            UsageFault: a library that it needs is not installed.
        """
        with importing_libraries(f"source {self.source}"):
            return import_module(READERS[self.source])

    def read(self, root: Path, reading: Reading) -> Raw:
        """Returns the selected records; the labels of a public source are zeros.

        Raises:
            DataFault: a file is missing, damaged, or not what the recipe declares.
            UsageFault: a library or a setting that the source needs is missing.
        """
        raw: Raw = self.import_reader().read(self, root, reading)
        return raw


class WithoutFiles(SourceBlock):
    """A source that reads no file."""

    @property
    def files(self) -> Mapping[str, str]:
        return {}

    @property
    def features_paths(self) -> tuple[str, ...]:
        return ()


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


class TableSource(SourceBlock):
    """A source that is a table, in which a column can name the records."""

    if TYPE_CHECKING:
        columns: Columns

    @property
    def record_shape(self) -> tuple[int, ...]:
        return ()

    @property
    def table_columns(self) -> Columns | None:
        return self.columns

    @property
    def has_names(self) -> bool:
        return True


class PublicRecords(SourceBlock):
    """A source whose labels are never read. It stands before the base of both blocks, whose fields it narrows."""

    access: Literal["public"] = "public"


class UnreadLabel(PublicRecords):
    """A public source that may name its label."""

    label: AnyLabel | None = Field(None, description=UNREAD)


class Labelled(SourceBlock):
    """A source whose labels are read. It stands before the base of both blocks, whose fields it narrows."""

    access: Access = Field("private_internal", description=ACCESS)

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

    @property
    def omits_records(self) -> bool:
        """True if records whose label is missing take part with a gradient of zero (`data.omitted`)."""
        return False


class ColumnLabelled(Labelled):
    """A source with its label in a column of a file, or in several."""

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

    @property
    def omits_records(self) -> bool:
        return self.label != "next_token" and self.label.missing is not None

    def contradictions(self, path: str) -> Iterator[Finding]:
        yield from label_contradictions(self.read_label, self.table_columns, path)
        yield from super().contradictions(path)
