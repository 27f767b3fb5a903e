from __future__ import annotations

import numpy as np
import pytest

from dprecipe.data.records import Records
from dprecipe.data.schema import Flatten, Scale, Step

STEPS = (Step(scale=Scale(mean=0.5, std=0.25)), Step(flatten=Flatten()))
PIXELS = np.arange(3 * 4, dtype=np.uint8).reshape(3, 1, 2, 2)
LABELS = np.array([2, 0, 1])


def test_a_batch_is_the_same_prepared_once_or_each_time() -> None:
    pending = Records(PIXELS, LABELS, None, STEPS)
    large, small = pending.prepared(limit=47), pending.prepared(limit=48)
    assert large.features.dtype == np.uint8
    assert small.features.dtype == np.float32
    assert small.pending == ()
    for indices in (np.array([2, 0]), slice(1, 3), np.array([], dtype=np.int64)):
        for one, other in zip(large.batch(indices), small.batch(indices), strict=True):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(small.features, (PIXELS.reshape(3, 4) / 255 - 0.5) / 0.25, rtol=1e-5)


def test_preparing_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Records(PIXELS, LABELS, None, STEPS).prepared()
    monkeypatch.setattr("dprecipe.data.records.PREPARE_ROWS", 2)
    np.testing.assert_array_equal(Records(PIXELS, LABELS, None, STEPS).prepared().features, whole.features)


def test_unit_count_is_of_units_where_there_are_units() -> None:
    assert Records(PIXELS, LABELS).unit_count == 3
    assert Records(PIXELS, LABELS, np.array([0, 1, 0])).unit_count == 2
    assert Records(PIXELS[:0], LABELS[:0], np.array([], dtype=np.int64)).unit_count == 0
