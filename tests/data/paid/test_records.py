"""Records on their way through paid steps: read with their texts, and prepared as constants are released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.data.paid.constants import CountConstants, ItemConstants, MomentConstants, QuantileConstants
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.schema import Data, Flatten, Step

PAY = {"share": 0.1}
STEPS: list[dict[str, Any]] = [
    {"dp_categories": {"columns": ["city"], "width": 3, **PAY}},
    {"dp_count": PAY},
    {"dp_quantiles": {"columns": ["age"], **PAY}},
    {"scale": {"mean": 0.5, "std": 0.5}},
]
CITIES = ItemConstants(kind="dp_categories", width=3, threshold=9.0, items=(("Bern", "Rom"),))
AGES = QuantileConstants(features=(0,), low=(0.25,), high=(0.75,))


def recipe(tmp_path: Path, steps: list[dict[str, Any]] = STEPS, **rest: Any) -> Data:
    (tmp_path / "t.csv").write_text(
        "age,city,who,y\n0,Rom,a,0\n50, Bern ,b,1\n100,Oslo,b,1\n25,,a,0\n75,Rom,a,0\n", encoding="utf-8"
    )
    train = {
        "source": "csv",
        "path": "t.csv",
        "columns": {"age": {"kind": "numeric", "min": 0, "max": 100}, "city": {"kind": "text"}},
        "label": {"column": "y", "classes": 2},
    }
    return Data.model_validate_json(json.dumps({"train": train, "size": 5, "preprocess": steps, **rest}))


def test_a_table_is_read_with_the_texts_of_its_items(tmp_path: Path) -> None:
    data = recipe(tmp_path)
    records = load(data.train, data, tmp_path, "train")
    assert records.next_stage == 0
    assert records.texts["city"].values == ("Rom", "Bern", "Oslo", "", "Rom")
    assert records.features.shape == (5, 1 + 4)
    assert not records.features[:, 1:].any()
    with pytest.raises(ValueError, match="not released"):
        records.batch(slice(0, 2))


def test_units_keep_the_texts_of_the_rows_that_count(tmp_path: Path) -> None:
    data = recipe(tmp_path, unit={"column": "who", "max_records": 2}).model_copy(update={"size": 2})
    records = load(data.train, data, tmp_path, "train")
    assert records.texts["city"].values == ("Rom", "Bern", "Oslo", "")
    np.testing.assert_array_equal(records.features[:, 0], np.float32([0, 0.5, 1, 0.25]))


def test_released_constants_take_the_place_of_their_steps(tmp_path: Path) -> None:
    data = recipe(tmp_path)
    records = load(data.train, data, tmp_path, "train")
    with pytest.raises(ValueError, match="no dp_quantiles"):
        records.with_constants(AGES)
    for constants in (CITIES, CountConstants(units=4.5), AGES):
        assert records.next_stage is not None
        records = records.with_constants(constants)
    assert records.next_stage is None
    assert records.texts == {}
    expected = np.float32([
        [-0.5, -1, 1, -1, -1],
        [0, 1, -1, -1, -1],
        [0.5, -1, -1, -1, 1],
        [-0.5, -1, -1, -1, 1],
        [0.5, -1, 1, -1, -1],
    ])  # fmt: skip
    np.testing.assert_array_equal(records.batch(slice(None))[0], expected)
    done = records.prepared()
    assert done.pending == ()
    np.testing.assert_array_equal(done.batch(np.array([1, 2]))[0], expected[1:3])
    with pytest.raises(ValueError, match="no paid step"):
        records.with_constants(AGES)


def test_what_comes_before_a_paid_step_is_prepared_once(tmp_path: Path) -> None:
    steps = [{"hash": {"columns": ["city"], "buckets": 2}}, {"scale": {"mean": 0, "std": 0.5}}, STEPS[1], STEPS[3]]
    data = recipe(tmp_path, steps)
    records = load(data.train, data, tmp_path, "train")
    assert records.next_stage == 0
    assert len(records.pending) == 2
    np.testing.assert_array_equal(records.features[:, 0], np.float32([0, 1, 2, 0.5, 1.5]))
    assert records.with_constants(CountConstants(units=1.0)).prepared().pending == ()


def test_other_roles_read_the_same_texts(tmp_path: Path) -> None:
    data = recipe(tmp_path)
    data = data.model_copy(update={"test": data.train})
    assert data.test is not None
    records = load(data.test, data, tmp_path, "test").with_constants(CITIES)
    np.testing.assert_array_equal(records.features[:, 1:].sum(1), np.ones(5))


def test_constants_are_steps_of_preparation() -> None:
    images = np.full((2, 1, 2, 2), 255, np.uint8)
    moments = MomentConstants(features=(0,), low=(0.0,), high=(1.0,), mean=(0.5,), std=(0.25,))
    np.testing.assert_array_equal(prepare_features(images, [moments, Step(flatten=Flatten())]), np.full((2, 4), 2.0))
