"""A second implementation of the steps of a descent, from their definition, for audits alone. It calls nothing of the
engine.

w <- nearest point of the set to w - η [sum of the batch's gradients / batch size + λ w] + noise, gradients by automatic
differentiation of the losses as the literature writes them, in double precision.

Axes: B records of a batch, D features with the bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schema import BallConstraint, BoxConstraint, IntervalConstraint, list_coordinates
from dprecipe.models.schema import (
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    SoftmaxRegression,
)

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class ReferenceSteps:
    """The steps of a plan, whatever its size and batches."""

    plan: Plan

    def step(
        self, w: Floats, features: NDArray[Any], labels: NDArray[Any], divisor: int, rate: float, noise: Floats
    ) -> Floats:
        """Returns the iterate after one step on these records; `noise` as it is added to the iterate."""
        own = self.plan.as_plan_of(PnsgdPlan)
        weights = torch.from_numpy(w.copy()).requires_grad_()
        x_BD = torch.from_numpy(self._rows(features, len(labels)))
        z = x_BD @ (weights.mT if weights.ndim > 1 else weights)
        loss = self._losses(z, labels).sum() / divisor + own.l2 / 2 * (weights**2).sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        return self.project(w - rate * gradient.numpy() + noise.reshape(w.shape))

    def project(self, w: Floats) -> Floats:
        """Returns the nearest point of the plan's set."""
        constraint, flat = self.plan.as_plan_of(PnsgdPlan).constraint, w.reshape(-1)
        match constraint:
            case BallConstraint():
                centre = np.array(list_coordinates(constraint.centre, flat.size))
                away = flat - centre
                nearest = centre + away * min(1.0, constraint.radius / max(float(np.linalg.norm(away)), 1e-300))
            case BoxConstraint():
                nearest = np.minimum(np.maximum(flat, -constraint.bound), constraint.bound)
            case IntervalConstraint():
                low, high = (np.array(list_coordinates(end, flat.size)) for end in (constraint.low, constraint.high))
                nearest = np.minimum(np.maximum(flat, low), high)
            case _:
                nearest = _project_simplex(flat, constraint.total)
        return np.asarray(nearest.reshape(w.shape))

    def _rows(self, features: NDArray[Any], count: int) -> Floats:
        """Returns the records as the loss sees them: no longer than the plan says, the bias last."""
        own = self.plan.as_plan_of(PnsgdPlan)
        if isinstance(self.plan.model, Location):
            return np.ones((count, 1))
        x_BD = features.reshape(count, -1).astype(np.float64)
        lengths = np.linalg.norm(x_BD, axis=1, keepdims=True)
        x_BD = x_BD * np.minimum(1.0, (own.feature_norm or 0.0) / np.maximum(lengths, 1e-300))
        return np.hstack([x_BD, np.ones((count, 1))]) if own.bias else x_BD

    def _losses(self, z: Tensor, labels: NDArray[Any]) -> Tensor:
        """Returns the loss of each record, of its predictors z: (B,), or (B, classes)."""
        signs = torch.from_numpy(np.where(labels > 0, 1.0, -1.0))
        numbers = torch.from_numpy(np.clip(labels.astype(np.float64), -1, 1))
        match self.plan.model:
            case LogisticRegression():
                return functional.softplus(-signs * z)
            case SoftmaxRegression():
                return functional.cross_entropy(z, torch.from_numpy(labels.astype(np.int64)), reduction="none")
            case HuberSvm(width=width):
                margin = signs * z
                curved = (1 + width - margin).clamp(0, 2 * width) ** 2 / (4 * width)
                return torch.where(margin < 1 - width, 1 - margin, curved)
            case LeastSquares():
                return (z - numbers) ** 2 / 2
            case HuberRegression(threshold=threshold):
                return functional.huber_loss(z, numbers, reduction="none", delta=threshold)
            case Location(threshold=threshold):
                return functional.huber_loss(z, numbers, reduction="none", delta=threshold or math.inf)
        raise ValueError(f"{self.plan.model.kind} has no proved constants")


def _project_simplex(w: Floats, total: float) -> Floats:
    """Returns max(w - θ, 0), with θ by bisection such that the coordinates add up to `total`."""
    low, high = float(w.min()) - total, float(w.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(w - middle, 0).sum() > total else (low, middle)
    return np.maximum(w - (low + high) / 2, 0.0)
