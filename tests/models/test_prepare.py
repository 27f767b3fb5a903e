"""New records are prepared as training's were: whatever the chunks, and problems are told together."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dprecipe.data.schema import Data
from dprecipe.faults import DataFault
from dprecipe.models.file import describe_file, parse_description
from dprecipe.models.prepare import Preparation

COLUMNS = {
    "age": {"kind": "numeric", "min": 0, "max": 100, "missing": 40},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "note": {"kind": "text"},
}
DATA = {
    "train": {
        "source": "csv",
        "path": "t.csv",
        "columns": COLUMNS,
        "label": {"column": "ill", "values": ["no", "yes"]},
    },
    "size": 3,
    "preprocess": [{"one_hot": {}}, {"hash": {"columns": ["note"], "buckets": 4, "tokens": "words"}}],
}
FILE = parse_description(json.dumps(describe_file(None, Data.model_validate_json(json.dumps(DATA)))))
ROWS = [{"age": age, "sex": sex, "note": "a b"} for age, sex in ((50, "m"), (None, "f"), (1000, "x"), ("-3", "f"))]


def test_chunks_make_no_difference_and_are_counted_once() -> None:
    whole = Preparation(FILE)
    (expected,) = whole.batches(ROWS)
    assert expected[:, 0].tolist() == pytest.approx([0.5, 0.4, 1.0, 0.0])
    for rows in (1, 3):
        parts = Preparation(FILE)
        np.testing.assert_array_equal(np.concatenate(list(parts.batches(ROWS, rows))), expected)
        assert parts.counts.as_json() == whole.counts.as_json()
    assert whole.describe_undeclared() == ["age: 2 clamped", "sex: 1 not declared (`other`)"]
    assert whole.describe_undeclared(missing=True)[0] == "age: 1 missing, 2 clamped"
    assert whole.counts.records == 4


def test_problems_of_all_chunks_are_told_together_and_nothing_more_is_prepared() -> None:
    rows = [*ROWS, {**ROWS[0], "age": "twelve"}, ROWS[0], {**ROWS[0], "age": "<3"}]
    preparation, got = Preparation(FILE), []
    with pytest.raises(DataFault) as caught:
        got.extend(preparation.batches(rows, 2))
    assert [len(part) for part in got] == [2, 2]
    assert "not a finite number" in caught.value.message
    assert "a field has < or >" in caught.value.message
    assert "record 6, counted from 0" in caught.value.message
    with pytest.raises(DataFault) as hidden:
        list(Preparation(FILE, private=True).batches(rows, 2))
    assert "record 6" not in hidden.value.message
    assert "record 6" in hidden.value.private
