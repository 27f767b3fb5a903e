from __future__ import annotations

import numpy as np
import pytest

from dprecipe.data.image_steps import Scattering
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


def test_scattering_is_done_once_whatever_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 1, 8, 8)).astype(np.uint8)
    pending = Records(images, np.zeros(9, np.int64), None, (Step(scattering=Scattering(scales=2, angles=2)),))
    monkeypatch.setattr("dprecipe.data.records.PREPARE_ROWS", 4)
    found = pending.prepared(limit=0)
    assert (found.features.shape, found.pending) == ((9, 9, 2, 2), ())
    for one, other in zip(found.batch(slice(3, 9)), pending.batch(slice(3, 9)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert capsys.readouterr().err == ""  # too quick to be shown
    monkeypatch.setattr("dprecipe.data.records.QUIET_SECONDS", -1.0)
    np.testing.assert_array_equal(pending.prepared().features, found.features)
    assert capsys.readouterr().err == ""  # the number of records may be private
    monkeypatch.setattr("dprecipe.progress.is_watched", lambda: True)
    pending.prepared()
    assert "9/9" in capsys.readouterr().err


def test_unit_count_is_of_units_where_there_are_units() -> None:
    assert Records(PIXELS, LABELS).unit_count == 3
    assert Records(PIXELS, LABELS, np.array([0, 1, 0])).unit_count == 2
    assert Records(PIXELS[:0], LABELS[:0], np.array([], dtype=np.int64)).unit_count == 0
