"""Bounded range: stored values, pairs with two outcomes that attain the bounds, and mechanisms that keep to them."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.loss import GridError, swap_loss
from dprecipe.privacy.stages.bounded_range import bounded_range_curve, bounded_range_losses
from dprecipe.privacy.stages.events import NoisyQuantile

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "stages.json").read_text())["records"]
RANGES = [1e-3, 0.1, 1.0, 8.0]


def bounded_range_delta(largest: float, epsilon: float) -> float:
    """δ(ε) of the worst mechanism of range `largest`: 0 above it, 1 - exp(ε) below its negative."""
    if epsilon >= largest:
        return 0.0
    if epsilon <= -largest:
        return -math.expm1(epsilon)
    return math.expm1((epsilon - largest) / 2) ** 2 / -math.expm1(-largest)


def records(group):
    result = [record for record in GOLDEN if record["group"] == group]
    assert result
    return result


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def renyi(p, q, order):
    return float(np.log(np.sum(p**order * q ** (1 - order))) / (order - 1))


def test_stored_profiles():
    for record in records("stage_bounded_range_delta"):
        i = record["inputs"]
        assert bounded_range_delta(i["eps0"], i["eps"]) == pytest.approx(record["value"], rel=1e-7)
    assert bounded_range_delta(0.5, 0.5) == bounded_range_delta(0.5, 9.0) == 0.0
    assert bounded_range_delta(0.5, -0.7) == pytest.approx(1 - math.exp(-0.7))


def test_stored_divergences():
    for record in records("stage_bounded_range_rdp"):
        i = record["inputs"]
        assert bounded_range_curve(i["eps0"], [i["order"]])[0] == pytest.approx(record["value"], rel=1e-9)


@pytest.mark.parametrize("largest", [*RANGES, 60.0, 1e4])
def test_a_curve_is_at_most_that_of_a_gaussian_and_of_pure_privacy(largest):
    orders = np.array([1.0001, 1.02, 1.5, 2, 8, 64, 256, 1e5])
    curve = bounded_range_curve(largest, orders)
    assert np.isfinite(curve).all()
    assert (curve <= np.minimum(orders * largest**2 / 8, largest) * (1 + 1e-9)).all()
    assert (np.diff(curve) >= -1e-9 * curve[1:]).all()
    if largest <= 1e-3:
        assert curve[:3] == pytest.approx(orders[:3] * largest**2 / 8, rel=1e-6)


def two_outcomes(largest, t):
    q = (math.exp(-t) - math.exp(-largest)) / -math.expm1(-largest)
    return np.array([q * math.exp(t), (1 - q) * math.exp(t - largest)]), np.array([q, 1 - q])


@pytest.mark.parametrize("largest", [0.1, 1.0, 8.0])
def test_two_outcomes_attain_both_bounds(largest):
    pairs = [two_outcomes(largest, t) for t in np.linspace(0, largest, 2001)[1:-1]]
    for epsilon in (-0.6 * largest, 0.0, 0.3 * largest, 0.9 * largest):
        best = max(hockey_stick(p, q, epsilon) for p, q in pairs)
        assert best == pytest.approx(bounded_range_delta(largest, epsilon), rel=1e-4)
        assert best <= bounded_range_delta(largest, epsilon) * (1 + 1e-12)
    for order in (1.02, 2.0, 16.0):
        best = max(renyi(p, q, order) for p, q in pairs)
        assert best == pytest.approx(bounded_range_curve(largest, [order])[0], rel=1e-5)
        assert best <= bounded_range_curve(largest, [order])[0] * (1 + 1e-9)


def quantile_density(points, weights, level, beta, low=0.0, high=1.0):
    """Masses of the intervals between `points`, by the exponential mechanism."""
    edges = np.concatenate([[low], points, [high]])
    ranks = np.concatenate([[0], np.cumsum(weights)])
    logs = -beta * np.abs(ranks - level * weights.sum())
    masses = np.diff(edges) * np.exp(logs - logs.max())
    return masses / masses.sum()


@pytest.mark.parametrize("level", [0.02, 0.3, 0.5, 0.9])
def test_quantiles_of_neighbours_attain_the_range_and_never_exceed_it(level):
    """Units of several rows share a weight of 1; the intervals of all rows are told apart."""
    rng = np.random.default_rng(3)
    event = NoisyQuantile(level, 1.3)
    added, replaced = 0.0, 0.0
    for _ in range(900):
        size, more = int(rng.integers(1, 250)), int(rng.integers(1, 4))
        points = np.sort(rng.uniform(0, 1, size + 2 * more))
        owner = rng.permutation(np.repeat([0, 1, 2], [size, more, more]))
        base = (owner == 0).astype(float)
        first, second = base + (owner == 1) / more, base + (owner == 2) / more
        without, one, other = (
            np.log(quantile_density(points, weights, level, event.rank_weight)) for weights in (base, first, second)
        )
        added = max(added, np.ptp(one - without))
        replaced = max(replaced, np.ptp(one - other))
    for result, relation in ((added, Neighbouring.ADD_OR_REMOVE_ONE), (replaced, Neighbouring.REPLACE_ONE)):
        assert 0.99 * event.loss_range(relation) <= result <= event.loss_range(relation) * (1 + 1e-9)
    assert event.loss_range(Neighbouring.ADD_OR_REMOVE_ONE) == pytest.approx(1 / 1.3)


@pytest.mark.parametrize("largest", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("step", [1e-3, 0.03])
def test_a_grid_dominates_and_comes_close(largest, step):
    loss = bounded_range_losses(largest, step)
    for pair in (loss, swap_loss(loss)):
        assert pair.masses.sum() == pytest.approx(1, abs=1e-12)
        assert (pair.masses * np.exp(-pair.losses)).sum() == pytest.approx(1, abs=1e-12)
        for epsilon in np.linspace(-largest, 1.01 * largest, 37):
            above = pair.losses > epsilon
            result = float(-(pair.masses[above] @ np.expm1(epsilon - pair.losses[above])))
            want = bounded_range_delta(largest, epsilon)
            assert want - 1e-13 <= result <= want + step**2 / min(largest, 1)


def test_a_grid_of_too_many_points_is_refused():
    with pytest.raises(GridError):
        bounded_range_losses(1e4, 1e-4)
