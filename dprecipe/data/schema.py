"""The `data` block: what is private, what is public, and who is protected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction as Exact
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from dprecipe.data.image_steps import Crop, Flip, Patches, Scattering, Whiten
from dprecipe.data.names import write_unit_key
from dprecipe.data.paid.schema import DpCategories, DpCount, DpPca, DpQuantiles, DpStandardize, DpVocabulary, PaidStep
from dprecipe.data.sources.base import ACCESS, Access
from dprecipe.data.sources.base import Columns as Columns
from dprecipe.data.sources.elsewhere import Elsewhere
from dprecipe.data.sources.labels import Label as Label
from dprecipe.data.sources.table import AnySource as AnySource
from dprecipe.data.sources.table import PublicSource, TrainSource
from dprecipe.data.sources.table import Source as Source
from dprecipe.language.base import (
    Block,
    Fraction,
    Name,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SparseBlock,
    Text,
    word_form,
)


class UnitColumn(SparseBlock):
    """Protect everything that shares a value of this column (a user, a patient), not a single record."""

    column: Name
    name: Text | None = Field(
        None, description="one word for a unit, such as patient: the claim and the report call it so; declared"
    )
    max_records: PositiveInt = Field(description="records of one unit that are used: the first ones of the file")
    spelling: Literal["exact"] | None = Field(
        None,
        description="that names which differ in their spelling alone (101 and 0101) are of different units; without it "
        "such names are refused",
    )


Unit = Annotated[
    Annotated[Literal["record"], Tag("word")] | Annotated[UnitColumn, Tag("block")], Discriminator(word_form)
]

PerChannel = Annotated[
    Annotated[float, Tag("number")] | Annotated[Annotated[tuple[float, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "number"),
]
PerChannelPositive = Annotated[
    Annotated[PositiveFloat, Tag("number")]
    | Annotated[Annotated[tuple[PositiveFloat, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "list" if isinstance(value, list | tuple) else "number"),
]
ColumnNames = Annotated[tuple[Name, ...], Field(min_length=1)]


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


class TokenizerFile(Block):
    """A tokeniser in the format of the `tokenizers` library, as public checkpoints have one. It is declared public."""

    path: Text = Field(description="`tokenizer.json`; relative to the data root")
    vocabulary: Annotated[int, Field(ge=2, le=2**20)] = Field(description="every token is below this number")
    padding: NonNegativeInt = Field(0, description="the token after the last one of a text")


class Tokenize(Block):
    """The one text column of a table to numbers of its first tokens, and the padding token after the last: hashed words
    (1 … `buckets`, and 0), or the tokens of a tokeniser."""

    column: Name
    buckets: Annotated[int, Field(ge=2, le=2**20)] | None = Field(
        None, description="no vocabulary is learned: words are hashed"
    )
    tokenizer: TokenizerFile | None = None
    length: Annotated[int, Field(ge=1, le=4096)] = Field(description="tokens of a text that are read: the first ones")

    @property
    def vocabulary(self) -> int:
        """The number of tokens, including padding."""
        return (self.buckets or 0) + 1 if self.tokenizer is None else self.tokenizer.vocabulary


RoleText = Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
ASSISTANT = "assistant"
"""The role whose turns are learned."""


class Sequences(Block):
    """Step that turns each record into the tokens of one text; a model learns the next token at each place. Exactly one
    of `text`, `prompt` with `completion`, `chat` with `roles`, and `row` says what the text is."""

    text: Name | None = Field(None, description="the text column; all its tokens are learned")
    prompt: Name | None = Field(None, description="the text column that is read and not learned; with `completion`")
    completion: Name | None = Field(None, description="the text column whose tokens are learned, behind the prompt's")
    chat: Name | None = Field(None, description="the chat column; the turns of the `assistant` are learned")
    roles: Annotated[dict[Text, RoleText], Field(min_length=1, max_length=20)] | None = Field(
        None, description="of `chat`: the constant texts before and after each turn, by role"
    )
    row: Annotated[tuple[Name, ...], Field(min_length=1)] | None = Field(
        None, description="columns that are written as lines `name: value`, in this order; all of it is learned"
    )
    tokenizer: TokenizerFile
    begin: NonNegativeInt | None = Field(
        None, description="the token before each text, not learned: the checkpoint's own (`bos_token`)"
    )
    end: NonNegativeInt | None = Field(
        None, description="the token behind each text that is not cut, and learned: the checkpoint's own (`eos_token`)"
    )
    max_length: Annotated[int, Field(ge=2, le=2**16)] = Field(
        description="tokens of a sequence: longer texts are cut, shorter ones padded"
    )
    max_sequences: Annotated[int, Field(ge=1, le=2**15)] = Field(
        1, description="sequences of a record: a longer `text` is cut into several, which see nothing of each other"
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, in order."""
        named = (self.text, self.prompt, self.completion, self.chat)
        return self.row or tuple(name for name in named if name is not None)

    @property
    def vocabulary(self) -> int:
        """The number of tokens, including padding."""
        return self.tokenizer.vocabulary

    @property
    def places(self) -> int:
        """Tokens of a record: of all its sequences, one behind the other."""
        return self.max_length * self.max_sequences


class GroupNorm(Block):
    """Each record to mean 0 and variance 1 in each of `groups` groups of channels; constants of the record alone."""

    groups: PositiveInt


class Flatten(Block):
    """Features to one vector."""


ConstantStep = (
    Scale
    | ClipFeatures
    | OneHot
    | Hash
    | Tokenize
    | Sequences
    | Scattering
    | Patches
    | GroupNorm
    | Whiten
    | Flatten
    | Crop
    | Flip
)
Operation = ConstantStep | PaidStep


class Step(Block):
    """One step of preprocessing, a mapping of one key: constants, or `dp_…`, which reads private records and pays."""

    scale: Scale | None = None
    clip_features: ClipFeatures | None = None
    one_hot: OneHot | None = None
    hash: Hash | None = None
    tokenize: Tokenize | None = None
    sequences: Sequences | None = None
    scattering: Scattering | None = None
    patches: Patches | None = None
    group_norm: GroupNorm | None = None
    whiten: Whiten | None = None
    flatten: Flatten | None = None
    crop: Crop | None = None
    flip: Flip | None = None
    dp_quantiles: DpQuantiles | None = None
    dp_standardize: DpStandardize | None = None
    dp_pca: DpPca | None = None
    dp_categories: DpCategories | None = None
    dp_vocabulary: DpVocabulary | None = None
    dp_count: DpCount | None = None

    @property
    def operation(self) -> Operation | None:
        """The one operation that is set."""
        return next((value for _, value in self if value is not None), None)


class SizeBound(Block):
    """Upper bound on the number of units, declared instead of the number where that is protected."""

    max: PositiveInt = Field(description="upper bound on the number of units: declared, public")


Size = Annotated[
    Annotated[PositiveInt, Tag("number")] | Annotated[SizeBound, Tag("block")],
    Discriminator(lambda value: "block" if word_form(value) == "block" else "number"),
]


class Split(Block):
    """Rule for holding out records of the training source: a keyed hash of their unit, or of the text in a column."""

    by: Name = Field("unit", description="`unit` (with data.unit: record, the record's number), or a column")
    share: Fraction = Field(description="expected share of the units, or of the column's values, that is held out")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="key of the hash; public")


class SplitOff(Block):
    """Held-out records that are cut out of the training source and have no source of their own."""

    split: Split
    access: Access = Field("private_internal", description=ACCESS)


def _test_form(value: Any) -> str:
    """Returns the tag of held-out records: a source, or cut out of the training source. (`split` of some sources is a
    word.)
    """
    split = value.get("split") if isinstance(value, Mapping) else getattr(value, "split", None)
    return "cut" if isinstance(split, Mapping | Split | float | int) else "own"


if TYPE_CHECKING:
    HeldOutRecords = Source | SplitOff
else:
    HeldOutRecords = Annotated[
        Annotated[Source, Tag("own")] | Annotated[SplitOff, Tag("cut")], Discriminator(_test_form)
    ]


UNKNOWN_SIZE = "size: {max: NUMBER}, never exceeded, and as the first step of preprocess: - dp_count: {share: 0.02}"
"""The lines of a number of records or units that is not known, or may not be public."""


class Data(Block):
    """Private and public data, and the unit that is protected."""

    train: TrainSource
    public: PublicSource | None = Field(None, description="unlabelled records that may be published: what is asked")
    test: HeldOutRecords | None = None
    size: Size | None = Field(
        None,
        description="number of training records (of units, where `unit` is a column): declared, public; or {max: …}, "
        "where the number is protected and `dp_count` releases a noisy one; of records elsewhere it may be left out",
    )
    unit: Unit = Field("record", description="who is protected: a `record`, or all records of a unit")
    preprocess: tuple[Step, ...] = Field((), description="steps, in order")

    @model_validator(mode="after")
    def require_size(self) -> Self:
        """Refuses a source of records whose number is not declared: only records elsewhere may have an unknown one."""
        if self.size is None and not self.is_elsewhere:
            missing = InitErrorDetails(type="missing", loc=("size",), input={})
            raise ValidationError.from_exception_data("Data", [missing])
        return self

    @property
    def is_elsewhere(self) -> bool:
        """True if no run opens the private records: teachers have learned from them elsewhere."""
        return isinstance(self.train, Elsewhere)

    @property
    def split(self) -> Split | None:
        """Split that cuts held-out records out of the training source; None if there is none."""
        return self.test.split if isinstance(self.test, SplitOff) else None

    @property
    def test_source(self) -> Source | None:
        """The source that `test` names itself; None where its records are cut out of the training source."""
        return None if isinstance(self.test, SplitOff) else self.test

    @property
    def held_out(self) -> Source | None:
        """The source that held-out records are read from; None where there are none."""
        return self.train if isinstance(self.test, SplitOff) else self.test

    @property
    def omits_records(self) -> bool:
        """True if training records whose label is missing take part with a gradient of zero."""
        return self.train.omits_records

    @property
    def hides_size(self) -> bool:
        """True if the number of units is protected, and only a bound on it is declared."""
        return isinstance(self.size, SizeBound)

    @property
    def hides_training_units(self) -> bool:
        """True if the number of training units is not public: it is protected, or a split decides it."""
        return self.hides_size or self.split is not None

    @property
    def unit_name(self) -> str:
        """Protected unit, as accounts name it."""
        return write_unit_key(self.unit_column)

    @property
    def unit_column(self) -> str | None:
        """The column whose value the records of one unit share; None where each record is a unit."""
        return None if self.unit == "record" else self.unit.column

    @property
    def max_units(self) -> int:
        """The number of units of the training source, or the declared bound on it; a split leaves fewer to training. 1
        where nothing is declared: there is at least one."""
        return self.size.max if isinstance(self.size, SizeBound) else self.size or 1

    @property
    def declared_units(self) -> int | None:
        """`max_units`, where it is declared; None where records are elsewhere, and nothing says how many."""
        return None if self.size is None else self.max_units

    @property
    def planned_units(self) -> int:
        """Number of units that rates, lengths and divisors are planned from: public, and dependent on no record.

        It is `max_units`, or with a split the share that it leaves: `max_units` · (1 − share), rounded down.
        """
        share = Exact(0) if self.split is None else Exact(str(self.split.share))
        return max(1, math.floor(self.max_units * (1 - share)))

    def admits(self, units: int) -> bool:
        """Returns True if a training source of `units` units, before any split, is what is declared."""
        return 1 <= units <= self.max_units if self.hides_size else units == self.max_units
