"""The queries are the first public records that differ."""

from __future__ import annotations

import numpy as np
import pytest

from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.train.partition import NO_QUERY, choose_queries

PUBLIC = np.array([[1, 2], [3, 4], [1, 2], [5, 6], [3, 4], [7, 8], [5, 6]], np.float32)


def test_a_record_that_comes_again_is_not_asked_again() -> None:
    chosen = choose_queries(PUBLIC, 3)
    assert chosen.records.tolist() == [0, 1, 3]
    assert chosen.of_record.tolist() == [0, 1, 0, 2, 1, NO_QUERY, 2]
    assert chosen.labels(np.array([9, -2, 4])).tolist() == [9, -2, 9, 4, -2, NO_QUERY, 4]


def test_fewer_records_than_queries_are_refused() -> None:
    assert len(choose_queries(PUBLIC, 4).records) == 4
    with pytest.raises(DataFault, match="holds 4 different records, the plan puts 5 queries") as refused:
        choose_queries(PUBLIC, 5)
    assert "queries.max to 4" in refused.value.remedy


def test_images_are_records_too() -> None:
    images = np.random.default_rng(0).random((50, 1, 8, 8), dtype=np.float32)
    chosen = choose_queries(np.concatenate([images, images])[:, :, ::-1], 50)
    assert chosen.of_record.tolist() == [*range(50)] * 2


def test_no_public_record_is_not_answered_with_a_plan_of_no_query() -> None:
    with pytest.raises(DataFault) as fault:
        choose_queries(np.zeros((0, 3), np.float32), 4)
    assert fault.value.remedy == "name public records"
