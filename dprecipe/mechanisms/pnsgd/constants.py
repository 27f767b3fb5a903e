"""Proves the constants of a convex loss on a set: how far a record can move a gradient, and how much a step contracts.

`prove_constants` goes from a model, a bound on the features' norm and the set to the constants; `step_contraction` from
those and a learning rate to the Lipschitz constant of a step. No data is read: features and targets keep their bounds
because they are clipped to them. Every number is rounded to the safe side.

For a linear predictor z = w·x with ‖x‖ <= R (a bias is a further feature of 1, so R² grows by 1) and ‖w‖ <= r, a loss
φ(z, y) has the gradient φ'(z, y) x and the Hessian φ''(z, y) xxᵀ, so that |φ'| R bounds the gradient of a record, the
Lipschitz constant L of its loss, and φ'' R² its smoothness. The regulariser (λ/2)‖w‖² has the gradient λw, which is the
same whatever the records are, and adds λ to smoothness β and strong convexity ρ. A linear predictor without a
regulariser has no strong convexity that is sure: all records may lie in a hyperplane.

Source: Asoodeh, Diaz and Calmon 2020, section IV, for what is needed; the constants are calculus, each derived where it
is written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import assert_never

from dprecipe.mechanisms.pnsgd.schema import (
    BallConstraint,
    BoxConstraint,
    Constants,
    Constraint,
    IntervalConstraint,
    SimplexConstraint,
    list_coordinates,
)
from dprecipe.models.schema import (
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    SoftmaxRegression,
)
from dprecipe.privacy.adjacency import Neighbouring

Provable = LogisticRegression | SoftmaxRegression | HuberSvm | LeastSquares | HuberRegression | Location
"""Models whose constants are proved here; logistic regression where it has two classes."""

TARGET = 1
"""Bound of a numeric target's magnitude: it is clipped to its range, and the range is mapped to [-1, 1]."""


@dataclass(frozen=True, slots=True)
class Proven:
    """Constants of a mean loss over records on a set; all but `strong_convexity` are upper bounds."""

    parameters: int
    outputs: int
    """Number of linear predictors: one for each class of softmax regression, else one."""
    largest_norm: float
    """r: the largest L2 norm of all parameters together."""
    diameter: float
    """D: the diameter of the set."""
    lipschitz: float
    """L: the Lipschitz constant of a record's loss, without the regulariser."""
    gradient_sensitivity: float
    """Δ: the largest L2 distance between the gradients of two neighbouring records."""
    smoothness: float
    """β: the smoothness, with the regulariser."""
    strong_convexity: float
    """ρ: a lower bound of the strong convexity, with the regulariser."""


def prove_constants(
    model: Provable,
    width: int,
    classes: int,
    feature_norm: float,
    constraint: Constraint,
    relation: Neighbouring,
    fullness: Fraction = Fraction(1),
) -> Proven:
    """Returns the constants of `model` on `width` features of L2 norm at most `feature_norm`; `location` reads no
    features.

    `relation` is `replace_one` or `zero_out_one` (a null record has a gradient of 0). `fullness`: records of the
    shortest batch over the number that its sum is divided by; a short batch curves less.

    With a null record in its batch one of the two runs curves less than ρ says. The bounds need the contraction of
    either run's map: |φ(w) - φ'(w')| is at most |φ(w) - φ(w')| + |φ(w') - φ'(w')|, and of other batches the maps are
    the same.
    """
    outputs = classes if isinstance(model, SoftmaxRegression) else 1
    bias = not isinstance(model, Location) and model.bias
    parameters = count_parameters(model, width, classes)
    # A location is a linear predictor on the one feature 1.
    square = Fraction(1) if isinstance(model, Location) else Fraction(feature_norm) ** 2 + bias
    norm = _root(square)
    radius, diameter = measure_set(constraint, parameters)
    reach = _times(radius, norm)
    # Only a mean curves by itself, as every record's term does: elsewhere all records may lie in a hyperplane.
    certain = fullness if isinstance(model, Location) and model.threshold is None else Fraction(0)
    l2 = Fraction(0 if isinstance(model, Location) else model.l2)
    slope, gradient_sensitivity, curvature = _loss(model, reach)
    lipschitz = _times(norm, slope)
    return Proven(
        parameters,
        outputs,
        radius,
        diameter,
        lipschitz,
        _times(norm, gradient_sensitivity) if relation is Neighbouring.REPLACE_ONE else lipschitz,
        round_above(curvature * square + l2),
        round_below(certain + l2),
    )


def count_parameters(model: Provable, width: int, classes: int) -> int:
    """Counts the learned parameters."""
    if isinstance(model, Location):
        return 1
    return (classes if isinstance(model, SoftmaxRegression) else 1) * (width + model.bias)


def measure_set(constraint: Constraint, parameters: int) -> tuple[float, float]:
    """Returns (largest L2 norm of a point, largest distance of two): upper bounds, with more slack than the rounding of
    a projection.

    Two points of a simplex are farthest apart at two vertices; of a box, at opposite corners.
    """
    match constraint:
        case BallConstraint(radius=radius, centre=centre):
            square = sum((Fraction(c) ** 2 for c in list_coordinates(centre, parameters)), Fraction(0))
            if square == 0:
                return radius, 2 * radius
            norm = _plus(_root(square), radius)
            # The centre is subtracted and added again: that rounds by some 2^-53 of the point.
            return _slightly_more(norm), round_above(2 * Fraction(radius) + Fraction(norm) / 2**48)
        case BoxConstraint(bound=bound):
            radius = _root(Fraction(bound) ** 2 * parameters)
            return radius, 2 * radius
        case IntervalConstraint(low=low, high=high):
            ends = list(zip(list_coordinates(low, parameters), list_coordinates(high, parameters), strict=True))
            farthest = sum((max(Fraction(a) ** 2, Fraction(b) ** 2) for a, b in ends), Fraction(0))
            return _root(farthest), _root(sum(((Fraction(b) - Fraction(a)) ** 2 for a, b in ends), Fraction(0)))
        case SimplexConstraint(total=total):
            whole = Fraction(total) * (1 + Fraction(1, 10**9))  # a sum of 10^5 numbers is rounded by less
            return round_above(whole), _root(2 * whole**2)
    assert_never(constraint)


def _loss(model: Provable, reach: float) -> tuple[float, float, Fraction]:
    """Returns, for predictions |z| <= `reach`, bounds of |φ'|, of ‖φ'(z) x - φ'(z') x'‖ / R over two records, and of
    φ''.

    The second is at most twice the first. For softmax regression φ' is the vector p - e_y.
    """
    match model:
        case LogisticRegression():
            # φ = log(1 + exp(-yz)): φ' = -y sigmoid(-yz), and sigmoid' = sigmoid (1 - sigmoid) <= 1/4.
            return _slightly_more(_sigmoid(reach)), _two_sigmoids(reach), Fraction(1, 4)
        case SoftmaxRegression():
            # ‖p - e_y‖² is (1 - p_y)² and squares of numbers that come to 1 - p_y: at most 2 (1 - p_y)² <= 2.
            # v'(diag p - pp')v is the variance of v under p: at most (max v - min v)² / 4 <= ‖v‖² / 2.
            return _root(Fraction(2)), 2 * _root(Fraction(2)), Fraction(1, 2)
        case HuberSvm(width=width):
            # φ' is -1 up to a margin of 1 - h, 0 from 1 + h on, and linear between them.
            return 1.0, 2.0, 1 / (2 * Fraction(width))
        case LeastSquares():
            # φ = (z - y)² / 2: φ' = z - y, φ'' = 1.
            return _plus(reach, TARGET), _two_errors(reach), Fraction(1)
        case HuberRegression(threshold=threshold):
            # φ' = z - y, cut at -τ and τ; where errors are never so large, it is least squares. A gradient that is
            # cut is that of least squares at a shorter x: (cw·x - y) cx runs from 0 to the whole as c does from 0 to 1.
            return min(threshold, _plus(reach, TARGET)), min(2 * threshold, _two_errors(reach)), Fraction(1)
        case Location(threshold=threshold):
            # φ' = w - y, cut at -τ and τ where there is a τ: with one w for both records they differ by the targets.
            limit = math.inf if threshold is None else threshold
            return min(limit, _plus(reach, TARGET)), min(2 * limit, 2.0 * TARGET), Fraction(1)
        case other:
            assert_never(other)


def _two_errors(reach: float) -> float:
    """Bounds ‖(w·x - y) x - (w·x' - y') x'‖ over ‖x‖, ‖x'‖ <= 1, |y|, |y'| <= 1, ‖w‖ <= a, where a = `reach`: returns
    the maximum.

    It is convex in y and in y', and (x, y) and (-x, -y) have one gradient: y = y' = -1 are the worst. With s the mean
    of x and x', d their difference and δ its length, the rest is d + (w·s) d + (w·d) s, of at most δ + aV with
    V = |s·d| + ‖s‖ δ (the largest eigenvalue of sd' + ds'), and both x lie in the ball: ‖s‖² + δ²/4 + |s·d| <= 1. So
    V <= 1 - (‖s‖ - δ/2)²: at most 1, and for δ >= √2, where ‖s‖ <= √(1 - δ²/4) <= δ/2, at most δ √(1 - δ²/4). With
    δ = 2 sin θ the most is that of 2 sin θ (1 + a cos θ) from 45° to 90°, where x and x' mirror each other at w, and
    there it is attained. For large a it is a + √2, half of 2 (a + 1).
    """
    if not math.isfinite(reach * reach):
        return math.inf
    cosine = 2 * reach / (1 + math.sqrt(1 + 8 * reach * reach))  # where the derivative is zero
    return _slightly_more(2 * math.sqrt(1 - cosine * cosine) * (1 + reach * cosine))


def _two_sigmoids(reach: float) -> float:
    """Returns the maximum of ‖s(w·z) z - s(w·z') z'‖ over ‖z‖, ‖z'‖ <= 1 and ‖w‖ <= a, where a = `reach` and s is the
    sigmoid.

    (z stands for -yx.) It is the most of N = 2 s(a cos φ) sin φ, z and z' mirroring each other at w at an angle of φ.

    Proof. What is orthogonal to w does most where the two parts are opposite and as long as the ball lets them be. So
    z and z' are unit vectors in a plane, at angles φ + t and φ - t to either side of w, and with S the mean of the two
    sigmoids and E their difference N² = 4 S² sin²φ + E² cos²φ. Above 90° S <= 1/2 and E <= 1: no more than at φ = 90°.
    Below, put u = (a/2) cos φ cos t, v = (a/2) sin φ sin t (t >= 0), T = tanh u, Q = cosh²u + sinh²v and
    W = sinh²v / Q: then S = (1 + T - TW) / 2, and E² = W cosh²v / Q <= W. The mirrored pair whose angle has the cosine
    cos φ cos t reaches (1 + T)² (sin²φ + cos²φ sin²t), which is enough if

        E² cos²φ <= (1 + T)² cos²φ sin²t + 2 T W sin²φ.

    If a sin φ <= 2, E <= tanh v <= v <= sin t. Else T >= tanh b with b = cot φ cos t. If b <= 1.3, b² <= 2 tanh b, so
    that W cos²φ cos²t <= 2 T W sin²φ, and W sin²t <= sin²t. If b > 1.3, v <= u (else tan t > cot φ and b < 1), and
    W <= (v / u)² = tan²t tan²φ = sin²t / b². QED
    """
    low, high = 0.0, 1.0  # of cos φ; the derivative of N changes its sign once
    for _ in range(60):
        middle = (low + high) / 2
        if middle < reach * (1 - middle * middle) * _sigmoid(-reach * middle):
            low = middle
        else:
            high = middle
    return _slightly_more(2 * _sigmoid(reach * low) * math.sqrt(1 - low * low))


def apply_declared(proven: Proven, constants: Constants) -> Proven:
    """Returns the constants, with those that a recipe states instead of the proved ones; Δ grows in proportion to L."""
    lipschitz, gradient_sensitivity = proven.lipschitz, proven.gradient_sensitivity
    if constants.lipschitz is not None and lipschitz:
        gradient_sensitivity = round_above(
            Fraction(gradient_sensitivity) * Fraction(constants.lipschitz) / Fraction(lipschitz)
        )
        lipschitz = constants.lipschitz
    return replace(
        proven,
        lipschitz=lipschitz,
        gradient_sensitivity=gradient_sensitivity,
        smoothness=proven.smoothness if constants.smoothness is None else constants.smoothness,
        strong_convexity=(
            proven.strong_convexity if constants.strong_convexity is None else constants.strong_convexity
        ),
    )


def step_contraction(learning_rate: float, proven: Proven) -> float:
    """Returns M* = max(|1 - ηρ|, |1 - ηβ|), rounded up: the Lipschitz constant of a step before its noise; a projection
    on a convex set adds nothing.

    Proof: the gradients of the mean loss at two points of the set differ by H times the points' difference, H the mean
    of the Hessian over the segment between them, whose eigenvalues lie from ρ to β; so do the steps, by I - ηH. Never
    above the paper's √(1 - 2ηβρ/(β + ρ)), to which it is equal at η = 2/(β + ρ). Below 1 for η < 2/β where ρ > 0.
    """
    rate = Fraction(learning_rate)
    ends = (Fraction(proven.strong_convexity), Fraction(proven.smoothness))
    return round_above(max(abs(1 - rate * end) for end in ends))


def round_above(exact: Fraction) -> float:
    """Returns the smallest double that is not below the value."""
    try:
        rounded = exact.numerator / exact.denominator
    except OverflowError:
        return math.inf
    return rounded if Fraction(rounded) >= exact else math.nextafter(rounded, math.inf)


def round_below(exact: Fraction) -> float:
    """Returns the largest double that is not above the value."""
    return 0.0 - round_above(-exact)  # and never -0.0


def _root(square: Fraction) -> float:
    """Returns a square root, rounded up."""
    rounded = math.sqrt(round_above(square))
    if not math.isfinite(rounded):
        return rounded
    while Fraction(rounded) ** 2 < square:
        rounded = math.nextafter(rounded, math.inf)
    return rounded


def _times(a: float, b: float) -> float:
    """Returns a product, rounded up."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return round_above(Fraction(a) * Fraction(b))


def _plus(a: float, b: float) -> float:
    """Returns a sum, rounded up."""
    return round_above(Fraction(a) + Fraction(b)) if math.isfinite(a) else math.inf


def _slightly_more(value: float) -> float:
    """Returns the value plus more than the rounding error of a few operations."""
    return value * (1 + 1e-14)


def _sigmoid(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))
