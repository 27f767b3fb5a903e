"""Features of a paid step and their public bounds: from the recipe, and from what was released before.

`bounds` of named columns are in the columns' own units, as the table has them; of `columns: all` in the units that the
features have by then. Where a step declares none, they are the quantiles that an earlier step has released, else the
declared range of a numeric column. All of it is known before private records are read.

`find_misfit` checks that constants have the form that a recipe's paid step releases: a stranger's file must pass it.
The constants do not show whether they came from the private records with the claimed noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import column_facts, feature_shape, share_of_range, source_shape
from dprecipe.data.paid.constants import (
    CountConstants,
    ItemConstants,
    MomentConstants,
    ProjectionConstants,
    QuantileConstants,
    StageConstants,
)
from dprecipe.data.paid.schema import (
    DpCategories,
    DpCount,
    DpPca,
    DpQuantiles,
    DpStandardize,
    DpVocabulary,
    PaidStep,
    item_columns,
)
from dprecipe.data.schema import Data
from dprecipe.privacy.events import Charge
from dprecipe.privacy.stages.events import PartitionSelection


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBounds:
    """Finite bounds low < high, float64 (F,), of F features (of images: channels), int64 (F,)."""

    features: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @property
    def middle(self) -> NDArray[np.float64]:
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> NDArray[np.float64]:
        return self.high / 2 - self.low / 2


def find_bounds(data: Data, index: int, earlier: Sequence[StageConstants] = ()) -> ColumnBounds:
    """Returns the bounds of step `index` of `data.preprocess`, in the units of features.

    The step is a `DpQuantiles` or a `DpStandardize`.

    `earlier`: what the paid steps before it have released. A recipe without findings is assumed (`paid.checks`).
    """
    step = data.preprocess[index].operation
    if not isinstance(step, DpQuantiles | DpStandardize):
        raise ValueError(f"step {index} has no bounds")
    columns = data.train.table_columns or {}
    facts = column_facts(columns, data.preprocess)
    if step.columns == "all":
        shape = feature_shape(source_shape(facts, data.train.record_shape), data.preprocess[:index])
        features = np.arange(shape[0])
        low, high = step.bounds if isinstance(step.bounds, tuple) else (0.0, 1.0)
        lows, highs = np.full(len(features), float(low)), np.full(len(features), float(high))
    else:
        places = {column.name: column.start for column in facts}
        names = sorted(step.columns, key=places.__getitem__)
        features = np.array([places[name] for name in names])
        ends = [share_of_range(columns[name], _declared(step, name)) for name in names]
        lows, highs = np.array([low for low, _ in ends]), np.array([high for _, high in ends])
    if step.bounds is None:
        for constants in earlier:
            if isinstance(constants, QuantileConstants):
                place = {feature: number for number, feature in enumerate(constants.features)}
                for number, feature in enumerate(features.tolist()):
                    if feature in place:
                        lows[number], highs[number] = constants.low[place[feature]], constants.high[place[feature]]
    return ColumnBounds(features, lows, highs)


def _declared(step: DpQuantiles | DpStandardize, name: str) -> tuple[float, float] | None:
    return step.bounds.get(name) if isinstance(step.bounds, dict) else step.bounds


def find_misfit(
    data: Data, index: int, charges: Sequence[Charge], constants: StageConstants, earlier: Sequence[StageConstants]
) -> str | None:
    """Explains why constants can't be what step `index` released under `charges`, after `earlier`; None: they can.

    A recipe without findings is assumed; of `constants` what `parse_constants` checks.
    """
    step = data.preprocess[index].operation
    match step, constants:
        case DpQuantiles(), QuantileConstants():
            bounds = find_bounds(data, index, earlier)
            if list(constants.features) != bounds.features.tolist():
                return "other columns"
            inside = zip(bounds.low.tolist(), constants.low, constants.high, bounds.high.tolist(), strict=True)
            return None if all(a <= low and high <= b for a, low, high, b in inside) else "a quantile out of its bounds"
        case DpStandardize(), MomentConstants():
            bounds = find_bounds(data, index, earlier)
            stated = (list(constants.features), list(constants.low), list(constants.high))
            if stated != (bounds.features.tolist(), bounds.low.tolist(), bounds.high.tolist()):
                return "other columns or bounds"
            return None
        case DpPca(), ProjectionConstants():
            columns = column_facts(data.train.table_columns or {}, data.preprocess)
            shape = feature_shape(source_shape(columns, data.train.record_shape), data.preprocess[:index])
            stated_form = (constants.features, constants.components, constants.row_norm)
            return None if stated_form == (shape[0], step.components, step.row_norm) else "another form or norm"
        case DpCategories() | DpVocabulary(), ItemConstants():
            (event,) = (charge.event for charge in charges)
            threshold = event.threshold if isinstance(event, PartitionSelection) else None
            if (constants.width, constants.threshold, len(constants.items)) != (
                step.width, threshold, len(item_columns(step)),
            ):  # fmt: skip
                return "another width, threshold or number of columns"
            return None if constants.kind == _key(step) else "items of another step"
        case DpCount(), CountConstants():
            return None
        case _:
            return f"constants of {constants.kind}"


def find_wrong_shape(step: PaidStep, shape: tuple[int, ...], constants: StageConstants) -> str | None:
    """Explains why constants can't be applied to features of this shape; None: they can. `find_misfit` asks for more,
    and for the recipe.
    """
    match step, constants:
        case DpQuantiles(), QuantileConstants(features=features):
            return None if features[-1] < shape[0] else "a feature that records don't have"
        case DpStandardize(), MomentConstants(features=features):
            return None if features[-1] < shape[0] else "a feature that records don't have"
        case DpPca(components=components), ProjectionConstants():
            same = (constants.features,) == shape and constants.components == components
            return None if same else "another form"
        case DpCategories() | DpVocabulary(), ItemConstants():
            same = (constants.kind, constants.width) == (_key(step), step.width)
            return None if same and len(constants.items) == len(item_columns(step)) else "items of another step"
        case DpCount(), CountConstants():
            return None
        case _:
            return f"constants of {constants.kind}"


def _key(step: DpCategories | DpVocabulary) -> str:
    return "dp_categories" if isinstance(step, DpCategories) else "dp_vocabulary"
