"""Gradients of single records: all at once by `vmap`, or one after the other where it can't take the module.

One of the two is chosen once, on synthetic records of the same shape: no record decides it.

Legend: N records, P parameters.
"""

from __future__ import annotations

import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dprecipe.libraries import ignoring_warnings
from dprecipe.models.modules.adapted import by_record
from dprecipe.training.engine.sizes import one_size
from dprecipe.training.engine.synthetic import preserve_generators, synthetic_records
from dprecipe.training.engine.taps import copy_buffers, layers_of, trained_of
from dprecipe.training.engine.terms import plain_attention

Loss = Callable[[Tensor, Tensor], Tensor]
_REASONS: weakref.WeakKeyDictionary[nn.Module, dict[Any, str]] = weakref.WeakKeyDictionary()
WIDTH = 160


def per_record_gradients(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Tensor:
    """Returns (N, P): the gradient of each record's own loss.

    A layer that draws random numbers draws them for each record by itself.
    """
    if not len(labels):
        return features.new_zeros(0, sum(parameter.numel() for parameter in trained_of(model).values()))
    return (_looped if explain_loop(model, loss, features, labels) else _batched)(model, loss, features, labels)


def explain_loop(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> str:
    """Says why records like these (only their shapes and types are looked at) go through the model one after the
    other; empty where they need not."""
    training = tuple(layer.training for layer in layers_of(model))
    key = (loss, training, features.shape[1:], features.dtype, features.device, labels.shape[1:], labels.dtype)
    reasons = _REASONS.setdefault(model, {})
    if one_size(features.device) and any(isinstance(layer, nn.RNNBase) for layer in layers_of(model)):
        return "cuDNN's recurrent layers have no rule for many records at once"
    if key not in reasons:
        try:
            with preserve_generators(features.device), copy_buffers(layers_of(model)):
                _batched(model, loss, *synthetic_records(features, labels, 2))
            reasons[key] = ""
        except Exception as error:  # a model may raise anything; the loop then shows whether it is the model's fault
            reasons[key] = shorten_error(error)
    return reasons[key]


def shorten_error(error: BaseException, width: int = WIDTH) -> str:
    """Returns the message of an error, in one line that ends with a word."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", width, placeholder=" …")


def _batched(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Tensor:
    parameters = {name: parameter.detach() for name, parameter in trained_of(model).items()}
    buffers = {name: buffer.detach() for name, buffer in model.named_buffers()}

    def loss_of_one(parameters: dict[str, Tensor], feature: Tensor, label: Tensor) -> Tensor:
        output = functional_call(model, (parameters, buffers), (feature.unsqueeze(0),))
        return loss(output, label.unsqueeze(0)).squeeze(0)

    with ignoring_warnings(), plain_attention(features.device):  # for one, that an operation has no batching rule
        grads = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="different")(parameters, features, labels)
    return torch.cat([grads[name].reshape(len(labels), -1) for name in parameters], dim=1)


def _looped(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Tensor:
    parameters = list(trained_of(model).values())
    rows_NP = parameters[0].new_zeros(len(labels), sum(parameter.numel() for parameter in parameters))
    with torch.enable_grad():
        for i in by_record(len(labels), features.device):
            row_P = rows_NP[i]
            result = loss(model(features[i : i + 1]), labels[i : i + 1]).squeeze(0)
            if not result.requires_grad:
                continue
            grads = torch.autograd.grad(result, parameters, allow_unused=True)
            start = 0
            for parameter, gradient in zip(parameters, grads, strict=True):
                if gradient is not None:
                    row_P[start : start + parameter.numel()] = gradient.flatten()
                start += parameter.numel()
    return rows_NP
