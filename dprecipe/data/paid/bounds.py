"""Features of a paid step and their public bounds: from the recipe, and from what was released before.

`bounds` of named columns are in the columns' own units, as the table has them; of `columns: all` in the units that the
features have by then. Where a step declares none, they are the quantiles that an earlier step has released, else the
declared range of a numeric column. All of it is known before private records are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import column_facts, feature_shape, share_of_range, source_shape
from dprecipe.data.paid.constants import QuantileConstants, StageConstants
from dprecipe.data.paid.schema import DpQuantiles, DpStandardize
from dprecipe.data.schema import Data


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
