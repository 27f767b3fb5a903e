"""What a paid step says about itself and about the features before it; and shapes and bounds, known before any run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.facts import describe_data, feature_norm
from dprecipe.data.paid.bounds import find_bounds
from dprecipe.data.paid.constants import QuantileConstants
from dprecipe.data.schema import Data

AGE = {"kind": "numeric", "min": 0, "max": 200}
COLUMNS = {"age": AGE, "gain": {"kind": "numeric", "min": -50, "max": 50}, "city": {"kind": "text"}}
NUMBERS = {"age": AGE, "sex": {"kind": "category", "values": ["f", "m"]}}
NPZ = {"source": "npz", "path": "p", "shape": [7], "classes": 2}
IMAGES = {"source": "idx", "images": "i", "labels": "l", "shape": [8, 8]}
PAY = {"share": 0.1}
CITY = {"dp_categories": {"columns": ["city"], "width": 20, **PAY}}
HASH = {"hash": {"columns": ["city"], "buckets": 8}}
SCALE = {"scale": {"mean": 0, "std": 1}}
FLAT = {"flatten": {}}


def table(columns: dict[str, Any] = COLUMNS) -> dict[str, Any]:
    return {"source": "csv", "path": "p", "columns": columns, "label": {"column": "y", "classes": 2}}


def data_of(train: dict[str, Any], *steps: dict[str, Any]) -> Data:
    return Data.model_validate_json(json.dumps({"train": train, "size": 100, "preprocess": steps}))


def standardize(**keys: Any) -> dict[str, Any]:
    return {"dp_standardize": {**PAY, **keys}}


def quantiles(**keys: Any) -> dict[str, Any]:
    return {"dp_quantiles": {"columns": ["age"], **PAY, **keys}}


def pca(**keys: Any) -> dict[str, Any]:
    return {"dp_pca": {"components": 3, **PAY, **keys}}


GOOD = {
    "a table": (table(), CITY, quantiles(), standardize(columns=["age", "gain"]), pca(), {"dp_count": PAY}),
    "numbers and categories": (table(NUMBERS), {"one_hot": {}}, {"dp_count": PAY}, standardize(), pca()),
    "bounds by column": (table(), HASH, quantiles(columns=["age"], bounds={"age": [0, 130]})),
    "one bound for columns": (table(), HASH, standardize(columns=["age", "gain"], bounds=[0, 40])),
    "a vector": (NPZ, standardize(bounds=[-1, 1]), pca(components=7, explained=0.9)),
    "a vector by quantiles": (NPZ, quantiles(columns="all", bounds=[-9, 9]), standardize()),
    "channels": (IMAGES, {"scattering": {}}, standardize(bounds=[-1, 1]), FLAT, pca(components=60)),
    "words": (
        table({"city": {"kind": "text"}}),
        {"dp_vocabulary": {"column": "city", "width": 9, "max_items": 4, **PAY}},
    ),
    "a number": (NPZ, pca(share=None, noise_multiplier=16.0)),
    "auto": (NPZ, pca(share=None, noise_multiplier="auto")),
}


@pytest.mark.parametrize("name", GOOD)
def test_sound_steps_have_no_findings(name: str) -> None:
    assert check_data(data_of(*GOOD[name])) == []


BAD: dict[str, tuple[tuple[dict[str, Any], ...], str, str, str]] = {
    "no price": ((NPZ, pca(share=None)), "R223", "0.dp_pca", "has none"),
    "two prices": ((NPZ, pca(noise_multiplier=1.0)), "R223", "0.dp_pca", "has two"),
    "counted twice": ((NPZ, {"dp_count": PAY}, {"dp_count": PAY}), "R223", "1.dp_count", "twice"),
    "an unknown column": ((table(), HASH, quantiles(columns=["agee"])), "R224", "1.dp_quantiles.columns.0", "'age'"),
    "a hashed column": ((table(), HASH, standardize(columns=["city"])), "R224", "1.dp_standardize.columns.0", "hash"),
    "a released column": (
        (table(), CITY, standardize(columns=["city"])),
        "R224",
        "1.dp_standardize.columns.0",
        "items",
    ),
    "a column twice": (
        (table(), HASH, standardize(columns=["age", "age"])),
        "R224",
        "1.dp_standardize.columns.1",
        "twice",
    ),
    "columns of an array": ((NPZ, quantiles()), "R224", "0.dp_quantiles.columns", "no columns"),
    "other units": ((table(), HASH, SCALE, quantiles()), "R224", "2.dp_quantiles.columns", "after scale"),
    "standardised twice": (
        (table(), HASH, standardize(columns=["age"]), quantiles()),
        "R224",
        "2.dp_quantiles.columns",
        "units",
    ),
    "bounds missing": ((NPZ, standardize()), "R225", "0.dp_standardize", "nothing bounds"),
    "bounds missing after scale": (
        (table(NUMBERS), {"one_hot": {}}, SCALE, standardize()),
        "R225",
        "2.dp_standardize",
        "nothing",
    ),
    "bounds missing of quantiles": ((NPZ, quantiles(columns="all")), "R225", "0.dp_quantiles", "nothing bounds"),
    "bounds reversed": ((NPZ, standardize(bounds=[1, -1])), "R225", "0.dp_standardize.bounds", "not below"),
    "bounds that are none": ((NPZ, standardize(bounds=[1, 1])), "R225", "0.dp_standardize.bounds", "not below"),
    "bounds too wide": ((NPZ, standardize(bounds=[-1e308, 1e308])), "R225", "0.dp_standardize.bounds", "far apart"),
    "bounds of one single": (
        (NPZ, standardize(bounds=[1, 1.00000001])),
        "R225",
        "0.dp_standardize.bounds",
        "no width",
    ),
    "bounds too narrow": ((NPZ, standardize(bounds=[0, 1e-40])), "R225", "0.dp_standardize.bounds", "no width"),
    "bounds beyond single": ((NPZ, quantiles(columns="all", bounds=[1e39, 2e39])), "R225", "0.dp_quantiles.bounds", ""),
    "bounds of a small part": (
        (table(), HASH, standardize(columns=["age"], bounds=[100, 100.0000001])),
        "R225",
        "1.dp_standardize.bounds",
        "too small a part",
    ),
    "bounds of another column": (
        (table(), HASH, quantiles(bounds={"gain": [0, 1]})),
        "R225",
        "1.dp_quantiles.bounds.gain",
        "not among",
    ),
    "bounds beyond the range": (
        (table(), HASH, quantiles(bounds={"age": [300, 400]})),
        "R225",
        "1.dp_quantiles.bounds.age",
        "overlap",
    ),
    "bounds by column for all": (
        (NPZ, standardize(bounds={"x": [0, 1]})),
        "R225",
        "0.dp_standardize.bounds",
        "by column",
    ),
    "levels reversed": ((table(), HASH, quantiles(low=0.9, high=0.1)), "R225", "1.dp_quantiles.low", "not below"),
    "too many components": ((NPZ, pca(components=8)), "R226", "0.dp_pca.components", "8 components of 7"),
    "components of images": ((IMAGES, pca()), "R226", "0.dp_pca", "images"),
    "too many features": (({**NPZ, "shape": [5000]}, pca()), "R226", "0.dp_pca", "5,000"),
    "too large a basis": (({**NPZ, "shape": [4096]}, pca(components=600)), "R226", "0.dp_pca.components", "512"),
    "quantiles of images": ((IMAGES, quantiles(columns="all", bounds=[0, 1])), "R226", "0.dp_quantiles", "images"),
    "quantiles of many": (
        ({**NPZ, "shape": [300]}, quantiles(columns="all", bounds=[0, 1])),
        "R226",
        "0.dp_quantiles.columns",
        "300",
    ),
    "too late": ((table(), quantiles(), CITY), "R207", "1.dp_categories", "too late"),
    "flipped after": ((IMAGES, FLAT, pca(), {"flip": {}}), "R212", "2.flip", "are not images"),
    "encoded twice": ((table(), HASH, CITY), "R210", "", "2 times"),
    "no text": (
        (table(), {"dp_categories": {"columns": ["age"], "width": 3, **PAY}}, HASH),
        "R208",
        "0.dp_categories.columns.0",
        "numeric",
    ),
    "a misspelt text": (
        (table(), {"dp_vocabulary": {"column": "citty", "width": 3, "max_items": 4, **PAY}}),
        "R208",
        "0.dp_vocabulary.column",
        "'city'",
    ),
    "tokens": (
        (
            table({"city": {"kind": "text"}}),
            {"tokenize": {"column": "city", "buckets": 9, "length": 4}},
            standardize(bounds=[0, 9]),
        ),
        "R220",
        "1.dp_standardize",
        "words",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_found_with_its_place(name: str) -> None:
    given, code, path, words = BAD[name]
    findings = [finding for finding in check_data(data_of(*given)) if finding.code == code]
    assert [f.path for f in findings] == [f"data.preprocess.{path}" if path else "data.preprocess"], findings
    assert words in f"{findings[0].message} {findings[0].remedy}"
    assert findings[0].remedy


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ((NPZ, pca(share=None)), (NPZ, pca(share=0.1))),
        ((NPZ, pca(noise_multiplier=1.0)), (NPZ, pca())),
        ((table(), HASH, SCALE, quantiles()), (table(), HASH, quantiles(), SCALE)),
        ((NPZ, standardize()), (NPZ, standardize(bounds=[-1, 1]))),
        ((IMAGES, pca()), (IMAGES, FLAT, pca())),
        (({**NPZ, "shape": [4096]}, pca(components=600)), ({**NPZ, "shape": [4096]}, pca(components=512))),
    ],
)
def test_following_the_remedy_works(bad: tuple[Any, ...], good: tuple[Any, ...]) -> None:
    assert check_data(data_of(*bad))
    assert check_data(data_of(*good)) == []


@pytest.mark.parametrize(
    "step",
    [
        standardize(bounds=[-1, 1, 2]),
        standardize(bounds=[-1, float("inf")]),
        standardize(bounds=[]),
        pca(components=0),
        pca(explained=0.0),
        pca(row_norm=0.0),
        pca(noise_multiplier=0.0),
        pca(share=1.0),
        quantiles(low=0.0),
        quantiles(columns=[]),
        {"dp_categories": {"columns": ["city"], **PAY}},
        {"dp_categories": {"columns": ["city"], "width": 0, **PAY}},
        {"dp_vocabulary": {"column": "city", "width": 5, "max_items": 0, **PAY}},
        {"dp_vocabulary": {"column": "city", "width": 5, "leak": 1.0, **PAY}},
        {"dp_categories": {"columns": ["city"], "width": 5, "min_units": 0.5, **PAY}},
        {"dp_vocabulary": {"column": "city", "width": 5, "min_units": 1e13, **PAY}},
        {"dp_count": {"more": 1, **PAY}},
    ],
)
def test_malformed_steps_are_refused(step: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the language words it)
        data_of(table(), step)


def test_shapes_are_known_before_a_run() -> None:
    facts = describe_data(data_of(*GOOD["a table"]))
    assert facts.source_shape == (1 + 1 + 21,)
    assert facts.shape == (3,)
    assert describe_data(data_of(*GOOD["channels"])).shape == (60,)
    assert describe_data(data_of(*GOOD["words"])).shape == (10,)
    assert describe_data(data_of(IMAGES, standardize(bounds=[0, 1]), {"flip": {}})).is_pixels


def test_a_projection_bounds_the_norm() -> None:
    assert feature_norm(data_of(NPZ, pca(row_norm=2.5), {"dp_count": PAY}, FLAT)) == 2.5
    assert feature_norm(data_of(NPZ, {"clip_features": {"norm": 2.0}}, standardize(bounds=[0, 1]))) is None


def test_bounds_are_in_the_units_of_columns_or_of_features() -> None:
    result = find_bounds(data_of(table(), HASH, quantiles(columns=["gain", "age"], bounds={"age": [50, 400]})), 1)
    assert result.features.tolist() == [0, 1]
    np.testing.assert_allclose([result.low, result.high], [[0.25, 0.0], [1.0, 1.0]])
    indicated = {"gain": {**COLUMNS["gain"], "missing": {"fill": 0, "indicator": True}}, "age": COLUMNS["age"]}
    result = find_bounds(data_of(table(indicated), quantiles(columns=["gain", "age"])), 0)
    assert result.features.tolist() == [0, 2]  # feature 1 says that gain is missing
    assert len(find_bounds(data_of(table(indicated), standardize(columns="all")), 0).features) == 3
    result = find_bounds(data_of(NPZ, standardize(bounds=[-3, 5])), 0)
    assert (result.low.tolist(), result.high.tolist()) == ([-3.0] * 7, [5.0] * 7)
    result = find_bounds(data_of(IMAGES, {"scattering": {}}, standardize(bounds=[-1, 1])), 1)
    assert len(result.features) == 81


def test_released_quantiles_bound_what_is_standardised_after_them() -> None:
    data = data_of(table(), HASH, quantiles(), standardize(columns=["age", "gain"]))
    released = QuantileConstants(features=(0,), low=(0.1,), high=(0.4,))
    result = find_bounds(data, 2, [released])
    np.testing.assert_allclose([result.low, result.high], [[0.1, 0.0], [0.4, 1.0]])
    with pytest.raises(ValueError, match="has no bounds"):
        find_bounds(data, 0)
