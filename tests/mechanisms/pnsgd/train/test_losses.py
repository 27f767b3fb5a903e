"""Losses in closed form: slopes are derivatives, one by one as in arrays, in numpy as in torch."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from dprecipe.mechanisms.pnsgd.train.losses import Huber, Logistic, Loss, SmoothHinge, Softmax, Squared, choose_loss
from dprecipe.models.schema import HuberRegression, HuberSvm, LeastSquares, Location, LogisticRegression, Mlp

LOSSES = [Logistic(), SmoothHinge(0.5), SmoothHinge(0.05), Squared(), Huber(0.3), Softmax(4)]


def points(loss: Loss, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    if isinstance(loss, Softmax):
        return generator.normal(size=(count, 4)) * 3, loss.targets(generator.integers(4, size=count))
    labels = generator.uniform(-1, 1, count) if isinstance(loss, Squared | Huber) else generator.integers(2, size=count)
    return generator.normal(size=count) * 2, loss.targets(labels)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_slope_is_the_derivative(loss: Loss) -> None:
    z, y = points(loss)
    direction = np.random.default_rng(1).normal(size=z.shape)
    h = 1e-6
    quotient = (loss.value(z + h * direction, y) - loss.value(z - h * direction, y)) / (2 * h)
    moved = loss.slope(z, y) * direction
    expected = moved.sum(1) if moved.ndim == 2 else moved
    assert np.abs(quotient - expected).max() < 2e-5  # across a kink it is off by h times the curvature


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_torch_gives_what_numpy_gives(loss: Loss) -> None:
    z, y = points(loss)
    actual = loss.slope(torch.from_numpy(z), torch.from_numpy(y), torch)
    assert np.abs(actual.numpy() - loss.slope(z, y)).max() < 1e-14


@pytest.mark.parametrize("loss", LOSSES[:-1], ids=repr)
def test_one_by_one_as_in_arrays(loss: Loss) -> None:
    assert not isinstance(loss, Softmax)
    z, y = points(loss)
    actual = [loss.scalar_slope(a, b) for a, b in zip(z.tolist(), y.tolist(), strict=True)]
    assert np.abs(np.array(actual) - loss.slope(z, y)).max() < 1e-15


def test_values_by_another_computation() -> None:
    z = np.array([-700.0, -3.0, 0.2, 40.0])
    for sign in (-1.0, 1.0):
        actual = Logistic().value(z, np.full(4, sign))
        expected = [float(mpmath.log1p(mpmath.exp(-sign * mpmath.mpf(v)))) for v in z]
        assert np.allclose(actual, expected, rtol=1e-14, atol=0)
        assert np.isfinite(Logistic().slope(z, np.full(4, sign))).all()
    margins = np.array([-2.0, 0.4, 0.5, 1.0, 1.5, 3.0])  # of width 0.5: from 0.5 to 1.5
    assert np.allclose(SmoothHinge(0.5).value(margins, np.ones(6)), [3.0, 0.6, 0.5, 0.125, 0.0, 0.0])
    assert np.allclose(Huber(0.5).value(np.array([0.25, 0.5, 2.0]), np.zeros(3)), [0.03125, 0.125, 0.875])


def test_slopes_stay_within_their_bounds() -> None:
    generator = np.random.default_rng(2)
    z = generator.normal(size=10_000) * 100
    for loss in LOSSES[:-1]:
        if not isinstance(loss, Squared):
            bound = loss.threshold if isinstance(loss, Huber) else 1.0
            assert np.abs(loss.slope(z, loss.targets(np.sign(generator.normal(size=10_000))))).max() <= bound
    slope = Softmax(5).slope(generator.normal(size=(10_000, 5)) * 30, generator.integers(5, size=10_000))
    assert np.linalg.norm(slope, axis=1).max() <= np.sqrt(2) * (1 + 1e-15)


@pytest.mark.parametrize("labels", [np.array([-7, 9]), np.array([np.nan, np.inf]), np.array([-np.inf, 1e30])])
def test_labels_nobody_declared_become_ones_that_the_constants_hold_for(labels: np.ndarray) -> None:
    for loss in (Logistic(), SmoothHinge(0.5)):
        assert set(loss.targets(labels).tolist()) <= {-1.0, 1.0}
    for other in (Squared(), Huber(0.5)):
        assert np.abs(other.targets(labels)).max() <= 1
    if labels.dtype.kind == "i":
        assert Softmax(3).targets(labels).tolist() == [0, 2]


def test_a_loss_for_every_convex_model() -> None:
    assert choose_loss(LogisticRegression(kind="logistic_regression"), 2) == Logistic()
    assert choose_loss(HuberSvm(kind="huber_svm", width=0.25), 2) == SmoothHinge(0.25)
    assert choose_loss(LeastSquares(kind="least_squares"), 1) == Squared()
    assert choose_loss(HuberRegression(kind="huber_regression", threshold=0.7), 1) == Huber(0.7)
    assert choose_loss(Location(kind="location"), 1) == Squared()
    assert choose_loss(Location(kind="location", threshold=0.1), 1) == Huber(0.1)
    for model, classes in ((LogisticRegression(kind="logistic_regression"), 3), (Mlp(kind="mlp", hidden=(3,)), 2)):
        with pytest.raises(ValueError, match="no convex loss"):
            choose_loss(model, classes)
