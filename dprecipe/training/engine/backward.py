"""The forward and the backward pass of a batch, by a plan. Layers keep the terms of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.training.engine.full_precision import before_norms
from dprecipe.training.engine.layers import layer_terms
from dprecipe.training.engine.standardised import BatchWeights
from dprecipe.training.engine.strategies import GradientStore
from dprecipe.training.engine.taps import Call, Places, Taps, Unplanned, trained_of
from dprecipe.training.engine.terms import Products, Rows, Term

Loss = Callable[[Tensor, Tensor], Tensor]
CallTerms = list[list[tuple[str, Term]]]
"""For each call of a layer, its terms, each with the full name of its parameter."""


@final
@dataclass(slots=True)
class GradientPlan:
    """A plan of how a model's layers are called, for records of one shape."""

    places: tuple[Places, ...]
    strategies: dict[str, str] = field(default_factory=dict)
    """The fastest strategy of each parameter that has several candidates, timed on synthetic records."""
    stores: dict[str, GradientStore] = field(default_factory=dict)
    """For each parameter, the memory for stored rows; all plans of a model share it."""
    storable: int = 1 << 25
    """The largest number of row values that may be stored at a time."""
    max_records: int = 1 << 30
    """The number of records to take at a time, so that the rows to store fit into memory."""
    tiled: bool = True
    """Large products on sequences are added up by tiles: the rows of all records do not fit into memory."""
    channels_last: bool = False
    """Images go through the model with their channels last in memory."""
    weights: BatchWeights | None = None
    """Shared by the parts of a batch; `None`: each part is by itself."""


def find_terms(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> CallTerms:
    """Returns terms by the names of the parameters that the losses reach, call by call."""
    names = {id(parameter): name for name, parameter in trained_of(model).items()}
    calls = run_pass(model, loss, features, labels, plan)
    return [
        [(names[id(call.parameters[name])], term) for name, term in (call.terms or layer_terms(call))] for call in calls
    ]


def _compact(call: Call) -> None:
    """Keeps the rows of a call instead of what they are made of, where the rows are fewer numbers."""
    if any(tensor._version != version for tensor, version in zip(call.tensors(), call.versions, strict=True)):
        raise Unplanned("the input of a layer is overwritten")
    terms: list[tuple[str, Term]] = []
    for name, term in layer_terms(call):
        few = isinstance(term, Products) and term.size <= term.positions * (term.inputs + term.outputs)
        if isinstance(term, Products) and term.paired and few:
            term = Rows(term.ordered(term.rows(slice(0, len(term.right)))))
        terms.append((name, term))
    if all(isinstance(term, Rows) for _, term in terms):
        call.args, call.kwargs, call.versions, call.gradients = (), {}, [], []
        call.terms = terms


def run_pass(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> list[Call]:
    if plan.channels_last:
        features = channels_last(features)
    taps = Taps(model, len(labels), plan.places, _compact, plan.weights)
    with torch.enable_grad(), before_norms(features.device), taps:
        losses = loss(model(features), labels)
        if losses.shape != labels.shape[:1]:
            raise Unplanned("the loss is not one for each record")
        taps.backward(losses)
        return taps.calls


def channels_last(images: Tensor) -> Tensor:
    """Returns the same (…, C, H, W) with channels last in memory; layers pass on the order that they find."""
    # Cloned, because images of one channel count as contiguous in both orders.
    return images.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3)
