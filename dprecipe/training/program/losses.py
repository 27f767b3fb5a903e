"""Losses: one value a record, so that nothing of the loss can escape clipping. Which one follows from the label.

A loss is a value: two of the same constants are equal, so that plans and programs made for one serve the other.

Axes: N records, C classes, K names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from dprecipe.data.targets import (
    ClassTarget,
    CountTarget,
    NumberTarget,
    SeveralTarget,
    Target,
    TokenTarget,
    name_classes,
)
from dprecipe.language.training import HuberLoss, TokenLoss, Training
from dprecipe.models.outputs import unpack_labels
from dprecipe.training.engine.unit_rows import is_padding

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs (N, outputs), labels (N,)) -> losses (N,), one for each record."""


def choose_loss(target: Target, training: Training, *, omits: bool = False) -> Loss:
    """Returns the loss of a label: cross entropy of classes, half the squared error (or Huber's loss) of a number,
    Poisson's of a count, binary cross entropy of names that may apply, negative log-likelihood of the next token.
    `training` chooses where there is a choice, and has passed `planning.labels`. `omits`: labels may be missing, and
    count as 0 (`data.omitted`).
    """
    if omits:
        return LabelledLoss(choose_loss(target, training))
    match target:
        case ClassTarget():
            weights, smoothing = weigh_classes(target, training.class_weights), training.label_smoothing or 0.0
            return WeightedCrossEntropy(weights, smoothing) if weights or smoothing else cross_entropy
        case NumberTarget():
            return HuberError(training.loss.delta) if isinstance(training.loss, HuberLoss) else SquaredError()
        case CountTarget(max=largest):
            return PoissonLoss(largest)
        case TokenTarget():
            return NextTokenLoss(training.loss.reduce if isinstance(training.loss, TokenLoss) else "mean")
        case SeveralTarget(names):
            return BinaryCrossEntropy(len(names), weigh_classes(target, training.class_weights))


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Returns (N,): the negative log-likelihood of each record's label."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def weigh_classes(
    target: ClassTarget | SeveralTarget, declared: Mapping[str, float] | tuple[float, ...] | None
) -> tuple[float, ...] | None:
    """Returns the weight of each class or name, in order; None where none are declared. One that is left out has weight
    1."""
    if declared is None or isinstance(declared, tuple):
        return declared
    return tuple(declared.get(name, 1.0) for name in name_classes(target))


@final
@dataclass(frozen=True, slots=True)
class LabelledLoss:
    """`loss` of the records that have a label, and 0, with a gradient of zero, of those whose label is missing
    (`data.omitted` says why this changes no claim)."""

    loss: Loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, outputs), (N,) -> (N,)."""
        omitted = is_padding(labels)
        return torch.where(omitted, 0.0, self.loss(outputs, torch.where(omitted, 0, labels)))


@final
@dataclass(frozen=True, slots=True)
class WeightedCrossEntropy:
    """Cross entropy times the declared weight of the record's class, (N,) for one loss a record. With `smoothing` s, a
    label is 1 - s on its class, and s spread over all classes alike.

    Formal guarantee: weights change no sensitivity. Let g(x) be the gradient of a record's loss and w its weight, a
    function of the record and of constants alone. What a mechanism adds for the record is clip(w g(x)), and clipping
    bounds clip(h) by its norm C for every vector h, so for h = w g(x) too. Adding or removing the record therefore
    moves the sum by at most C, whatever w: weights are applied before clipping, and not after it. The mean over the
    records of a unit is clipped likewise. Weights that were measured on private records would be no constants: each
    record's term would depend on all others. The recipe declares them, as numbers.

    Below the clip norm a weight multiplies a record's pull on the model; a gradient that is clipped anyway is turned
    no further by a larger weight.
    """

    weights: tuple[float, ...] | None
    smoothing: float = 0.0

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, C), (N,) -> (N,)."""
        losses = functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=self.smoothing)
        return losses if self.weights is None else losses * outputs.new_tensor(self.weights)[labels]


@final
@dataclass(frozen=True, slots=True)
class BinaryCrossEntropy:
    """The mean over K names of the negative log-likelihood of a yes or a no. `weights` multiply those of a yes.

    One loss a record, whatever its answers: its gradient is clipped as a whole, so that neither the number of names
    nor their weights change a sensitivity (`WeightedCrossEntropy` says why).
    """

    names: int
    weights: tuple[float, ...] | None = None

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, K), (N,) -> (N,)."""
        answers = unpack_labels(labels, self.names).to(outputs)
        losses = functional.softplus(outputs) - answers * outputs
        if self.weights is not None:
            losses = losses * (1 + answers * (outputs.new_tensor(self.weights) - 1))
        return losses.mean(dim=1)


@final
@dataclass(frozen=True, slots=True)
class SquaredError:
    """(z - y)²/2, of labels y in [-1, 1]."""

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, 1), (N,) -> (N,)."""
        return (outputs[:, 0] - labels).square() / 2


@final
@dataclass(frozen=True, slots=True)
class HuberError:
    """(z - y)²/2 up to an error of `delta`, delta |z - y| - delta²/2 beyond: no label pulls harder than `delta`.

    Source: P. J. Huber, "Robust Estimation of a Location Parameter", 1964.
    """

    delta: float

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, 1), (N,) -> (N,)."""
        return functional.huber_loss(outputs[:, 0], labels.to(outputs), reduction="none", delta=self.delta)


@final
@dataclass(frozen=True, slots=True)
class PoissonLoss:
    """Half the deviance of a count y from the rate exp(z): exp(z) - y z - y + y log y, which is 0 where the rate is y.

    Beyond the declared largest count the rate goes on as its tangent, so that the loss stays convex, no output
    overflows, and the slope in z is never beyond `max` in size.
    Source: P. McCullagh, J. A. Nelder, "Generalized Linear Models", 1989, section 6.
    """

    max: int

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, 1), (N,) -> (N,)."""
        z, y, limit = outputs[:, 0], labels.to(outputs), math.log(self.max)
        rate = z.clamp(max=limit).exp() + self.max * (z - limit).clamp(min=0.0)
        result: Tensor = rate - y * z - y + torch.special.xlogy(y, y)
        return result


@final
@dataclass(frozen=True, slots=True)
class NextTokenLoss:
    """The negative log-likelihood of a record's learned tokens: their mean, or their sum.

    Both are one loss a record, clipped as a whole, so that neither the number of tokens nor `reduce` changes a
    sensitivity.
    """

    reduce: Literal["mean", "sum"] = "mean"

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, L - 1), (N,) -> (N,): `outputs` are log-likelihoods, 0 at ignored places, and `labels` numbers of learned
        tokens; a record with none counts as one with a token."""
        losses = -outputs.sum(1)
        return losses if self.reduce == "sum" else losses / labels.clamp(min=1)


def generalised_cross_entropy(outputs: Tensor, labels: Tensor, q: float) -> Tensor:
    """Returns (N,): (1 - p^q) / q, with p the probability of the label; cross-entropy for q = 0.

    Wrong labels pull less: the gradient is cross-entropy's times p^q. Source: Z. Zhang, M. Sabuncu, "Generalized Cross
    Entropy Loss for Training Deep Neural Networks with Noisy Labels", NeurIPS 2018, equation 6.
    """
    losses = cross_entropy(outputs, labels)
    return losses if q == 0 else -torch.expm1(-q * losses) / q


ODD = 6364136223846793005
"""A factor that changes all bits of a whole number, and keeps different ones different. Source: D. Knuth, MMIX."""


def synthetic_labels(numbers: Tensor, target: Target) -> Tensor:
    """Makes synthetic labels (N,), one for each whole number: neighbouring numbers have different ones."""
    match target:
        case ClassTarget(classes=classes):
            return numbers % classes
        case NumberTarget():
            return (numbers % 7).float() / 3 - 1
        case CountTarget(max=largest):
            return (numbers % (min(largest, 20) + 1)).float()
        case TokenTarget():
            return 1 + numbers % 7
        case SeveralTarget(names):
            return numbers * ODD % (1 << len(names))
