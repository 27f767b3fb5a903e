"""Low-rank adapters: small trained layers beside fixed ones, merged into them before anything is released.

A release has the names and shapes of the network without adapters, so that it loads without this module.

Source: E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.models.schema import Lora


@final
class LowRankLayer(nn.Module):
    """A frozen linear layer W plus factor · up(down(x)); `up` starts at zero."""

    def __init__(self, base: nn.Linear, spec: Lora) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, spec.rank, bias=False)
        self.up = nn.Linear(spec.rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)
        self.factor = spec.alpha / spec.rank

    def forward(self, x: Tensor) -> Tensor:
        adapted: Tensor = self.base(x) + self.factor * self.up(self.down(x))
        return adapted


def add_adapters(module: nn.Module, spec: Lora, head: Collection[str], seed: int) -> None:
    """Put adapters beside all linear layers; of the rest only the parameters named in `head` stay trained.

    Guarantees: the outputs are those of before; the global generator of random numbers is left as it was found.
    """
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in head)
    layers = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in layers.items():
            if f"{name}.weight" not in head:
                parent, _, child = name.rpartition(".")
                setattr(module.get_submodule(parent), child, LowRankLayer(layer, spec))


def merge_adapters(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state of the adapted module as a state of the module without adapters."""
    result = dict(state)
    for name, layer in module.named_modules():
        if isinstance(layer, LowRankLayer):
            down, up = result.pop(f"{name}.down.weight"), result.pop(f"{name}.up.weight")
            weight = result.pop(f"{name}.base.weight")
            added = layer.factor * (up.double() @ down.double())
            result[f"{name}.weight"] = (weight.double() + added).to(weight)
            if layer.base.bias is not None:
                result[f"{name}.bias"] = result.pop(f"{name}.base.bias")
    return result
