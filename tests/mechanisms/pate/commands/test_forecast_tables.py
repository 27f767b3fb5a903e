"""The table over thresholds: shares of queries and of right answers, from the same simulated votes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from dprecipe.mechanisms.pate.commands.forecast import tabulate_thresholds
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting

COUNTS = np.array([[90, 10], [55, 45], [60, 40]])
RIGHT = np.array([1.0, 0.6, 0.8])


def test_a_row_is_the_mean_over_the_queries() -> None:
    rows = tabulate_thresholds(COUNTS, Voting(100, 2, "gaussian", 10.0, VoteSelection(60.0, 20.0)), RIGHT)
    assert [rows[0].threshold, rows[-1].threshold] == pytest.approx([30.0, 110.0])
    for row in rows:
        chances_Q = norm.sf((row.threshold - COUNTS.max(axis=1)) / 20.0)
        assert row.answered == pytest.approx(chances_Q.mean(), rel=1e-9)
        assert row.right == pytest.approx((chances_Q @ RIGHT) / chances_Q.sum(), rel=1e-9)


def test_a_higher_threshold_answers_fewer_queries() -> None:
    rows = tabulate_thresholds(COUNTS, Voting(100, 2, "gaussian", 10.0, VoteSelection(60.0, 20.0)), RIGHT)
    shares = [row.answered for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1]


def test_without_a_check_there_is_no_table() -> None:
    assert tabulate_thresholds(COUNTS, Voting(100, 2, "gaussian", 10.0, None), RIGHT) == ()
