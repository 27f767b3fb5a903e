"""Contraction coefficients against reference values, 60-digit arithmetic and quadrature."""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.mechanisms.pnsgd.theory import contraction, paper
from dprecipe.privacy import gdp

RECORDS = json.loads((Path(__file__).parents[3] / "golden" / "pnsgd.json").read_text())


def theta(epsilon, r):
    """θ_ε(r): δ at ε of two unit Gaussians at distance r. See `log_gaussian`."""
    return float(np.exp(contraction.log_gaussian(epsilon, r)))


def laplace(epsilon, r):
    """δ at ε of two unit Laplace distributions at distance r. See `log_laplace`."""
    return float(np.exp(contraction.log_laplace(epsilon, r)))


def theorem_3(epsilon, a, reach, later):
    """δ of Laplace noise on an interval: [1 - exp((ε - a)/2)]₊ [1 - exp((ε - reach)/2)]₊^later.

    Source: Asoodeh, Diaz & Calmon 2020, Theorem 3. (That δ = 0 as soon as ε >= reach needs a later step.)
    """
    return _linear("laplace", epsilon, a, reach, later)


def _linear(family, epsilon, a, reach, later):
    distribution = contraction.DISTRIBUTIONS[family]
    return math.exp(float(distribution(epsilon, a)) + (later * float(distribution(epsilon, reach)) if later else 0.0))


def theorem_5(epsilon, a, reach, steps):
    """δ of a run stopped after a number of steps drawn uniformly from 1 to `steps`, as printed: it may exceed 1.

    Source: Asoodeh, Diaz & Calmon 2020, Theorem 5.
    """
    return theta(epsilon, a) / (-math.expm1(float(contraction.log_gaussian(epsilon, reach))) * steps)


def theorem_5_sum(epsilon, a, reach, steps):
    """The sum that Theorem 5 bounds by its limit: the mean of `theorem_4` over 0 to `steps` - 1 later steps.

    Guarantees: never above 1, nor above `theorem_5`. Holds too for a record's place drawn uniformly.
    Source: joint convexity of the hockey stick.
    """
    log_factor = float(contraction.log_gaussian(epsilon, reach))
    if log_factor > -1e-15:
        return theta(epsilon, a)
    return theta(epsilon, a) * math.expm1(steps * log_factor) / (math.expm1(log_factor) * steps)


def combine_bound(kind, i):
    if kind == "theta":
        return theta(i["eps"], i["r"])
    if kind == "E_gamma_laplace":
        return laplace(i["eps"], i["shift"] / i["scale"])
    scale = i.get("v", i.get("sigma"))
    a, reach = 2 * i["L"] / scale, i["M"] * i["D"] / (i["eta"] * scale)
    match kind:
        case "thm3_laplace_delta":
            return theorem_3(i["eps"], a, reach, i["n"] - i["i"])
        case "thm4_delta":
            return paper.theorem_4(i["eps"], a, reach, i["n"] - i["i"])
        case "thm5_delta":
            return theorem_5(i["eps"], a, reach, i["n"])
        case "thm5_exact_finite_sum_delta":
            return theorem_5_sum(i["eps"], a, reach, i["n"])
        case "prop1_delta":
            return paper.proposition_1(i["eps"], a, i["M"], i["n"] - i["i"])
    raise ValueError(kind)


KINDS = ("theta", "E_gamma_laplace", "thm3_laplace_delta", "thm4_delta", "thm5_delta", "thm5_exact_finite_sum_delta")


@pytest.mark.parametrize("kind", [*KINDS, "prop1_delta"])
def test_reference_values(kind):
    records = [record for record in RECORDS if record["kind"] == kind and record["value"] > 1e-200]
    assert len(records) >= 2
    for record in records:
        assert combine_bound(kind, record["inputs"]) == pytest.approx(record["value"], rel=1e-8), record


def oracle(epsilon, r):
    """log θ in as many digits as cancel."""
    near = epsilon / r - r / 2
    with mp.workdps(int(60 + near * near / 4.6 + epsilon / 2.3)):
        epsilon, r = mp.mpf(epsilon), mp.mpf(r)
        tails = [mp.erfc(x / mp.sqrt(2)) / 2 for x in (r / 2 - epsilon / r, epsilon / r + r / 2)]
        complement = tails[0] + mp.exp(epsilon) * tails[1]
        return mp.log1p(-complement)


CASES = [(0.0, 1e-8), (0.0, 0.5), (0.0, 12.0), (1e-5, 1e-6), (0.01, 0.001), (0.01, 0.0009), (0.37, 0.0127), (1.0, 0.03)]
CASES += [(1.0, 0.05), (1.0, 1.0), (1.0, 3.0), (1.0, 10.0), (0.5, 14.0), (3.0, 2.0), (20.0, 5.0), (20.0, 1.0)]
# tails of which the farther is more than forty deviations out
CASES += [(1000.0, 40.0), pytest.param(8000.0, 120.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("epsilon", "r"), CASES)
def test_theta_is_exact_and_never_below_whether_it_is_small_or_next_to_one(epsilon, r):
    got, want = float(contraction.log_gaussian(epsilon, r)), oracle(epsilon, r)
    assert got >= want  # of 1 - exp(-50) too: what counts is the complement
    assert got == pytest.approx(float(want), rel=1e-11, abs=1e-11 * min(1.0, -float(want)))


@given(st.floats(0, 30), st.floats(1e-3, 30))
def test_theta_agrees_with_the_gaussian_mechanism(epsilon, r):
    assert theta(epsilon, r) == pytest.approx(gdp.delta(r, epsilon), rel=1e-10, abs=1e-300)


def test_theta_at_the_ends():
    logs = contraction.log_gaussian([0.0, 1.0, 1.0, 0.0, 1.0], [0.0, 0.0, math.inf, math.inf, 1e-200])
    assert logs.tolist() == [-math.inf, -math.inf, 0.0, 0.0, contraction.MIN_LOG_DIVERGENCE]


@given(st.floats(0, 20), st.floats(1e-3, 20), st.floats(1, 2))
def test_theta_grows_with_distance_and_falls_with_epsilon(epsilon, r, more):
    for distribution in contraction.DISTRIBUTIONS.values():
        assert distribution(epsilon, r * more) >= distribution(epsilon, r) * (1 + 1e-11) - 1e-11
        assert distribution(epsilon * more, r) <= distribution(epsilon, r) * (1 - 1e-11) + 1e-11


def test_laplace_against_quadrature():
    for epsilon, r in [(0.0, 0.3), (0.5, 0.4), (0.5, 2.0), (3.0, 9.0)]:
        x = np.linspace(-40, 40 + r, 2_000_001)
        p, q = np.exp(-np.abs(x - r)) / 2, np.exp(-np.abs(x)) / 2
        exact = np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0])
        assert laplace(epsilon, r) == pytest.approx(exact, abs=1e-7)


def test_the_nonlinear_factor_is_the_linear_one_at_delta_one_and_less_below():
    for family, distribution in contraction.DISTRIBUTIONS.items():
        for reach in (0.5, 2.0, 8.0):
            assert contraction.log_shrunk(family, 1.0, 0.0, reach) == pytest.approx(distribution(1.0, reach), rel=1e-12)
            falling = contraction.log_shrunk(family, 1.0, -np.arange(0.0, 30.0), reach)
            assert (np.diff(falling[np.isfinite(falling)]) <= 0).all()
            assert contraction.log_shrunk(family, 0.0, -5.0, reach) == distribution(0.0, reach)


def test_the_nonlinear_factor_on_two_points():
    """Distributions on {y, y'} with E_γ = δ: P = (1, 0), Q = (1 - q, q). After the step E_γ must be at most c δ;
    computed."""
    x = np.linspace(-30, 30, 600_001)
    normal = [np.exp(-((x - at) ** 2) / 2) / math.sqrt(2 * math.pi) for at in (0.0, 1.5)]
    for epsilon, q in [(0.5, 0.6), (1.0, 0.9), (1.0, 0.7), (0.1, 0.3)]:
        gamma = math.exp(epsilon)
        delta = max(0.0, 1 - gamma * (1 - q))
        after = np.maximum(normal[0] - gamma * ((1 - q) * normal[0] + q * normal[1]), 0).sum() * (x[1] - x[0])
        if delta > 0:
            claimed = delta * math.exp(contraction.log_shrunk("gaussian", epsilon, math.log(delta), 1.5))
            assert after <= claimed + 1e-9
            assert claimed < delta * theta(epsilon, 1.5)


def test_theorem_5_is_bounded_by_its_sum():
    assert theorem_5(2.0, 1.0, 24.5, 5000) > 1  # as printed it says nothing here
    assert theorem_5_sum(2.0, 1.0, 24.5, 5000) <= theta(2.0, 1.0)
    by_hand = [paper.theorem_4(0.5, 1.0, 2.0, later) for later in range(300)]
    assert theorem_5_sum(0.5, 1.0, 2.0, 300) == pytest.approx(sum(by_hand) / 300, rel=1e-10)


def test_proposition_1_is_void_below_kappa():
    assert paper.proposition_1(0.4, 1.0, 1.0, 0) == 1.0
    assert paper.proposition_1(0.6, 1.0, 1.0, 0) == pytest.approx(math.exp(-0.005))


def test_the_sharper_contraction_is_no_larger_and_equal_at_the_longest_step():
    """max(|1 - ηρ|, |1 - ηβ|): the difference of two gradients is H (y₁ - y₂), the eigenvalues of H in [ρ, β]."""
    for eta, rho, beta in [(0.5, 0.0, 0.5), (0.5, 0.2, 0.5), (1.0, 0.2, 1.0), (2 / 1.2, 0.2, 1.0)]:
        sharper = max(abs(1 - eta * rho), abs(1 - eta * beta))
        assert sharper <= paper.paper_contraction(eta, rho, beta) + 1e-15
    assert sharper == pytest.approx(paper.paper_contraction(eta, rho, beta), rel=1e-12)
    with pytest.raises(ValueError, match="strong convexity"):
        paper.paper_contraction(0.7, 0.4, 0.3)  # figure 3 as printed
    with pytest.raises(ValueError, match="learning rate"):
        paper.paper_contraction(2.1, 0.0, 1.0)
