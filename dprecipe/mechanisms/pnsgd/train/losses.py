"""Losses of linear predictors in closed form: values and slopes, for the engine and its probe.

The predictor of a record is z = ⟨w, x⟩, or for softmax one such number for each class. Its gradient is the slope of the
loss in z, times x.

Guarantees: `targets` maps every label, whatever the source returns, to one for which the loss's constants are proved.

`xp` is numpy or torch: the formulas use only what both have.

Axes: B records, C classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.models.schema import (
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    Model,
    SoftmaxRegression,
)

Floats = NDArray[np.float64]


def _signs(labels: NDArray[Any]) -> NDArray[Any]:
    return np.where(labels > 0, 1.0, -1.0)


def _numbers(labels: NDArray[Any]) -> NDArray[Any]:
    return np.clip(np.nan_to_num(labels.astype(np.float64)), -1.0, 1.0)


@final
@dataclass(frozen=True, slots=True)
class Logistic:
    """log(1 + exp(-y z)), y of -1 and 1."""

    def targets(self, labels: NDArray[Any]) -> NDArray[Any]:
        return _signs(labels)

    def value(self, z: Floats, y: NDArray[Any]) -> Floats:
        return np.logaddexp(0.0, -y * z)

    def slope(self, z: Any, y: Any, xp: Any = np) -> Any:
        return 0.5 * (xp.tanh(0.5 * z) - y)

    def scalar_slope(self, z: float, y: float) -> float:
        return 0.5 * (math.tanh(0.5 * z) - y)


@final
@dataclass(frozen=True, slots=True)
class SmoothHinge:
    """0 for margins y z above 1 + h, (1 + h - y z)²/(4h) within h of 1, 1 - y z below; y of -1 and 1."""

    width: float

    def targets(self, labels: NDArray[Any]) -> NDArray[Any]:
        return _signs(labels)

    def value(self, z: Floats, y: NDArray[Any]) -> Floats:
        margin, h = y * z, self.width
        clipped = np.clip(1 + h - margin, 0.0, 2 * h) ** 2 / (4 * h)
        value: Floats = clipped + np.maximum(1 - h - margin, 0.0)
        return value

    def slope(self, z: Any, y: Any, xp: Any = np) -> Any:
        return -y * xp.clip((1 + self.width - y * z) / (2 * self.width), 0.0, 1.0)

    def scalar_slope(self, z: float, y: float) -> float:
        return -y * min(max((1 + self.width - y * z) / (2 * self.width), 0.0), 1.0)


@final
@dataclass(frozen=True, slots=True)
class Squared:
    """(z - y)²/2, y from -1 to 1."""

    def targets(self, labels: NDArray[Any]) -> NDArray[Any]:
        return _numbers(labels)

    def value(self, z: Floats, y: NDArray[Any]) -> Floats:
        squared: Floats = (z - y) ** 2 / 2
        return squared

    def slope(self, z: Any, y: Any, xp: Any = np) -> Any:
        return z - y

    def scalar_slope(self, z: float, y: float) -> float:
        return z - y


@final
@dataclass(frozen=True, slots=True)
class Huber:
    """(z - y)²/2 up to an error of τ, τ |z - y| - τ²/2 beyond; y from -1 to 1."""

    threshold: float

    def targets(self, labels: NDArray[Any]) -> NDArray[Any]:
        return _numbers(labels)

    def value(self, z: Floats, y: NDArray[Any]) -> Floats:
        error = np.abs(z - y)
        clipped = np.minimum(error, self.threshold)
        value: Floats = clipped * (error - clipped / 2)
        return value

    def slope(self, z: Any, y: Any, xp: Any = np) -> Any:
        return xp.clip(z - y, -self.threshold, self.threshold)

    def scalar_slope(self, z: float, y: float) -> float:
        return min(max(z - y, -self.threshold), self.threshold)


@final
@dataclass(frozen=True, slots=True)
class Softmax:
    """log Σ exp(z_c) - z_y, y of 0 … C-1; z is (B, C)."""

    classes: int

    def targets(self, labels: NDArray[Any]) -> NDArray[Any]:
        return np.clip(labels.astype(np.int64), 0, self.classes - 1)

    def value(self, z: Floats, y: NDArray[Any]) -> Floats:
        largest_B = z.max(1)
        value: Floats = largest_B + np.log(np.exp(z - largest_B[:, None]).sum(1)) - z[np.arange(len(y)), y]
        return value

    def slope(self, z: Any, y: Any, xp: Any = np) -> Any:
        grown = xp.exp(z - xp.amax(z, axis=1, keepdims=True))
        slope = grown / grown.sum(axis=1, keepdims=True)
        slope[xp.arange(len(y)), y] -= 1.0
        return slope


ScalarLoss = Logistic | SmoothHinge | Squared | Huber
"""Losses of a predictor that is one number: z is (B,)."""

Loss = ScalarLoss | Softmax
"""The losses. Each has `targets`: y, (B,), from labels of any value; `value`: the loss of each record, (B,); `slope`:
the derivative in z, in the shape of z; and, if it is a `ScalarLoss`, `scalar_slope`: the same without arrays."""


def choose_loss(model: Model, classes: int) -> Loss:
    """Returns the loss of a convex model.

    Raises:
        ValueError: the model is not convex. (The accounting refuses such plans.)
    """
    match model:
        case LogisticRegression() if classes == 2:
            return Logistic()
        case SoftmaxRegression():
            return Softmax(classes)
        case HuberSvm():
            return SmoothHinge(model.width)
        case LeastSquares():
            return Squared()
        case HuberRegression():
            return Huber(model.threshold)
        case Location():
            return Squared() if model.threshold is None else Huber(model.threshold)
    raise ValueError(f"{model.kind} of {classes} classes has no convex loss with proven constants")
