"""Constants that a stranger wrote, and what they make of records."""

from __future__ import annotations

import base64
import copy
import json
import math
from typing import Any

import numpy as np
import pytest

from dprecipe.data.paid.apply import apply_constants, encode_items
from dprecipe.data.paid.constants import (
    CountConstants,
    ItemConstants,
    MomentConstants,
    ProjectionConstants,
    QuantileConstants,
    StageConstants,
    dump_constants,
    parse_constants,
)

BASIS = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 3)))[0]
QUANTILES = QuantileConstants(features=(0, 2), low=(0.0, -5.5), high=(1.0, 3.25))
MOMENTS = MomentConstants(features=(1, 3), low=(-1.0, 0.0), high=(1.0, 10.0), mean=(0.1, 4.0), std=(0.5, 2.0))
PROJECTION = ProjectionConstants(
    features=6,
    components=3,
    row_norm=2.0,
    eigenvalues=(0.5, 0.2, -0.1),
    noise_edge=0.01,
    basis=ProjectionConstants.pack(BASIS),
)
ITEMS = ItemConstants(kind="dp_categories", width=3, threshold=21.5, items=(("a", "bb"), ("Zürich", "ä")))
WORDS = ItemConstants(kind="dp_vocabulary", width=2, threshold=21.5, items=(("free", "money"),))
COUNT = CountConstants(units=-0.5)
ALL: list[StageConstants] = [QUANTILES, MOMENTS, PROJECTION, ITEMS, WORDS, COUNT]


@pytest.mark.parametrize("constants", ALL, ids=lambda constants: constants.kind)
def test_constants_are_read_as_they_are_written(constants: StageConstants) -> None:
    text = json.dumps(dump_constants(constants), allow_nan=False)
    assert parse_constants(json.loads(text)) == constants
    assert json.dumps(dump_constants(parse_constants(json.loads(text)))) == text


def broken(constants: StageConstants, **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(dump_constants(constants)), **changes}


UNORTHOGONAL = ProjectionConstants.pack(np.ones((6, 3)) / math.sqrt(6))
HOLED = BASIS.copy()
HOLED[2, 1] = math.nan
WITH_NAN = ProjectionConstants.pack(HOLED)
HOSTILE: list[Any] = [
    None,
    [],
    {},
    {"kind": "dp_other"},
    {"kind": ["dp_count"]},
    broken(COUNT, units=math.nan),
    broken(COUNT, units=math.inf),
    broken(COUNT, units=1e31),
    broken(COUNT, units="7"),
    broken(COUNT, units=True),
    broken(COUNT, units=0),
    broken(COUNT, units=False),
    broken(QUANTILES, low=[0, -5.5]),
    broken(COUNT, more=1),
    {"kind": "dp_count"},
    broken(COUNT, units=object()),
    broken(QUANTILES, low=[0.0]),
    broken(QUANTILES, low=[]),
    broken(QUANTILES, features=[2, 0]),
    broken(QUANTILES, features=[0, 0]),
    broken(QUANTILES, features=[-1, 2]),
    broken(QUANTILES, features=[0, 1 << 24]),
    broken(QUANTILES, features=[0.0, 2.0]),
    broken(QUANTILES, low=[1.0, -5.5]),
    broken(QUANTILES, low=[0.0] * 70_000, high=[1.0] * 70_000, features=list(range(70_000))),
    broken(MOMENTS, mean=[1.5, 4.0]),
    broken(MOMENTS, std=[0.0, 2.0]),
    broken(MOMENTS, std=[1e-9, 2.0]),
    broken(MOMENTS, std=[50.0, 2.0]),
    broken(MOMENTS, std=[-0.5, 2.0]),
    broken(MOMENTS, low=[1.0, 0.0]),
    broken(PROJECTION, basis=UNORTHOGONAL),
    broken(PROJECTION, basis=WITH_NAN),
    broken(PROJECTION, basis=ProjectionConstants.pack(2 * BASIS)),
    broken(PROJECTION, basis=ProjectionConstants.pack(0 * BASIS)),
    broken(PROJECTION, basis=ProjectionConstants.pack(BASIS[:5])),
    broken(PROJECTION, basis=dump_constants(PROJECTION)["basis"] + "\n"),
    broken(PROJECTION, basis="!" * 96),
    broken(PROJECTION, basis="ä" * 96),
    broken(PROJECTION, basis=base64.b64encode(bytes(72)).decode() + "===="),
    broken(PROJECTION, components=7),
    broken(PROJECTION, components=2),
    broken(PROJECTION, features=4096, components=4096),
    broken(PROJECTION, row_norm=0.0),
    broken(PROJECTION, eigenvalues=[0.5, 0.2]),
    broken(ITEMS, items=[["bb", "a"], []]),
    broken(ITEMS, items=[["a", "a"], []]),
    broken(ITEMS, items=[["a", "b", "c", "d"], []]),
    broken(ITEMS, items=[]),
    broken(ITEMS, items=[["\ud800"], []]),
    broken(ITEMS, items=[[""], []]),
    broken(ITEMS, items=[["x" * 257], []]),
    broken(ITEMS, items=[[1], []]),
    broken(ITEMS, width=0),
    broken(ITEMS, kind="dp_quantiles"),
]


@pytest.mark.parametrize("content", HOSTILE, ids=range(len(HOSTILE)))
def test_anything_else_is_refused(content: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (pydantic's own messages)
        parse_constants(content)


def test_nesting_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="no JSON"):
        parse_constants({"kind": "dp_count", "units": deep})


RNG = np.random.default_rng(1)


@pytest.mark.parametrize("constants", [QUANTILES, MOMENTS, PROJECTION, COUNT, ITEMS], ids=lambda c: c.kind)
def test_each_record_is_mapped_on_its_own(constants: StageConstants) -> None:
    x = RNG.normal(scale=3, size=(9, 6)).astype(np.float32)
    whole = apply_constants(x, constants)
    changed = x.copy()
    changed[4] = [np.nan, np.inf, -np.inf, 3e38, 0, 1]
    again = apply_constants(changed, constants)
    others = np.arange(9) != 4
    np.testing.assert_array_equal(whole[others], again[others])
    np.testing.assert_array_equal(apply_constants(x[2:3], constants), whole[2:3])
    assert whole.dtype == np.float32


def test_quantiles_clip_and_leave_what_is_not_finite() -> None:
    x = np.array([[2, 7, -9], [np.inf, np.nan, np.nan]], np.float32)
    result = apply_constants(x, QUANTILES)
    np.testing.assert_array_equal(result, [[1, 7, -5.5], [np.nan, np.nan, np.nan]])
    np.testing.assert_array_equal(x[0], [2, 7, -9])


def test_moments_standardise_vectors_and_channels() -> None:
    x = np.array([[5, 0.6, 5, 20]], np.float32)
    np.testing.assert_allclose(apply_constants(x, MOMENTS), [[5, 1.0, 5, 3.0]], rtol=1e-6)
    images = np.zeros((2, 4, 3, 3), np.float32)
    result = apply_constants(images, MOMENTS)
    np.testing.assert_allclose(result[:, 1], -0.2, rtol=1e-6)
    np.testing.assert_allclose(result[:, 3], -2.0, rtol=1e-6)
    assert not result[:, [0, 2]].any()


def test_projected_rows_have_at_most_the_norm_of_the_rows() -> None:
    x = (RNG.normal(size=(500, 6)) * 10.0 ** RNG.uniform(-3, 30, (500, 1))).astype(np.float32)
    x[:100] = (RNG.normal(size=(100, 3)) @ BASIS.T * 100).astype(np.float32)  # within the span, and clipped
    x[0] = np.nan
    norms = np.linalg.norm(apply_constants(x, PROJECTION).astype(np.float64), axis=1)
    assert norms.max() <= PROJECTION.row_norm
    assert norms[1:100].min() > PROJECTION.row_norm * (1 - 1e-5)
    assert norms[0] == 0


def test_items_become_indicators_and_counts() -> None:
    result = encode_items([["a", "bb", "c", ""], ["ä", "", "Zürich", "zürich"]], ITEMS)
    np.testing.assert_array_equal(
        result,
        [
            [1, 0, 0, 0, 0, 1, 0, 0],
            [0, 1, 0, 0, 0, 0, 0, 1],
            [0, 0, 0, 1, 1, 0, 0, 0],
            [0, 0, 0, 1, 0, 0, 0, 1],
        ],
    )
    np.testing.assert_array_equal(encode_items([["Money, free money now", ""]], WORDS), [[1, 2, 1], [0, 0, 0]])
