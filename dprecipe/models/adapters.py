"""The adapters of a trained network alone, under PEFT's names, and back beside the layers of their base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.models.library_files import ADAPTERS, DOWN, PREFIX, UP
from dprecipe.models.lora import LowRankLayer


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
