"""Facts about the data that the recipe states: shape, label and columns. No data is read.

At the front are numbers as features hold them, in single precision. No numpy: recipes are checked by it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dprecipe.data.columns import ColumnBlock
from dprecipe.data.paid.schema import DpCategories, DpPca, DpVocabulary, ItemStep, item_columns
from dprecipe.data.schema import ClipFeatures, Columns, Data, Hash, OneHot, Sequences, Step, Tokenize, TokenizerFile
from dprecipe.data.targets import Target, TokenTarget
from dprecipe.faults import RecipeError

MAX_WHITENED = 4096
"""Features, or channels, that `whiten` takes: it makes a matrix of as many rows, and its eigenvectors in a minute."""
LARGEST = 1e30
"""The largest constant: products and quotients of features with it stay finite in single precision."""


def round_to_single(number: float) -> float:
    """Returns the nearest number of single precision; infinite beyond its range."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)
    return rounded


def has_width(low: float, high: float) -> bool:
    """Returns True if an interval has a width in single precision, large enough to divide by a hundredth of it."""
    low, high = round_to_single(low), round_to_single(high)
    return low < high and 1 / LARGEST < high / 2 - low / 2 < LARGEST


Role = Literal["train", "test", "public"]


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """The position of a table's column in the feature vector: `width` features from `start`."""

    name: str
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class DataFacts:
    """The public constants of a data set, all of them written in the recipe."""

    shape: tuple[int, ...]
    """The shape of one record's features as the model sees them: (D,); of images, (channels, height, width); of
    sequences, (2, places): input tokens and labels."""
    target: Target
    """Kind of the label."""
    source_shape: tuple[int, ...]
    """The shape of one record as it is read, before preprocessing."""
    columns: tuple[ColumnFacts, ...] = ()
    vocabulary: int | None = None
    """The number of tokens, which are 0 … vocabulary − 1; None if the features are quantities."""
    tokenizer: TokenizerFile | None = None
    """Tokeniser of texts; None if there are no texts, or their words are hashed."""
    max_length: int | None = None
    """Places of one sequence; a record has one sequence or several."""

    @property
    def outputs(self) -> int:
        """The number of a model's outputs."""
        return self.target.outputs

    @property
    def is_pixels(self) -> bool:
        """The features are the pixels of an image, which augmentation can move."""
        return len(self.shape) == 3 and self.shape == self.source_shape

    @property
    def width(self) -> int:
        """The number of features of one record."""
        return math.prod(self.shape)


def describe_size(data: Data) -> str:
    """Describes what is assumed of the number of units."""
    units = data.planned_units
    if data.split is None:
        known = f"the number of units, {units}, is public"
        return f"there are from 1 to {units} units; how many is protected" if data.hides_size else known
    whole = f"the number of units in the training source, {data.max_units}, is public"
    if data.hides_size:
        whole = f"there are from 1 to {data.max_units} units in the training source; how many is protected"
    return f"{whole}; how many of them are not held out is not public, and {units} are planned for"


def describe_data(data: Data, role: Role = "train") -> DataFacts:
    """Returns the facts of the training source, or of the test source (without one, of the training source).

    Public records have the facts of the training source: the same features, and no labels are read.

    Raises:
        RecipeError: `data` contradicts itself (every finding of `dprecipe.data.checks`).
    """
    from dprecipe.data.checks import check_data  # checks ask this module for widths and shapes

    findings = check_data(data)
    if findings:
        raise RecipeError(findings)
    source = (data.held_out if role == "test" else None) or data.train
    columns = column_facts(source.table_columns or {}, data.preprocess)
    before = source_shape(columns, source.record_shape)
    shape = feature_shape(before, data.preprocess)
    own, tokens = tokenizer_file(data.preprocess), count_vocabulary(data.preprocess)
    sequences = sequences_step(data.preprocess)
    if sequences is not None:
        return DataFacts(shape, TokenTarget(sequences.vocabulary), shape, columns, tokens, own, sequences.max_length)
    return DataFacts(shape, source.target, before, columns, tokens, own)


def feature_norm(data: Data) -> float | None:
    """Returns the bound on the L2 norm of features, if the last step that can change norms bounds it; otherwise
    None.
    """
    changing = [step for step in data.preprocess if step.flatten is None and step.dp_count is None]
    match changing[-1].operation if changing else None:
        case ClipFeatures(norm=norm) | DpPca(row_norm=norm):
            return norm
        case _:
            return None


def source_shape(columns: Sequence[ColumnFacts], declared: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of one record as it is read: the encoded columns, or the declared array as models see it."""
    return (sum(column.width for column in columns),) if columns else model_shape(declared)


def feature_shape(shape: tuple[int, ...], steps: Sequence[Step]) -> tuple[int, ...]:
    """Returns the shape of one record after preprocessing."""
    for step in steps:
        shape = shape_after(step, shape)
    return shape


def shape_after(step: Step, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of one record after one step, given the shape before it."""
    if step.scattering is not None and len(shape) == 3:
        channels, height, width = shape
        scales, angles = step.scattering.scales, step.scattering.angles
        return (channels * count_scattering_coefficients(scales, angles), height >> scales, width >> scales)
    if step.patches is not None:
        return (2 * step.patches.filters, step.patches.grid, step.patches.grid)
    if step.dp_pca is not None:
        return (step.dp_pca.components,)
    if step.sequences is not None:
        return (2, step.sequences.places)
    whitened = step.whiten is not None and step.whiten.across == "features"
    return (math.prod(shape),) if step.flatten is not None or whitened else shape


def is_slow(step: Step) -> bool:
    """Returns True if a step is too slow to repeat for each batch: its features are computed once, and kept."""
    return step.scattering is not None or step.patches is not None or step.whiten is not None


def count_scattering_coefficients(scales: int, angles: int) -> int:
    """Returns the number of channels that scattering computes from one: 1 + JL + L²J(J−1)/2, of orders 0, 1 and 2."""
    return 1 + scales * angles + angles**2 * scales * (scales - 1) // 2


def model_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns a declared shape as models see it: channels first, one channel for grey images; vectors stay."""
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 3:
        return (shape[2], shape[0], shape[1])
    return shape


def column_facts(columns: Columns, steps: Sequence[Step]) -> tuple[ColumnFacts, ...]:
    """Returns the columns of a table in declared order, with the width that their encoding gives them; none where
    `sequences` makes one text of them.
    """
    if sequences_step(steps) is not None:
        return ()
    results: list[ColumnFacts] = []
    start = 0
    by_hash, by_items = hash_steps(steps), item_steps(steps)
    tokens = tokenize_step(steps)
    for name, column in columns.items():
        if column.step != "hash":
            width = column.width
        elif tokens is not None and tokens.column == name:
            width = tokens.length
        elif name in by_items:
            width = by_items[name].width + 1  # one more for `other`
        else:
            width = by_hash[name].buckets if name in by_hash else 0
        results.append(ColumnFacts(name, start, width))
        start += width
    return tuple(results)


def share_of_range(column: ColumnBlock | None, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Maps bounds from a numeric column's own units to its feature, where its min is 0 and its max 1."""
    limits = None if column is None else column.limits
    if bounds is None or limits is None:
        return 0.0, 1.0
    least, most = limits
    span = most / 2 - least / 2
    low, high = ((min(max(bound, least), most) / 2 - least / 2) / span for bound in bounds)
    return low, high


def hash_steps(steps: Sequence[Step]) -> dict[str, Hash]:
    """Returns the hash step of each hashed column."""
    return {name: step.hash for step in steps if step.hash is not None for name in step.hash.columns}


def item_steps(steps: Sequence[Step]) -> dict[str, ItemStep]:
    """Returns the step that releases the items of each column."""
    operations = [step.operation for step in steps]
    return {
        name: operation
        for operation in operations
        if isinstance(operation, DpCategories | DpVocabulary)
        for name in item_columns(operation)
    }


def tokenize_step(steps: Sequence[Step]) -> Tokenize | None:
    """Returns the `tokenize` step, if there is one."""
    return next((step.tokenize for step in steps if step.tokenize is not None), None)


def sequences_step(steps: Sequence[Step]) -> Sequences | None:
    """Returns the `sequences` step, if there is one."""
    return next((step.sequences for step in steps if step.sequences is not None), None)


def tokenizer_file(steps: Sequence[Step]) -> TokenizerFile | None:
    """Returns the tokeniser whose tokens texts become; None without one, and where words are hashed."""
    step = sequences_step(steps) or tokenize_step(steps)
    return None if step is None else step.tokenizer


def has_tokenizer(steps: Sequence[Step]) -> bool:
    """Returns True if texts become the tokens of a tokeniser, whose file a model needs."""
    return tokenizer_file(steps) is not None


def count_vocabulary(steps: Sequence[Step]) -> int | None:
    """Returns the number of tokens, including padding; None if the features are not tokens."""
    step = sequences_step(steps) or tokenize_step(steps)
    return None if step is None else step.vocabulary


def one_hot_columns(step: OneHot, columns: Columns) -> tuple[str, ...]:
    """Returns the columns that a one_hot step encodes."""
    if step.columns is not None:
        return step.columns
    return tuple(name for name, column in columns.items() if column.step == "one_hot")
