"""Low-rank adapters: small trained layers beside fixed ones, merged into them before anything is released.

A release has the names and shapes of the network without adapters, so that it loads without this module. The adapters
alone have PEFT's names, and go back beside the layers of their base.

Source: E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.models.library_files import ADAPTERS, DOWN, PREFIX, UP
from dprecipe.models.schema import Lora
from dprecipe.models.zoo.layers import TransposedLinear

ADAPTED = (nn.Linear, TransposedLinear)
"""Kinds of layers that adapters can stand beside: exact types."""


@final
class LowRankLayer(nn.Module):
    """A frozen linear layer W plus up(factor · down(x)); `up` starts at zero."""

    def __init__(self, base: nn.Linear | TransposedLinear, spec: Lora) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, spec.rank, bias=False)
        self.up = nn.Linear(spec.rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        nn.init.zeros_(self.up.weight)
        self.factor = spec.alpha / spec.rank

    def forward(self, x: Tensor) -> Tensor:
        # The factor is applied to the few numbers between both layers: the outputs are many more.
        adapted: Tensor = self.base(x) + self.up(self.factor * self.down(x))
        return adapted


def add_adapters(module: nn.Module, spec: Lora, head: Collection[str], seed: int) -> None:
    """Puts adapters beside the linear layers that `spec` names, or beside all; of the rest only the parameters named in
    `head` stay trained.

    Guarantees: the outputs are those of before; the global generator of random numbers is left as it was found.

    Raises:
        DataFault: there is no such layer, or one that is named is not linear or is the last.
    """
    layers = _find_layers(module, spec, head)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in head)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in layers.items():
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, LowRankLayer(layer, spec))


def _find_layers(module: nn.Module, spec: Lora, head: Collection[str]) -> dict[str, nn.Linear | TransposedLinear]:
    linear = {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, ADAPTED) and type(layer) in ADAPTED and f"{name}.weight" not in head
    }
    if spec.target is None:
        if not linear:
            raise DataFault("no layer before the last is linear: lora has nothing to adapt", "remove model.lora")
        return linear
    others = [name for name, layer in module.named_modules() if layer._parameters and name not in linear]
    chosen: set[str] = set()
    for place, pattern in enumerate(spec.target):
        fitting = {name for name in linear if fnmatchcase(name, pattern)}
        wrong = next((name for name in others if fnmatchcase(name, pattern)), None)
        listed = ", ".join(sorted({f"*.{name.rpartition('.')[2]}" for name in linear}))
        if wrong is not None:
            reason = (
                "the last layer" if f"{wrong}.weight" in head else f"a {type(module.get_submodule(wrong)).__name__}"
            )
            raise DataFault(
                f"model.lora.target.{place}: {pattern!a} names {wrong}, which is {reason}: adapters stand beside "
                "linear layers before the last",
                f"name linear layers alone: {listed}",
            )
        if not fitting:
            raise DataFault(
                f"model.lora.target.{place}: {pattern!a} is the name of no layer of this network",
                f"write a pattern of linear layers, such as {listed}",
            )
        chosen |= fitting
    return {name: layer for name, layer in linear.items() if name in chosen}


def merge_adapters(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state of the adapted module as a state of the module without adapters."""
    result = dict(state)
    for name, layer in module.named_modules():
        if isinstance(layer, LowRankLayer):
            down, up = result.pop(f"{name}.down.weight"), result.pop(f"{name}.up.weight")
            weight = result.pop(f"{name}.base.weight")
            added = layer.factor * (up.double() @ down.double())
            if isinstance(layer.base, TransposedLinear):
                added = added.T
            result[f"{name}.weight"] = (weight.double() + added).to(weight)
            if layer.base.bias is not None:
                result[f"{name}.bias"] = result.pop(f"{name}.base.bias")
    return result


def adapter_state(module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the adapters in a state of the module, by the names that PEFT gives them: A (rank, inputs), B (outputs,
    rank).
    """
    result = {}
    for name, layer in module.named_modules():
        if isinstance(layer, LowRankLayer):
            result[f"{PREFIX}{name}{DOWN}"] = state[f"{name}.down.weight"]
            result[f"{PREFIX}{name}{UP}"] = state[f"{name}.up.weight"]
    return result


def load_adapters(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts adapters into the module's own, which stand beside the base.

    Raises:
        DataFault: they are not those of the module.
    """
    expected = adapter_state(module, module.state_dict())
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    if {name: (tensor.shape, tensor.dtype) for name, tensor in expected.items()} != shapes:
        raise DataFault(
            f"{ADAPTERS}: its tensors are not the adapters that model.json describes",
            "take both from one release",
        )
    for name, layer in module.named_modules():
        if isinstance(layer, LowRankLayer):
            for part, file in ((layer.down, DOWN), (layer.up, UP)):
                part.weight.data.copy_(tensors[f"{PREFIX}{name}{file}"])


def read_adapters(file: Path) -> dict[str, Tensor]:
    """Returns the tensors of an adapters file.

    Raises:
        DataFault: it can't be read.
    """
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (SafetensorError, OSError) as error:
        raise DataFault(f"{file}: is no safetensors file, or is damaged", "take it from the release folder") from error
    return tensors
