from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pytest

from dprecipe.data import records as records_module
from dprecipe.data.records import Records
from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.train.program import features_of


def is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array.obj if isinstance(array, memoryview) else array, mmap.mmap)


@pytest.mark.parametrize("kind", ["pixels", "numbers"])
def test_public_features_that_are_large_are_mapped(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0)
    pixels = drawn.integers(0, 256, (300, 1, 4, 4), np.uint8)
    features = pixels if kind == "pixels" else drawn.random((300, 5), np.float32)
    records = Records(features, np.zeros(300, np.int64))
    shape, expected = features.shape[1:], records.batch(slice(None))[0]
    small = features_of(records, shape)
    assert not is_mapped(small)
    monkeypatch.setattr(records_module, "IN_MEMORY_BYTES", 0)
    large = features_of(records, shape)
    assert is_mapped(large) == (kind == "pixels")  # numbers without a step are used where they are
    assert kind == "pixels" or np.shares_memory(large, features)
    np.testing.assert_array_equal(large, expected)
    np.testing.assert_array_equal(small, expected)
    with pytest.raises(DataFault, match="public records have the shape"):
        features_of(records, (7,))
