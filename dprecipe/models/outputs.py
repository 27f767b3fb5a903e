"""Outputs of a module, also with other weights than its own, and their conversion to predictions.

The conversion takes the declared label and constants of the recipe alone.

Models of numbers learn in [-1, 1], where their labels are, and models of counts the logarithm of a rate. The map to the
units of the label is no part of the module: it holds no weights, and a module from Python has none of it.

Axes: N records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, Target, TokenTarget


def call_with(module: nn.Module, state: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Returns the module's outputs with the tensors of `state`, which its code may write to.

    A tensor that has several names in the module (tied weights) is taken from the first of them that `state` has.
    """
    first: dict[int, str] = {}
    twins: set[str] = set()
    named = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    for name, tensor in named:
        if name in state and first.setdefault(id(tensor), name) != name:
            twins.add(name)
    weights = {name: tensor for name, tensor in state.items() if name not in twins}
    outputs: Tensor = functional_call(module, weights, (features,))
    return outputs


def interpret_outputs(outputs: Tensor, target: Target) -> Tensor:
    """Outputs of a module (N, outputs): of classes, and of names that may apply, the logits, as they are; of a number
    or a count what is predicted, (N, 1) float64, in the units of the label; of sequences the log-likelihoods of their
    tokens, (N, L - 1), as they are.
    """
    match target:
        case ClassTarget() | SeveralTarget() | TokenTarget():
            return outputs
        case NumberTarget(lowest=lowest, highest=highest):
            return in_units(outputs, (lowest, highest))
        case CountTarget(max=largest):
            return predict_rates(outputs, largest)


def label_units(labels: Tensor, target: NumberTarget | CountTarget) -> Tensor:
    """Labels (N,) as they were declared, float64."""
    return in_units(labels, target.range) if isinstance(target, NumberTarget) else labels.double()


def in_units(mapped: Tensor, target: tuple[float, float]) -> Tensor:
    """Maps [-1, 1] to the range `target`, constants of the recipe; what is outside stays outside.

    In double precision: a range may be narrow and far from zero.
    """
    lowest, highest = target
    half = highest / 2 - lowest / 2  # halves: the range itself may overflow
    return mapped.double() * half + (lowest / 2 + highest / 2)


def predict_rates(outputs: Tensor, largest: int) -> Tensor:
    """Returns expected counts, float64, at most the declared largest one; outputs are their logarithms."""
    logarithms = outputs.double()
    return torch.where(logarithms < math.log(largest), logarithms.exp(), float(largest)).clamp(max=float(largest))


def label_type(target: Target) -> torch.dtype:
    """Returns the type of labels of this kind."""
    return torch.int64 if target.is_choice or isinstance(target, TokenTarget) else torch.float32


def find_right(outputs: Tensor, labels: Tensor, target: Target) -> Tensor:
    """Marks the records, (N,), that are predicted as they are labelled.

    `outputs` (N, outputs) and `labels` (N,) are of a choice (`is_choice`). Where any of several names may apply, every
    answer of a record must be right.
    """
    if isinstance(target, SeveralTarget):
        return ((outputs > 0) == unpack_labels(labels, target.outputs)).all(dim=1)
    return outputs.argmax(dim=1) == labels


def unpack_labels(labels: Tensor, names: int) -> Tensor:
    """Unpacks labels (N,), where any of K names may apply, to 0 and 1, (N, K) int64; as
    `data.several.unpack_answers`.
    """
    return (labels.unsqueeze(-1) >> torch.arange(names, device=labels.device)) & 1
