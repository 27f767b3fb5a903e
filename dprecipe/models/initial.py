"""Initial weights that were learned elsewhere, from public data alone, and what of a network is trained on top of them.

The file is untrusted: plain tensors, held against the network's names, shapes and types before any is used. That they
hold nothing of the private records no program can see: it is an assumption of the certificate, which names the file's
digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.models.lora import LowRankLayer, add_adapters
from dprecipe.models.origin import InitialWeights
from dprecipe.models.schema import Hub, Model, Pretrained, Transformer, Transformers
from dprecipe.models.zoo.hub import WEIGHTS, SequenceClassifier, folder_of


def start_from(model: Model, module: nn.Module, folder: Path, seed: int) -> InitialWeights | None:
    """Take over the weights that `model.init` names, relative to `folder`, and leave on what `model` says is trained.

    `seed`: of adapters.

    Raises:
        DataFault: there is no such file, or its tensors are not those of the module.
    """
    if not isinstance(model, Pretrained) or not model.starts_elsewhere:
        return None
    head = head_of(module)
    if isinstance(model, Transformers):
        place = folder_of(model, folder)
        over = take_over(module, place / WEIGHTS, head)
        name = place.name if model.hub is None else f"{model.hub.name}@{model.hub.revision}"
        over = replace(over, name=f"{name}/{WEIGHTS}")
    else:
        over = take_over(module, folder / str(model.init), head)
    if isinstance(model, Transformer | Hub) and model.lora is not None and model.train == "all":
        add_adapters(module, model.lora, head, seed)
        if not any(isinstance(layer, LowRankLayer) for layer in module.modules()):
            raise DataFault("no layer below the last is linear: lora adapts none", "remove model.lora")
    elif model.train == "head":
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in head)
    return over


def head_of(module: nn.Module) -> frozenset[str]:
    """The names of the parameters of the last layer that has any, or of those behind an encoder."""
    if isinstance(module, SequenceClassifier):
        return module.head
    owner = [name.rpartition(".")[0] for name, _ in module.named_parameters()][-1]
    return frozenset(name for name, _ in module.named_parameters() if name.rpartition(".")[0] == owner)


def take_over(module: nn.Module, file: Path, head: frozenset[str]) -> InitialWeights:
    """All tensors of a file; the `head` stays as it is where the file has none, or one of another shape.

    Of a checkpoint of `transformers`, what belongs to another task is left out.

    Raises:
        DataFault: there is no such file, or its tensors are not those of the module.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = file.read_bytes()
        tensors: dict[str, Tensor] = load(content)
    except OSError as error:
        raise DataFault(f"{file}: {error.strerror or 'no such file'}", "set model.init to a safetensors file") from None
    except (SafetensorError, ValueError, KeyError, OverflowError) as error:
        raise DataFault(
            f"{file}: is no safetensors file, or is damaged",
            "set model.init to a file of tensors, such as model.safetensors of a release",
        ) from error
    expected = module.state_dict()
    if isinstance(module, SequenceClassifier):
        tensors = _renamed(tensors, module)
    new = any(name not in tensors or tensors[name].shape != expected[name].shape for name in head)
    if differing := (tensors.keys() ^ expected.keys()) - (head if new else frozenset()):
        raise DataFault(
            f"{file}: its tensors are not those of the network: {len(differing)} names differ, such as "
            f"{min(differing)!r}",
            "name weights of the same model block",
        )
    taken = {name: tensor for name, tensor in tensors.items() if not (new and name in head)}
    for name, tensor in taken.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise DataFault(
                f"{file}: {name!r} is {list(tensor.shape)} {tensor.dtype}, the network's is "
                f"{list(expected[name].shape)} {expected[name].dtype}",
                "name weights of the same model block; only the last layer may be of another number of classes",
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataFault(
                f"{file}: {name!r} holds numbers that are not finite", "name weights of a finished training"
            )
    module.load_state_dict({**expected, **taken})
    return InitialWeights(file.name, f"sha256:{hashlib.sha256(content).hexdigest()}", "new" if new else "taken over")


def _renamed(tensors: Mapping[str, Tensor], module: SequenceClassifier) -> dict[str, Tensor]:
    """Those of a checkpoint of any task that the module has, by the module's names; half precision is widened."""
    expected, result = module.state_dict(), {}
    for name, tensor in tensors.items():
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        for own in (modern, f"network.{modern}", f"{module.prefix}{modern}"):
            if own in expected:
                result[own] = tensor.to(expected[own].dtype) if tensor.is_floating_point() else tensor
    return result
