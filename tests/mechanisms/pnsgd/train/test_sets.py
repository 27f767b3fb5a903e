"""Projections: the conditions of the nearest point, a search, the same in torch; and the sets' sizes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize

from dprecipe.mechanisms.pnsgd.constants import measure_set
from dprecipe.mechanisms.pnsgd.schema import BallConstraint, BoxConstraint, IntervalConstraint, SimplexConstraint
from dprecipe.mechanisms.pnsgd.train.descent import Objective
from dprecipe.mechanisms.pnsgd.train.losses import Logistic
from dprecipe.mechanisms.pnsgd.train.run import DeviceBackend
from dprecipe.mechanisms.pnsgd.train.sets import ROUNDING, Ball, Box, ConvexSet, Simplex, set_of

P = 5
CENTRE = (0.4, -1.0, 0.0, 2.0, 0.1)
LOW, HIGH = (-1.0, 0.0, 0.2, -3.0, -0.1), (1.0, 0.5, 0.3, -2.0, 4.0)
SETS: list[Any] = [
    BallConstraint(kind="ball", radius=1.5),
    BallConstraint(kind="ball", radius=0.7, centre=0.3),
    BallConstraint(kind="ball", radius=0.7, centre=CENTRE),
    BoxConstraint(kind="box", bound=0.6),
    IntervalConstraint(kind="intervals", low=0.1, high=0.9),
    IntervalConstraint(kind="intervals", low=LOW, high=HIGH),
    SimplexConstraint(kind="simplex"),
    SimplexConstraint(kind="simplex", total=3.0),
]
by_set = pytest.mark.parametrize("constraint", SETS, ids=lambda c: f"{c.kind}-{SETS.index(c)}")


def projected(within: ConvexSet, w: np.ndarray) -> np.ndarray:
    copy = w.copy()
    within.project(copy)
    return copy


def points(count: int = 300) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.normal(size=(count, P)) * 10.0 ** generator.uniform(-2, 2, size=(count, 1))


def vertices(constraint: Any) -> np.ndarray:
    """Extreme points: a linear function is largest at one of them."""
    if isinstance(constraint, SimplexConstraint):
        return constraint.total * np.eye(P)
    low, high = (-0.6, 0.6) if isinstance(constraint, BoxConstraint) else (constraint.low, constraint.high)
    ends = zip(np.broadcast_to(low, P), np.broadcast_to(high, P), strict=True)
    return np.array(list(itertools.product(*ends)))


@by_set
def test_the_nearest_point_by_its_conditions(constraint: Any) -> None:
    """x is the nearest point of a convex set to w if it is in it and (w - x)·(v - x) <= 0 for all v of it."""
    within = set_of(constraint, (P,))
    for w in points():
        x = projected(within, w)
        way, scale = w - x, 1e-9 * (1 + np.abs(w).max()) ** 2
        if isinstance(constraint, BallConstraint):
            centre = within.middle((P,))
            assert np.linalg.norm(x - centre) <= constraint.radius
            # the largest of (w - x)·v over the ball
            assert way @ centre + constraint.radius * np.linalg.norm(way) <= way @ x + scale
            continue
        if isinstance(constraint, SimplexConstraint):
            assert (x >= 0).all()
            assert math.fsum(x) == pytest.approx(constraint.total, rel=1e-12, abs=1e-13 * np.abs(w).max())
        assert (vertices(constraint) @ way).max() <= way @ x + scale


@by_set
def test_the_nearest_point_by_search(constraint: Any) -> None:
    within = set_of(constraint, (P,))
    start = within.middle((P,))
    limits: list[Any] = []
    ends = None
    if isinstance(constraint, BallConstraint):
        limits = [{"type": "ineq", "fun": lambda v: constraint.radius**2 - ((v - start) ** 2).sum()}]
    elif isinstance(constraint, SimplexConstraint):
        limits, ends = [{"type": "eq", "fun": lambda v: v.sum() - constraint.total}], [(0, None)] * P
    else:
        ends = list(zip(vertices(constraint).min(0), vertices(constraint).max(0), strict=True))
    for w in points(12):
        actual = optimize.minimize(
            lambda v, w=w: ((v - w) ** 2).sum() / 2, start, bounds=ends, constraints=limits, method="SLSQP"
        )
        x = projected(within, w)
        assert np.linalg.norm(w - x) <= np.linalg.norm(w - actual.x) * (1 + 1e-6) + 1e-6


@by_set
def test_a_point_of_the_set_stays_and_twice_is_once(constraint: Any) -> None:
    within = set_of(constraint, (P,))
    for w in points(50):
        once = projected(within, w)
        assert projected(within, once) == pytest.approx(once, rel=1e-11, abs=1e-12)
    middle = within.middle((P,))
    assert projected(within, middle) == pytest.approx(middle, rel=1e-15, abs=1e-16)


@by_set
def test_projections_bring_no_two_points_apart(constraint: Any) -> None:
    within = set_of(constraint, (P,))
    for v, w in zip(points()[::2], points()[1::2], strict=True):
        moved = np.linalg.norm(projected(within, v) - projected(within, w))
        assert moved <= np.linalg.norm(v - w) * (1 + 1e-9)


@by_set
def test_the_stated_sizes_are_attained_and_never_exceeded(constraint: Any) -> None:
    within = set_of(constraint, (P,))
    largest, diameter = measure_set(constraint, P)
    inside = np.array([projected(within, w) for w in points()])
    if isinstance(constraint, BallConstraint):
        centre = within.middle((P,))
        way = centre / np.linalg.norm(centre) if centre.any() else np.eye(P)[0]
        extreme = np.array([centre + constraint.radius * way, centre - constraint.radius * way])
    else:
        extreme = vertices(constraint)
    for chosen in (inside, extreme):
        norms = np.linalg.norm(chosen, axis=1)
        distances = np.linalg.norm(chosen[:, None] - chosen[None], axis=2)
        assert norms.max() <= largest
        assert distances.max() <= diameter
    assert norms.max() == pytest.approx(largest, rel=2e-9)
    assert distances.max() == pytest.approx(diameter, rel=2e-9)
    if isinstance(constraint, SimplexConstraint):
        assert diameter == pytest.approx(math.sqrt(2) * constraint.total, rel=2e-9)


def test_a_centre_far_away_makes_the_diameter_no_smaller() -> None:
    constraint = BallConstraint(kind="ball", radius=1e-6, centre=1e6)
    within = set_of(constraint, (P,))
    _, diameter = measure_set(constraint, P)
    ends = [projected(within, 1e6 + w) for w in points(200)]
    farthest = max(float(np.linalg.norm(v - w)) for v in ends for w in ends)
    assert 2e-6 * 0.9 < farthest <= diameter
    assert np.abs(farthest - 2e-6) < 1e-8


@by_set
def test_the_probes_points_lie_in_the_set(constraint: Any) -> None:
    within = set_of(constraint, (P,))
    for number, direction in enumerate(points(40)):
        for size in (1.0, 0.3):
            w = within.place(direction, size)
            assert projected(within, w) == pytest.approx(w, rel=1e-9, abs=1e-9), number
        edge = within.place(direction, 1.0)
        opposite = within.oppose(edge)
        assert projected(within, opposite) == pytest.approx(opposite, rel=1e-9, abs=1e-9)
        reach = np.linalg.norm(edge - opposite)
        assert reach == pytest.approx(measure_set(constraint, P)[1], rel=1e-8)


@by_set
def test_torch_projects_to_the_same_points(constraint: Any) -> None:
    within = set_of(constraint, (P,))
    backend = DeviceBackend(Objective(Logistic(), P, False, 1.0, 0.0, within), torch.device("cpu"))
    for w in points(60):
        there = torch.tensor(w)
        backend._project(there)
        assert there.numpy() == pytest.approx(projected(within, w), rel=1e-12, abs=1e-13 * (1 + np.abs(w).max()))


def test_a_run_begins_in_the_set() -> None:
    for constraint in SETS:
        within = set_of(constraint, (P,))
        start = Objective(Logistic(), P, False, 1.0, 0.0, within).start()
        assert start == pytest.approx(projected(within, np.zeros(P)))
        assert projected(within, start) == pytest.approx(start, rel=1e-12, abs=1e-13)


def test_lists_follow_the_order_of_the_parameters() -> None:
    numbers = tuple(float(number) for number in range(6))
    box = set_of(IntervalConstraint(kind="intervals", low=-1.0, high=numbers), (2, 3))
    assert isinstance(box, Box)
    assert np.asarray(box.high).tolist() == [[0, 1, 2], [3, 4, 5]]
    ball = set_of(BallConstraint(kind="ball", radius=1.0, centre=numbers), (2, 3))
    assert isinstance(ball, Ball)
    assert ball.middle((2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert ball.max_norm == 1 - ROUNDING
    assert isinstance(set_of(SimplexConstraint(kind="simplex"), (2, 3)), Simplex)
    assert set_of(BallConstraint(kind="ball", radius=1.0, centre=0.0), (2, 3)).centre is None  # type: ignore[union-attr]
