"""The `data` block: what is private, what is public, and who is protected."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Block, NonNegativeInt, PositiveFloat, PositiveInt, Text, form

Access = Literal["public", "private_internal"]
Records = Annotated[tuple[NonNegativeInt, ...], Field(min_length=2, max_length=2)]
Shape = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=4)]
Classes = Annotated[int, Field(ge=2, le=100_000)]
Range = Annotated[tuple[float, ...], Field(min_length=2, max_length=2)]

RECORDS = "[first, end): the part of the source that is used"
RANGE = "[lowest, highest]: a number to be predicted, clipped to this range; declared, never measured"
ACCESS = "`public`: metrics may be released; `private_internal`: they stay in `private/`"


class Numeric(Block):
    """A number, clamped to the declared range and mapped to [0, 1]; the range is declared, never measured."""

    kind: Literal["numeric"]
    min: float
    max: float
    missing: float | None = Field(
        None, description="what an empty field, NA and the like count as; without it, they are an error"
    )
    marks: Annotated[tuple[Text, ...], Field(min_length=1)] | None = Field(
        None, description="further texts that count as missing"
    )


class Category(Block):
    """One of the declared values; any other becomes a category of its own, `other`."""

    kind: Literal["category"]
    values: Annotated[tuple[Text, ...], Field(min_length=1)]


class TextColumn(Block):
    """Free text or an open set of categories: to be hashed by `preprocess`."""

    kind: Literal["text"]


Column = Annotated[Numeric | Category | TextColumn, Field(discriminator="kind")]
Columns = Annotated[dict[str, Column], Field(min_length=1)]


class Label(Block):
    """The column to be learned: a class (`values` or `classes`) or a number (`range`), declared and never measured."""

    column: Text
    values: Annotated[tuple[Text, ...], Field(min_length=2)] | None = Field(
        None, description="class names; a label that is none of them is an error"
    )
    classes: Classes | None = Field(None, description="for integer labels 0 … classes-1")
    range: Range | None = Field(None, description=RANGE)


class Digits(Block):
    """The embedded handwritten digits: 1,797 real 8×8 images, every fifth held out as `test`."""

    source: Literal["digits"]
    split: Literal["train", "test"]
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)


class Idx(Block):
    """Images and labels in the IDX format of MNIST, plain or gzipped; pixels become [0, 1]."""

    source: Literal["idx"]
    images: Text
    labels: Text
    shape: Shape = Field((28, 28), description="of one image, checked against the file")
    classes: Classes = 10
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)


class Csv(Block):
    """A table with a header line, plain or gzipped."""

    source: Literal["csv"]
    path: Text
    columns: Columns
    label: Label
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)


class ImageColumn(Block):
    """An image column in the layout of Hugging Face: a struct of `bytes` and `path`; pixels become [0, 1]."""

    column: Text
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=3, max_length=3)] = Field(
        description="height, width, channels"
    )


class Parquet(Block):
    """A Parquet file: a table (`columns`) or images (`image`); exactly one of the two."""

    source: Literal["parquet"]
    path: Text
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: Label
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)


class Npz(Block):
    """Arrays in a NumPy archive; unsigned bytes become [0, 1], other numbers stay as they are."""

    source: Literal["npz"]
    path: Text
    features: Text = "features"
    labels: Text = "labels"
    shape: Shape = Field(description="of one record's features, checked against the file")
    classes: Classes | None = Field(None, description="for integer labels 0 … classes-1")
    range: Range | None = Field(None, description=RANGE)
    records: Records | None = Field(None, description=RECORDS)
    access: Access = Field("private_internal", description=ACCESS)


Source = Annotated[Digits | Idx | Csv | Parquet | Npz, Field(discriminator="source")]


UNREAD = "accepted so that a set can be named as it is; never read"


class PublicDigits(Block):
    """The embedded handwritten digits, without their labels."""

    source: Literal["digits"]
    split: Literal["train", "test"]
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"


class PublicIdx(Block):
    """Images in the IDX format; no labels."""

    source: Literal["idx"]
    images: Text
    labels: Text | None = Field(None, description=UNREAD)
    shape: Shape = Field((28, 28), description="of one image, checked against the file")
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"


class PublicCsv(Block):
    """A table with a header line; columns that are not declared, a label among them, are never read."""

    source: Literal["csv"]
    path: Text
    columns: Columns
    label: Label | None = Field(None, description=UNREAD)
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = ","
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"


class PublicParquet(Block):
    """A Parquet file: a table (`columns`) or images (`image`); exactly one of the two. No labels."""

    source: Literal["parquet"]
    path: Text
    columns: Columns | None = None
    image: ImageColumn | None = None
    label: Label | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"


class PublicNpz(Block):
    """An array in a NumPy archive; no labels."""

    source: Literal["npz"]
    path: Text
    features: Text = "features"
    labels: Text | None = Field(None, description=UNREAD)
    shape: Shape = Field(description="of one record's features, checked against the file")
    classes: Classes | None = Field(None, description=UNREAD)
    range: Range | None = Field(None, description=UNREAD)
    records: Records | None = Field(None, description=RECORDS)
    access: Literal["public"] = "public"


PublicSource = Annotated[
    PublicDigits | PublicIdx | PublicCsv | PublicParquet | PublicNpz, Field(discriminator="source")
]
"""Where unlabelled public records come from. Their labels may be named and are never read."""

AnySource = Source | PublicSource


class UnitColumn(Block):
    """Protect everything that shares a value of this column (a user, a patient), not a single record."""

    column: Text
    max_records: PositiveInt = Field(description="records of one unit that are used: the first ones of the file")


Unit = Annotated[Annotated[Literal["record"], Tag("word")] | Annotated[UnitColumn, Tag("block")], Discriminator(form)]

PerChannel = Annotated[
    Annotated[float, Tag("number")] | Annotated[Annotated[tuple[float, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "number"),
]
PerChannelPositive = Annotated[
    Annotated[PositiveFloat, Tag("number")]
    | Annotated[Annotated[tuple[PositiveFloat, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "number"),
]
ColumnNames = Annotated[tuple[Text, ...], Field(min_length=1)]


class Scale(Block):
    """(x − mean) / std, with constants: one number, or one a channel."""

    mean: PerChannel
    std: PerChannelPositive


class ClipFeatures(Block):
    """Shrink a record's features to at most this L2 norm."""

    norm: PositiveFloat


class OneHot(Block):
    """Declared categories to indicator features (one more for `other`)."""

    columns: ColumnNames | None = Field(None, description="all category columns when left out")


class Hash(Block):
    """Text or open categories to counts in a fixed number of buckets; no vocabulary is learned."""

    columns: ColumnNames
    buckets: Annotated[int, Field(ge=2, le=2**20)]
    tokens: Literal["value", "words"] = Field("value", description="hash the whole value, or each lower-cased word")


class Tokenize(Block):
    """The one text column of a table to the bucket numbers of its first words, 1 … `buckets`, and 0 after the last."""

    column: Text
    buckets: Annotated[int, Field(ge=2, le=2**20)] = Field(description="no vocabulary is learned: words are hashed")
    length: Annotated[int, Field(ge=1, le=4096)] = Field(description="words of a text that are read: the first ones")


class Scattering(Block):
    """Images to the coefficients of a wavelet scattering transform of second order: fixed, nothing is learned."""

    scales: Annotated[int, Field(ge=1, le=4)] = Field(
        2, description="J: wavelets of J sizes; height and width shrink by 2^J"
    )
    angles: Annotated[int, Field(ge=1, le=16)] = Field(8, description="L: wavelets of L directions")


class GroupNorm(Block):
    """Each record to mean 0 and variance 1 in each of `groups` groups of channels; constants of the record alone."""

    groups: PositiveInt


class Flatten(Block):
    """Features to one vector."""


class Crop(Block):
    """Augmentation: pad by this many pixels and crop back at a random place, in training only."""

    padding: PositiveInt


class Flip(Block):
    """Augmentation: mirror left and right with this probability, in training only."""

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5


Operation = Scale | ClipFeatures | OneHot | Hash | Tokenize | Scattering | GroupNorm | Flatten | Crop | Flip


class Step(Block):
    """One step of preprocessing, a mapping of one key. Constants only: nothing is fitted to the data."""

    scale: Scale | None = None
    clip_features: ClipFeatures | None = None
    one_hot: OneHot | None = None
    hash: Hash | None = None
    tokenize: Tokenize | None = None
    scattering: Scattering | None = None
    group_norm: GroupNorm | None = None
    flatten: Flatten | None = None
    crop: Crop | None = None
    flip: Flip | None = None

    @property
    def operation(self) -> Operation | None:
        """The one operation that is set."""
        return next((value for _, value in self if value is not None), None)


class Data(Block):
    """What is private, what is public, who is protected."""

    train: Source
    public: PublicSource | None = Field(None, description="unlabelled records that may be published: what is asked")
    test: Source | None = None
    size: PositiveInt = Field(
        description="number of training records (of units, where `unit` is a column): declared, public"
    )
    unit: Unit = Field("record", description="who is protected: a `record`, or all records of a unit")
    preprocess: tuple[Step, ...] = Field((), description="constant steps, in order")
