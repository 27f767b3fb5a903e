"""Constants are bounds of what brute force finds, near enough to it, and those of the papers."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax

from dprecipe.mechanisms.pnsgd.constants import (
    Proven,
    apply_declared,
    prove_constants,
    round_above,
    round_below,
    step_contraction,
)
from dprecipe.mechanisms.pnsgd.schema import BallConstraint, BoxConstraint, Constants
from dprecipe.models.schema import (
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    SoftmaxRegression,
)
from dprecipe.privacy.adjacency import Neighbouring

REPLACE, ZERO_OUT = Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
MODELS: dict[str, Any] = {
    "logistic": LogisticRegression(kind="logistic_regression", bias=False),
    "logistic_l2": LogisticRegression(kind="logistic_regression", bias=False, l2=0.3),
    "softmax": SoftmaxRegression(kind="softmax_regression", bias=False, l2=0.1),
    "huber_svm": HuberSvm(kind="huber_svm", width=0.4, bias=False),
    "least_squares": LeastSquares(kind="least_squares", bias=False, l2=0.2),
    "huber": HuberRegression(kind="huber_regression", threshold=0.7, bias=False),
    "huber_wide": HuberRegression(kind="huber_regression", threshold=9.0, bias=False),
}


def slope(name: str, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """φ' of linear predictions."""
    if name.startswith("logistic"):
        return -y * expit(-y * z)
    if name == "huber_svm":
        return -y * np.clip((1 + 0.4 - y * z) / (2 * 0.4), 0, 1)
    limit = {"least_squares": math.inf, "huber": 0.7, "huber_wide": 9.0}[name]
    return np.clip(z - y, -limit, limit)


def prove_it(name: str, radius: float, norm: float, relation: Neighbouring = REPLACE) -> Proven:
    return prove_constants(MODELS[name], 2, 3, norm, BallConstraint(kind="ball", radius=radius), relation)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "softmax"])
@pytest.mark.parametrize(("radius", "norm"), [(0.1, 1.0), (1.0, 1.0), (3.0, 2.0), (20.0, 0.5), (40.0, 1.0)])
def test_gradients_of_linear_predictors(name: str, radius: float, norm: float) -> None:
    """All records of a grid on the disc, for a weight on the rim of the ball and one within: bounded, and nearly
    attained."""
    proven = prove_it(name, radius, norm)
    angles = np.linspace(0, math.pi, 241)
    most_gradient = most_moved = 0.0
    for length in (radius, radius / 3, 0.0):
        # in the plane of w and x; mirrored at w by the sign of the sine
        for size in (norm, norm / 3):
            x_N2 = size * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            for y, other in itertools.product((-1.0, 1.0), repeat=2):
                one_N2 = slope(name, length * x_N2[:, 0], np.full(241, y))[:, None] * x_N2
                two_N2 = slope(name, length * x_N2[:, 0], np.full(241, other))[:, None] * x_N2 * [1, -1]
                distance_NN = np.linalg.norm(one_N2[:, None] - two_N2[None], axis=2)
                most_gradient = max(most_gradient, float(np.linalg.norm(one_N2, axis=1).max()))
                most_moved = max(most_moved, float(distance_NN.max()))
    assert most_gradient * (1 - 4e-16) <= proven.lipschitz <= most_gradient * (1 + 1e-9)
    attained = 1.2 if name == "huber_wide" else 1.001  # of an error cut late, neither bound is attained
    assert most_moved * (1 - 4e-16) <= proven.gradient_sensitivity <= most_moved * attained
    assert proven.gradient_sensitivity <= 2 * proven.lipschitz * (1 + 1e-12)
    assert prove_it(name, radius, norm, ZERO_OUT).gradient_sensitivity == proven.lipschitz


@pytest.mark.parametrize("name", [name for name in MODELS if name != "softmax"])
def test_curvature_of_linear_predictors(name: str) -> None:
    radius, norm = 3.0, 1.5
    proven = prove_it(name, radius, norm)
    z = np.linspace(-radius * norm, radius * norm, 100_001)
    steepest = 0.0
    for y in (-1.0, 1.0, 0.3):
        steepest = max(steepest, float(np.max(np.diff(slope(name, z, np.full_like(z, y))) / np.diff(z))))
    l2 = MODELS[name].l2
    assert steepest * norm**2 + l2 <= proven.smoothness * (1 + 1e-6) <= (steepest * norm**2 + l2) * (1 + 1e-5)
    assert proven.strong_convexity == l2


def test_softmax_regression() -> None:
    """Random weights and records stay within the bounds, and chosen ones come near: wrong by far at one place, two
    classes at even odds at another."""
    rng = np.random.default_rng(0)
    radius, norm = 30.0, 1.0
    proven = prove_it("softmax", radius, norm)
    gradients = []
    for _ in range(2_000):
        w_C2 = rng.normal(size=(3, 2))
        w_C2 *= radius / np.linalg.norm(w_C2)
        x_2 = rng.normal(size=2)
        x_2 *= norm / np.linalg.norm(x_2)
        p_C = softmax(w_C2 @ x_2)
        for label in range(3):
            gradients.append(np.outer(p_C - np.eye(3)[label], x_2))
        hessian = np.kron(np.diag(p_C) - np.outer(p_C, p_C), np.outer(x_2, x_2)) + 0.1 * np.eye(6)
        assert np.linalg.eigvalsh(hessian)[-1] <= proven.smoothness
    norms = [float(np.linalg.norm(gradient)) for gradient in gradients]
    assert 0.999 * proven.lipschitz < max(norms) <= proven.lipschitz == pytest.approx(math.sqrt(2))
    assert proven.gradient_sensitivity == 2 * proven.lipschitz
    assert proven.smoothness == pytest.approx(0.5 + 0.1)
    assert (proven.parameters, proven.outputs) == (6, 3)


@pytest.mark.parametrize("threshold", [None, 0.5, 4.0])
def test_location(threshold: float | None) -> None:
    model = Location(kind="location", threshold=threshold)
    proven = prove_constants(model, 5, 0, 7.0, BoxConstraint(kind="box", bound=2.0), REPLACE)
    limit = math.inf if threshold is None else threshold
    w, y = np.meshgrid(np.linspace(-2, 2, 401), np.linspace(-1, 1, 201), indexing="ij")
    gradient = np.clip(w - y, -limit, limit)
    assert proven.lipschitz == np.abs(gradient).max()
    assert proven.gradient_sensitivity == pytest.approx(float(np.ptp(gradient, axis=1).max()), rel=1e-12)
    curved = 1.0 if threshold is None else 0.0
    assert (proven.parameters, proven.diameter, proven.smoothness, proven.strong_convexity) == (1, 4.0, 1.0, curved)
    short = prove_constants(model, 5, 0, 7.0, BoxConstraint(kind="box", bound=2.0), REPLACE, Fraction(3, 8))
    assert (short.smoothness, short.strong_convexity) == (1.0, curved * 3 / 8)
    assert (
        prove_constants(model, 5, 0, 7.0, BoxConstraint(kind="box", bound=2.0), ZERO_OUT).gradient_sensitivity
        == proven.lipschitz
    )


def test_a_bias_is_a_feature_of_one() -> None:
    model = LeastSquares(kind="least_squares")
    proven = prove_constants(model, 3, 0, 2.0, BallConstraint(kind="ball", radius=1.5), ZERO_OUT)
    assert proven.parameters == 4
    assert proven.smoothness == 5.0
    assert proven.lipschitz == pytest.approx(math.sqrt(5) * (1.5 * math.sqrt(5) + 1), rel=1e-15)


def test_a_box() -> None:
    proven = prove_constants(MODELS["softmax"], 4, 3, 1.0, BoxConstraint(kind="box", bound=0.5), REPLACE)
    assert proven.parameters == 12
    assert proven.largest_norm == pytest.approx(0.5 * math.sqrt(12))
    assert Fraction(proven.largest_norm) ** 2 >= Fraction(1, 4) * 12
    assert proven.diameter == 2 * proven.largest_norm


def test_the_paper() -> None:
    """Figure 2's problem is a Huber SVM; figure 3's with ρ and β exchanged, too."""
    svm = HuberSvm(kind="huber_svm", width=1.0, bias=False)
    two = prove_constants(svm, 9, 2, 1.0, BallConstraint(kind="ball", radius=0.5), REPLACE)
    assert (two.lipschitz, two.gradient_sensitivity, two.smoothness, two.strong_convexity, two.diameter) == (
        1.0,
        2.0,
        0.5,
        0.0,
        1.0,
    )
    assert step_contraction(0.5, two) == 1.0
    svm = HuberSvm(kind="huber_svm", width=5.0, l2=0.3, bias=False)
    three = prove_constants(svm, 9, 2, 1.0, BallConstraint(kind="ball", radius=0.5), REPLACE)
    assert (three.lipschitz, three.gradient_sensitivity, three.smoothness, three.strong_convexity) == (
        1.0,
        2.0,
        0.4,
        0.3,
    )
    paper = math.sqrt(1 - 2 * 0.7 * 0.4 * 0.3 / 0.7)
    assert round(paper, 4) == 0.8718
    assert step_contraction(0.7, three) == pytest.approx(1 - 0.7 * 0.3)
    assert step_contraction(0.7, three) < paper


def test_the_contraction_is_no_larger_than_the_papers_and_rounded_up() -> None:
    rng = np.random.default_rng(1)
    base = prove_it("logistic", 1.0, 1.0)
    for _ in range(500):
        rho, beta = sorted(rng.uniform(0.01, 2.0, 2))
        proven = apply_declared(base, Constants(strong_convexity=rho, smoothness=beta))
        rate = rng.uniform(0, 2 / (beta + rho))
        exact = max(abs(1 - Fraction(rate) * Fraction(rho)), abs(1 - Fraction(rate) * Fraction(beta)))
        actual = step_contraction(rate, proven)
        assert exact <= Fraction(actual) <= exact * (1 + Fraction(1, 10**15))
        assert actual <= math.sqrt(1 - 2 * rate * beta * rho / (beta + rho)) * (1 + 1e-12)


def test_declared_constants() -> None:
    derived = prove_it("least_squares", 1.0, 1.0)
    assert apply_declared(derived, Constants()) == derived
    rounded = apply_declared(derived, Constants(lipschitz=3.0, smoothness=2.0, strong_convexity=0.1))
    assert (rounded.lipschitz, rounded.smoothness, rounded.strong_convexity) == (3.0, 2.0, 0.1)
    assert rounded.gradient_sensitivity / derived.gradient_sensitivity == pytest.approx(3.0 / derived.lipschitz)


def test_numbers_out_of_all_proportion_are_infinite() -> None:
    for name in MODELS:
        assert math.isinf(prove_it(name, 1.0, 1e300).smoothness)
    assert math.isinf(prove_it("least_squares", 1e300, 1e300).lipschitz)
    assert prove_it("logistic", 1e300, 1e300).lipschitz >= 1e300


def test_rounding() -> None:
    third = Fraction(1, 3)
    assert Fraction(round_below(third)) < third < Fraction(round_above(third))
    assert math.nextafter(round_below(third), 1) == round_above(third)
    assert round_above(Fraction(1, 2)) == round_below(Fraction(1, 2)) == 0.5
