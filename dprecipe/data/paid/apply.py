"""Application of released constants: maps of one record each, so that they cost nothing.

Neighbouring data sets stay neighbouring after them, and the sensitivities of later steps are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprecipe.data.paid.constants import (
    ItemConstants,
    MomentConstants,
    ProjectionConstants,
    QuantileConstants,
    StageConstants,
)
from dprecipe.data.paid.items import items_of_value, items_of_words
from dprecipe.data.preprocess import Floats, clip_features


def apply_constants(x: Floats, constants: StageConstants) -> Floats:
    """Features (N, …) float32 after a paid step; items and counts leave them as they are.

    Guarantees: record i of the result depends on record i alone. A value that is not finite stays so, and what
    `dp_pca` makes has a norm of at most `row_norm` in any case.
    """
    match constants:
        case QuantileConstants():
            return _on_columns(x, constants.features, constants.low, constants.high)
        case MomentConstants():
            clipped = _on_columns(x, constants.features, constants.low, constants.high)
            places = list(constants.features)
            shape = (-1, *[1] * (x.ndim - 2))
            mean, std = (np.array(v, np.float32).reshape(shape) for v in (constants.mean, constants.std))
            clipped[:, places] = (clipped[:, places] - mean) / std
            return clipped
        case ProjectionConstants():
            # In double precision, then rounded: what a matrix product rounds may depend on how many rows it has.
            rows = clip_features(x, constants.row_norm).astype(np.float64)
            return clip_features((rows @ constants.matrix.astype(np.float64)).astype(np.float32), constants.row_norm)
        case _:
            return x


def _on_columns(x: Floats, features: Sequence[int], low: Sequence[float], high: Sequence[float]) -> Floats:
    result = x.copy()
    places = list(features)
    shape = (-1, *[1] * (x.ndim - 2))
    lows, highs = (np.array(v, np.float32).reshape(shape) for v in (low, high))
    part = x[:, places]
    result[:, places] = np.where(np.isfinite(part), np.clip(part, lows, highs), np.float32(np.nan))
    return result


def encode_items(columns: Sequence[Sequence[str]], constants: ItemConstants) -> Floats:
    """Texts of each column, (N,) each, to features (N, columns · (width + 1)), float32.

    Of a category the indicator of its item, of a text the count of each word; the last of a column's features counts
    what was not released. Features beyond the released items are 0.
    """
    split = items_of_value if constants.kind == "dp_categories" else items_of_words
    width = constants.width + 1
    result = np.zeros((len(columns[0]), width * len(columns)), np.float32)
    for number, (texts, released) in enumerate(zip(columns, constants.items, strict=True)):
        places = {item: place for place, item in enumerate(released)}
        part = result[:, number * width : (number + 1) * width]
        for row, text in enumerate(texts):
            for item in split(text) or ((text,) if constants.kind == "dp_categories" else ()):
                part[row, places.get(item, constants.width)] += 1.0
    return result
