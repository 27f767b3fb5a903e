"""Running sums: exact in any order, infinite costs included."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.account.sums import Sums, read_sums
from dprecipe.privacy.filters.cap import DEAD, Spent, round_up_cost

VALUE = st.floats(0, 50) | st.just(math.inf) | st.just(0.0)
COST = st.builds(
    lambda rdp, delta: round_up_cost(rdp, delta), st.lists(VALUE, min_size=3, max_size=3), st.floats(0, 1e-3)
)


@given(st.lists(COST, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_costs_come_and_go_in_any_order(costs: list[Spent], shuffle: random.Random) -> None:
    total = Sums.zero(3)
    for cost in costs:
        total = total + Sums.of(cost)
    expected = Spent((0.0, 0.0, 0.0))
    for cost in costs:
        expected = expected + cost
    assert total.to_spent() == expected
    assert read_sums(total.to_json()) == total
    shuffle.shuffle(costs)
    for cost in costs:
        total = total - Sums.of(cost)
    assert total == Sums.zero(3)
    assert total.is_nothing


def test_an_order_that_died_comes_back_with_its_cost() -> None:
    large = Sums.of(round_up_cost([DEAD - 1, math.inf, 1.0], 0.007))
    assert (large + large).to_spent() == Spent((math.inf, math.inf, 2.0), 1.0)
    assert (large + large - large).to_spent().rdp[0] == DEAD - 1


@pytest.mark.parametrize("value", ["-1", "1e3", "", "1.0", " 1", "١", 1, None, "9" * 61])
def test_sums_of_strangers(value: object) -> None:
    content = Sums.zero(2).to_json()
    with pytest.raises(ValueError, match=r"not a whole number|not valid"):
        read_sums({**content, "rdp": ["0", value]})
    with pytest.raises(ValueError, match=r"not a whole number|not valid"):
        read_sums({**content, "delta": value})
