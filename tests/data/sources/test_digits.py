from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.faults import DataFault

TRAIN = {"source": "digits", "split": "train"}
TEST = {"source": "digits", "split": "test"}


def test_every_fifth_record_is_held_out(block) -> None:
    data = block(TRAIN, test=TEST, size=1438)
    train = load(data.train, data, Path(), "train")
    test = load(data.test, data, Path(), "test")
    assert train.features.shape == (1438, 1, 8, 8)
    assert train.features.dtype == np.float32
    assert test.features.shape == (359, 1, 8, 8)
    assert (train.features.min(), train.features.max()) == (0.0, 1.0)
    assert sorted(set(test.labels.tolist())) == list(range(10))


def test_the_embedded_set_is_that_of_scikit_learn(block) -> None:
    sklearn = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    original = sklearn.load_digits()
    held_out = np.arange(1797) % 5 == 4
    data = block(TRAIN, test=TEST, size=1438)
    train = load(data.train, data, Path(), "train")
    test = load(data.test, data, Path(), "test")
    np.testing.assert_array_equal(train.features[:, 0] * 16, original.images[~held_out])
    np.testing.assert_array_equal(test.features[:, 0] * 16, original.images[held_out])
    np.testing.assert_array_equal(train.labels, original.target[~held_out])
    np.testing.assert_array_equal(test.labels, original.target[held_out])


def test_t25_size_is_declared_and_only_checked(block) -> None:
    data = block(TRAIN, size=1437)
    with pytest.raises(DataFault, match=r"does not have the number of records that data.size: 1437") as caught:
        load(data.train, data, Path(), "train")
    assert caught.value.private == "1,438 records"
    assert "1438" not in caught.value.message + caught.value.remedy


def test_a_range_beyond_the_end_is_refused(block) -> None:
    data = block({**TRAIN, "records": [1400, 1500]}, size=100)
    with pytest.raises(DataFault, match="ends before the range"):
        load(data.train, data, Path(), "train")


def test_records_selects_a_range(block) -> None:
    whole = block(TRAIN, size=1438)
    part = block({**TRAIN, "records": [10, 15]}, size=5)
    expected = load(whole.train, whole, Path(), "train")
    result = load(part.train, part, Path(), "train")
    np.testing.assert_array_equal(result.features, expected.features[10:15])
    np.testing.assert_array_equal(result.labels, expected.labels[10:15])
