"""The steps of `data.preprocess` that read private records and pay for it, as a recipe writes them.

Each has one price: `noise_multiplier`, the scale of its noise divided by the add-or-remove sensitivity of what it
releases (`auto`: solved), or `share`, the part of ε that the step would cost alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.language.base import Auto, Block, Fraction, Name, word_form
from dprecipe.noise.schema import Multiplier

MAX_FEATURES = 4096
"""Features of `dp_pca`, at most: its matrix has this many rows and columns."""
MAX_ENTRIES = 1 << 21
"""Entries of a projection, at most: 8 MiB in single precision."""
MAX_COLUMNS = 256
"""Columns of `dp_quantiles`, at most: each takes two draws."""
MAX_WIDTH = 4096
"""Items of one column that are used."""
MAX_CHARACTERS = 256
"""Characters of an item, at most: a longer one is never released."""

PRICE = "scale of the noise, divided by the sensitivity of the release; `auto`: solved"
SHARE = "in place of noise_multiplier: the part of ε that this step would cost alone"
Bound = Annotated[tuple[float, float], Field(description="[lowest, highest]")]
Bounds = Annotated[
    Annotated[Bound, Tag("list")] | Annotated[dict[Name, Bound], Tag("block")],
    Discriminator(lambda value: "block" if isinstance(value, Mapping) else "list"),
]
PaidColumns = Annotated[
    Annotated[Literal["all"], Tag("word")] | Annotated[Annotated[tuple[Name, ...], Field(min_length=1)], Tag("list")],
    Discriminator(lambda value: "word" if isinstance(value, str) else "list"),
]
Leak = Annotated[float, Field(gt=0, le=0.1)]
MinUnits = Annotated[
    Annotated[Auto, Tag("word")] | Annotated[Annotated[float, Field(ge=1, le=1e12)], Tag("number")],
    Discriminator(word_form),
]


class DpQuantiles(Block):
    """Clip columns to quantiles, which are released by the exponential mechanism: two for each column."""

    columns: PaidColumns
    low: Fraction = Field(0.02, description="level of the lower quantile")
    high: Fraction = Field(0.98, description="level of the upper quantile")
    bounds: Bounds | None = Field(
        None, description="generous ones, from domain knowledge; when left out, a numeric column's range"
    )
    noise_multiplier: Multiplier | None = Field(None, description=PRICE)
    share: Fraction | None = Field(None, description=SHARE)


class DpStandardize(Block):
    """Columns (of images: channels) to mean 0 and variance 1, by released moments."""

    columns: PaidColumns = "all"
    bounds: Bounds | None = Field(
        None, description="what values are clipped to; when left out, released quantiles, or a numeric column's range"
    )
    noise_multiplier: Multiplier | None = Field(None, description=PRICE)
    share: Fraction | None = Field(None, description=SHARE)


class DpPca(Block):
    """Vectors to their components along the leading eigenvectors of a noisy second-moment matrix."""

    components: Annotated[int, Field(ge=1, le=MAX_FEATURES)] = Field(description="the features that come out")
    explained: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="keep as few as have this share of the noisy spectrum; the other components are 0"
    )
    row_norm: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(
        1.0, description="L2 norm that each record is clipped to"
    )
    noise_multiplier: Multiplier | None = Field(None, description=PRICE)
    share: Fraction | None = Field(None, description=SHARE)


class DpCategories(Block):
    """Text columns to indicators of the values that enough units have, and one of `other`; values are released."""

    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=64)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)] = Field(description="values of one column that are used at most")
    max_items: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="distinct values of one unit that count")
    min_units: MinUnits = Field("auto", description="noisy number of units from which on a value is released")
    leak: Leak = Field(1e-6, description="of min_units auto: probability that a unit's own values are released")
    noise_multiplier: Multiplier | None = Field(None, description=PRICE)
    share: Fraction | None = Field(None, description=SHARE)


class DpVocabulary(Block):
    """A text column to counts of the words that enough units use; the words are released."""

    column: Name
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)] = Field(description="words that are used at most")
    max_items: Annotated[int, Field(ge=1, le=1024)] = Field(description="distinct words of one unit that count")
    min_units: MinUnits = Field("auto", description="noisy number of units from which on a word is released")
    leak: Leak = Field(1e-6, description="of min_units auto: probability that a unit's own words are released")
    noise_multiplier: Multiplier | None = Field(None, description=PRICE)
    share: Fraction | None = Field(None, description=SHARE)


class DpCount(Block):
    """Release a noisy number of units; later steps divide by it. Features stay as they are."""

    noise_multiplier: Multiplier | None = Field(None, description=PRICE)
    share: Fraction | None = Field(None, description=SHARE)


PaidStep = DpQuantiles | DpStandardize | DpPca | DpCategories | DpVocabulary | DpCount
ItemStep = DpCategories | DpVocabulary
PAID: Mapping[str, type[PaidStep]] = {
    "dp_quantiles": DpQuantiles,
    "dp_standardize": DpStandardize,
    "dp_pca": DpPca,
    "dp_categories": DpCategories,
    "dp_vocabulary": DpVocabulary,
    "dp_count": DpCount,
}
"""Types of paid steps by the key of the step."""


def is_paid(operation: Any) -> bool:
    """Returns True if an operation of preprocessing reads private records and pays for it."""
    return isinstance(operation, PaidStep)


def item_columns(step: ItemStep) -> tuple[str, ...]:
    """Returns the text columns whose items a step releases."""
    return step.columns if isinstance(step, DpCategories) else (step.column,)


def items_of_unit(step: ItemStep) -> int:
    """Returns k: the distinct items that one unit contributes at most, over all columns of the step."""
    return step.max_items * len(item_columns(step))
