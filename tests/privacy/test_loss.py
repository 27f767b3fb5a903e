"""Privacy-loss distributions on a grid: domination, masses kept, sampling of any distribution."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dprecipe.privacy import loss as losses
from dprecipe.privacy import pairs


def hockey_stick(masses, at, epsilon, infinity=0.0):
    """δ(ε) of a list of atoms."""
    return infinity + float(np.sum(masses * np.maximum(0.0, -np.expm1(np.minimum(epsilon - at, 0.0)))))


atoms = st.lists(st.tuples(st.floats(-5, 5), st.floats(0, 1)), min_size=1, max_size=12)


@given(atoms, st.floats(0.01, 1.0), st.floats(-6, 6))
def test_connecting_the_dots_keeps_both_masses_and_dominates(pairs_of, step, epsilon):
    at, p = (np.array(column, dtype=float) for column in zip(*pairs_of, strict=True))
    grid = losses.from_atoms(at, p, step)
    assert grid.masses.sum() == pytest.approx(p.sum(), rel=1e-9, abs=1e-12)
    assert (grid.masses * np.exp(-grid.losses)).sum() == pytest.approx((p * np.exp(-at)).sum(), rel=1e-9, abs=1e-12)
    assert hockey_stick(grid.masses, grid.losses, epsilon) >= hockey_stick(p, at, epsilon) * (1 - 1e-9) - 1e-12
    point = step * round(epsilon / step)  # on the grid nothing is lost
    assert hockey_stick(grid.masses, grid.losses, point) == pytest.approx(
        hockey_stick(p, at, point), rel=1e-7, abs=1e-10
    )


def test_the_variance_grows_by_at_most_a_quarter_step_squared():
    at = np.linspace(-1, 1, 4001)
    p = np.full(4001, 1 / 4001)
    for step in (0.3, 0.05):
        grid = losses.from_atoms(at, p, step)
        mean = (grid.masses * grid.losses).sum()
        variance = (grid.masses * grid.losses**2).sum() - mean**2
        assert 0 <= variance - at.var() <= step**2 / 4


@given(atoms, st.floats(0.05, 1.0))
def test_swapping_twice_is_nothing(pairs_of, step):
    at, p = (np.array(column, dtype=float) for column in zip(*pairs_of, strict=True))
    there = losses.from_atoms(at, p / (1e3 * p.sum() + 1), step, infinity=0.1, missing=0.2)
    back = losses.swap_loss(losses.swap_loss(there))
    assert (back.first, back.last) == (there.first, there.last)
    assert back.masses == pytest.approx(there.masses, rel=1e-9, abs=1e-300)
    assert (back.infinity, back.missing) == (0.1, 0.2)
    assert losses.swap_loss(there).infinity == 0.2


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.4, 1.0])
def test_sampling_a_gaussian_pmf_agrees_with_its_closed_form(q):
    sigma, step = 0.9, 2e-3
    base = pairs.gaussian(1 / sigma, 2e-4, 1e-18, 1 << 20)
    sampled = losses.sample_loss(base, q, step)
    for epsilon in (-0.002, 0.0, 0.05, 0.5, 2.0):
        if q < 1:
            # H(P‖Q) = sup over x of P(X > x) - exp(ε) Q(X > x), at the x where the loss is ε
            inside = np.expm1(epsilon) / q + 1
            x = 0.5 + sigma**2 * np.log(inside) if inside > 0 else -np.inf
        else:
            x = 0.5 + sigma**2 * epsilon
        p_above = (1 - q) * stats.norm.sf(x / sigma) + q * stats.norm.sf((x - 1) / sigma)
        truth = p_above - np.exp(epsilon) * stats.norm.sf(x / sigma)
        got = hockey_stick(sampled.masses, sampled.losses, epsilon, sampled.infinity)
        assert truth - 1e-12 <= got <= truth * 1.001 + 2e-9 + 1e-2 * step * q


def test_sampling_any_distribution_a_three_point_pair():
    p, q_masses, rate = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5]), 0.3
    base = losses.from_atoms(np.log(p / q_masses), p, 1e-3)
    mixture = (1 - rate) * q_masses + rate * p
    for direction, above, below in [("remove", mixture, q_masses), ("add", q_masses, mixture)]:
        grid = losses.sample_loss(base, rate, 1e-3)
        grid = grid if direction == "remove" else losses.swap_loss(grid)
        for epsilon in (-0.2, 0.0, 0.1, 0.3):
            truth = np.maximum(above - np.exp(epsilon) * below, 0).sum()
            got = hockey_stick(grid.masses, grid.losses, epsilon, grid.infinity)
            assert truth - 1e-12 <= got <= truth + 1e-4


def test_sampling_moves_infinite_losses_where_they_belong():
    base = losses.from_atoms(np.array([0.0]), np.array([0.7]), 0.1, infinity=0.3, missing=0.3)
    grid = losses.sample_loss(base, 0.25, 0.1)
    assert grid.infinity == pytest.approx(0.25 * 0.3)
    assert grid.masses.sum() + grid.infinity == pytest.approx(1.0)
    # where P has no mass the mixture still has (1-q) Q: the loss there is log(1-q), not -infinity
    assert grid.losses[grid.masses > 0].min() <= np.log(0.75) < 0
    assert grid.missing == 0.0


@pytest.mark.parametrize(
    ("at", "p", "step"),
    [([0.0], [1.0], 0.0), ([0.0], [-1.0], 0.1), ([np.inf], [1.0], 0.1), ([np.nan], [1.0], 0.1), ([], [], 0.1)],
)
def test_nonsense_is_refused(at, p, step):
    with pytest.raises(ValueError, match="expected"):
        losses.from_atoms(np.array(at), np.array(p), step)
    with pytest.raises(ValueError, match="expected 0 < q"):
        losses.sample_loss(losses.from_atoms(np.array([0.0]), np.array([1.0]), 0.1), 1.5, 0.1)
