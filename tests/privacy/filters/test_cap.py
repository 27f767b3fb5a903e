"""Caps, their orders and weights, and exact sums of what was spent."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest

from dprecipe.privacy.filters.cap import (
    CERTAIN,
    DEAD,
    DELTA_GRAIN,
    GRAIN,
    WEIGHTS,
    Cap,
    Spent,
    choose_orders,
    find_best_order,
    round_up_cost,
    spent_from_json,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "account.json").read_text())["records"]
GRIDS = [record for record in GOLDEN if record["group"] == "account_recommended_grid"]


@pytest.mark.parametrize("record", GRIDS, ids=lambda record: record["id"])
def test_orders_and_weights_are_those_of_the_reference(record):
    best, *rest = record["value"]
    epsilon, delta = record["inputs"]["eps"], record["inputs"]["delta"]
    assert find_best_order(epsilon, delta) == pytest.approx(best, rel=record["tol"])
    orders = choose_orders(epsilon, delta)
    assert orders[:7] == pytest.approx(rest[:7], rel=record["tol"])
    assert list(orders[7:]) == [math.ceil(order) for order in rest[7:9]]  # far orders are rounded up to whole ones
    assert pytest.approx(rest[9:], rel=1e-12) == WEIGHTS


def test_weights_sum_to_at_most_one_exactly():
    assert 1 - 1e-14 < sum(map(Fraction, WEIGHTS)) <= 1


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-9), (0.1, 1e-5), (8, 1e-6), (100, 1e-12), (100, 0.1)])
def test_the_parts_of_a_cap(epsilon, delta):
    cap = Cap(epsilon, delta)
    assert Fraction(cap.delta_rest) + Fraction(cap.delta_prime) <= Fraction(delta)
    assert cap.delta_rest > 0.899999 * delta
    assert len(cap.orders) == len(cap.weights) == 9
    assert all(1 < a <= b <= 65536 for a, b in zip(cap.orders, cap.orders[1:], strict=False))
    assert Cap(epsilon, delta).orders == cap.orders


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (101, 1e-5), (math.nan, 1e-5), (1, 0), (1, 0.2), (1, math.nan)]
)
def test_caps_out_of_range_are_refused(epsilon, delta):
    with pytest.raises(ValueError, match="expected 0 <"):
        Cap(epsilon, delta)


def test_costs_are_rounded_up_and_their_sums_are_exact():
    rng = random.Random(1)
    raw = [[rng.random() * 10 ** rng.randint(-14, 1) for _ in range(9)] for _ in range(300)]
    costs = [round_up_cost(rdp, delta=rdp[0] * 1e-9) for rdp in raw]
    for rdp, cost in zip(raw, costs, strict=True):
        for value, charged in zip(rdp, cost.rdp, strict=True):
            assert 0 <= Fraction(charged) - Fraction(value) < Fraction(GRAIN)
        assert 0 <= Fraction(cost.delta) - Fraction(rdp[0] * 1e-9) < Fraction(DELTA_GRAIN)
    nothing = Spent((0.0,) * 9)
    total = sum(costs, nothing)
    rng.shuffle(costs)
    assert sum(costs, nothing) == total
    assert [Fraction(v) for v in total.rdp] == [sum(Fraction(c.rdp[k]) for c in costs) for k in range(9)]
    assert Fraction(total.delta) == sum(Fraction(c.delta) for c in costs)


def test_an_order_that_is_dead_stays_dead():
    one = Spent((DEAD / 2, 1.0), CERTAIN / 2)
    both = one + one
    assert both == Spent((math.inf, 2.0), 1.0)
    assert (both + both).rdp[0] == math.inf
    assert round_up_cost([math.inf, math.nan], 2.0) == Spent((math.inf, math.inf), 1.0)


def test_multiples_are_rounded_up():
    cost = round_up_cost([0.3, 1e-9, math.inf], 1e-12)
    assert cost.times(3) == cost + cost + cost
    part = cost.times(0.1)
    assert all(Fraction(a) >= Fraction(0.1) * Fraction(b) for a, b in zip(part.rdp[:2], cost.rdp[:2], strict=True))
    assert part.rdp[2] == math.inf
    assert cost.times(0).is_nothing
    for wrong in (-1, math.nan, math.inf):
        with pytest.raises(ValueError, match="count >= 0"):
            cost.times(wrong)


def test_numbers_that_no_cost_has_are_refused():
    for value in (0.1, -1.0, math.nan, DEAD):
        with pytest.raises(ValueError, match="expected"):
            Spent((value,))
    for delta in (0.5, -1.0, math.nan):
        with pytest.raises(ValueError, match="expected"):
            Spent((1.0,), delta)
    with pytest.raises(ValueError, match="same orders"):
        Spent((1.0,)) + Spent((1.0, 1.0))


def test_json_there_and_back():
    spent = Spent((0.5, math.inf, 3 * GRAIN), 7 * DELTA_GRAIN)
    assert spent_from_json(json.loads(json.dumps(spent.to_json())), 3) == spent
    for wrong in (
        {"rdp": [0.5]},
        {"rdp": [0.5], "delta": 0.0, "more": 1},
        {"rdp": [True], "delta": 0.0},
        {"rdp": ["0"], "delta": 0.0},
        {"rdp": [10**400], "delta": 0.0},
        {"rdp": [0.5, 0.5], "delta": 0.0},
        {"rdp": [0.1], "delta": 0.0},
        {"rdp": [0.5], "delta": None},
        [],
    ):
        with pytest.raises(ValueError, match="expected"):
            spent_from_json(wrong, 1)


def test_what_another_computer_gets_is_covered():
    cost = round_up_cost([0.25, 1.0], 1e-9)
    other = round_up_cost([0.25 * (1 + 1e-12), 1.0], 1e-9 * (1 + 1e-12))
    assert cost.covers(other)
    assert other.covers(cost)
    assert not cost.covers(round_up_cost([0.25 * (1 + 1e-6), 1.0], 1e-9))
    assert not cost.covers(round_up_cost([0.25, 1.0], 2e-9))
    assert not cost.covers(round_up_cost([math.inf, 1.0], 0.0))
    assert Spent((math.inf, 1.0)).covers(cost) is False  # its delta is 0
