"""What encoded sums, grouped sums, votes, last iterates and tuned runs cost, against divergences computed here: of the
masses of cells, from distribution functions of scipy, in both directions. Nothing of the program's curves is used. Who
sees the cell alone sees no more, so that each divergence is at most the true one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.privacy.tuning.events import SelectedBest

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
ORDERS = (1.5, 2.0, 7.0, 7.3, 16.0)


def divergence(first, second, order):
    """D_α of masses."""
    is_there = (first > 0) & (second > 0)
    logs = order * np.log(first[is_there]) + (1 - order) * np.log(second[is_there])
    return float(special.logsumexp(logs)) / (order - 1)


def hold(event, first, second, relation=ADD, rel=2e-3):
    """The cost is at least both divergences at each order, and above the larger by at most a part of `rel` at whole
    orders (curves of boxes are interpolated between them)."""
    got = cost_of([Charge(event, 1)], relation, ORDERS)
    for order, value in zip(ORDERS, got.rdp, strict=True):
        both = divergence(first, second, order), divergence(second, first, order)
        assert value >= max(both) * (1 - 1e-9)
        if rel is not None and order == int(order):
            assert value <= max(both) * (1 + rel) + 1e-9
    return got


def cells(kind, edges, centre):
    """Masses between edges, tails included; each with its relative precision."""
    below, above = kind.cdf(edges - centre), kind.sf(edges - centre)
    inner = np.where(edges[1:] <= centre, np.diff(below), -np.diff(above))
    return np.concatenate(([below[0]], inner, [above[-1]]))


def joint(first, second):
    return (first[:, None] * second[None, :]).ravel()


@pytest.mark.slow
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_grouped_sums(relation):
    """Two groups under two noises: masses in the plane."""
    q, noises = 0.15, (1.7, 3.0)
    edges = np.linspace(-14, 22, 501)

    def plane(sign):
        return joint(*(cells(stats.norm, edges, sign / noise) for noise in noises))

    joined = (1 - q) * plane(0) + q * plane(1)
    other = plane(0) if relation is ADD else (1 - q) * plane(0) + q * plane(-1)
    hold(GroupedGaussian.of(q, noises), joined, other, relation, rel=5e-3 if relation is ADD else 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["laplace", "student_t"])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_encoded_sums(family, relation):
    """Two coordinates of other bounds, both at the corner of the box; noise of scale 2."""
    q, scale, bounds = 0.2, 2.0, (0.4, 0.9)
    kind, shape = (stats.laplace(), None) if family == "laplace" else (stats.t(6), 6.0)
    event = EncodedSum(q, scale, family, shape, tuple((b, 1) for b in bounds), False, f"sha256:{'0' * 64}")
    shifts = np.array([sign * bound / scale for bound in bounds for sign in (-1, 0, 1)])
    edges = np.unique(np.concatenate((np.sinh(np.linspace(-7, 7, 800)), np.linspace(-3, 3, 800), shifts)))

    def plane(sign):
        return joint(*(cells(kind, edges, sign * bound / scale) for bound in bounds))

    joined = (1 - q) * plane(0) + q * plane(1)
    if relation is ADD:
        hold(event, joined, plane(0), ADD, rel=5e-3)
    else:  # replaced in two steps: a bound
        hold(event, joined, (1 - q) * plane(0) + q * plane(-1), REPLACE, rel=None)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "scale"), [("gaussian", 3.0), ("laplace", 4.0)])
def test_votes(family, scale):
    """Three classes, and ways in which one vote of seven may move: the law of the winner, by quadrature; and the two
    noisy counts themselves, which nobody sees: that is what is charged."""
    kind = getattr(stats, "norm" if family == "gaussian" else family)
    x = np.linspace(-30 * scale, 30 * scale, 4001)

    def winner(counts):
        parts = []
        for one in range(3):
            others = [kind.cdf(x, counts[k], scale) for k in range(3) if k != one]
            parts.append(np.trapezoid(kind.pdf(x, counts[one], scale) * others[0] * others[1], x))
        return np.array(parts) / sum(parts)

    event = NoisyMax(family, scale)
    for before, after in (((4, 3, 0), (3, 4, 0)), ((7, 0, 0), (6, 1, 0)), ((3, 2, 2), (2, 3, 2))):
        hold(event, winner(before), winner(after), rel=None)
    edges = np.unique(np.concatenate((np.linspace(-14, 14, 600), [0, 1 / scale])))
    first, second = (cells(kind(), edges, moved / scale) for moved in (0.0, 1.0))
    hold(event, joint(first, second), joint(second, first), rel=5e-3)


def test_thresholds():
    event, sigma = NoisyThreshold(5.0), 5.0
    for votes in (-20.0, -3.0, 0.0, 2.5):
        chances = [stats.norm.sf(0, votes + moved, sigma) for moved in (0, 1)]
        hold(event, *(np.array([p, 1 - p]) for p in chances), rel=None)
    edges = np.linspace(-12, 12, 2001)
    hold(event, *(cells(stats.norm, edges, moved / sigma) for moved in (0.0, 1.0)))


def test_last_iterates():
    """A line that contracts by 0.8 a step: the last iterate is normal, and a change of one record in step t moves its
    mean by 0.8 to the power of the steps after it. Projection can only bring laws nearer, and the set here is large."""
    steps, noise, contraction = 6, 2.0, 0.8
    stages = ((steps, noise, contraction, 400.0),)
    event = ProjectedDescent("replace_one", "gaussian", steps, 1, "sequential", "last", stages)
    deviation = noise * math.sqrt(sum(contraction ** (2 * k) for k in range(steps)))
    edges = np.linspace(-14, 14, 2001)
    plain = cells(stats.norm, edges, 0.0)
    for after in range(steps):
        hold(event, cells(stats.norm, edges, contraction**after / deviation), plain, REPLACE, rel=None)
    got = cost_of([Charge(event, 1)], REPLACE, ORDERS)
    seen = [order / (2 * noise**2) for order in ORDERS]  # if the iterates were seen, the step itself would be charged
    assert all(value <= most * (1 + 1e-6) for value, most in zip(got.rdp, seen, strict=True))


@pytest.mark.parametrize("score", ["largest", "least", "nearest"])
@pytest.mark.parametrize(("mean", "shape"), [(4.0, 1.0), (3.0, 0.5)])
def test_tuned_runs(score, mean, shape):
    """A run is N(0, σ²) or N(1, σ²); the best has the largest outcome, the least one, or that nearest to a half. Of K
    runs with the generating function f of Pr[K], the best has the distribution function f(F)."""
    sigma = 2.5
    event = SelectedBest("negative_binomial", mean, shape, (Charge(Gaussian(sigma), 1),))
    low, high = 1e-9, 1 - 1e-12
    for _ in range(200):  # γ with the mean η(1-γ)/(γ(1-γ^η)) of a truncated negative binomial
        gamma = (low + high) / 2
        low, high = (gamma, high) if shape * (1 - gamma) / (gamma * (1 - gamma**shape)) > mean else (low, gamma)
    edges = np.linspace(-10, 10, 4001)

    def select(masses):
        """Masses of the selected run, in cells from the worst score to the best."""
        below = np.concatenate(([0.0], np.cumsum(masses / masses.sum())))
        return np.diff(((1 - (1 - gamma) * below) ** -shape - 1) / (gamma**-shape - 1))

    def law(centre):
        if score == "nearest":
            far = np.linspace(12, 0, 4001)
            inside = stats.norm.cdf(0.5 + far, centre, sigma) - stats.norm.cdf(0.5 - far, centre, sigma)
            return select(np.concatenate(([1 - inside[0]], -np.diff(inside))))
        masses = cells(stats.norm, edges, centre / sigma)
        return select(masses if score == "largest" else masses[::-1])

    first, second = law(0.0), law(1.0)
    usable = (first > 1e-13) & (second > 1e-13)
    got = hold(event, first[usable], second[usable], rel=None)
    base = cost_of([Charge(Gaussian(sigma), 1)], ADD, ORDERS)
    assert got.rdp[2] > base.rdp[2]
    if score == "largest":  # the cost of one run alone would be no bound
        assert divergence(second[usable], first[usable], ORDERS[2]) > base.rdp[2]
