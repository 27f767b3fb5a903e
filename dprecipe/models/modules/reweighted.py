"""A module called with weights that take the place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from torch import Tensor, nn
from torch.func import functional_call


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
