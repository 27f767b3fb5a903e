"""Initial weights that were learned elsewhere, from public data alone, and what of a network is trained on top of them.

The file is untrusted: plain tensors, held against the network's names, shapes and types before any is used. That they
hold nothing of the private records no program can see: it is an assumption of the certificate, which names the file's
digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.models.lora import adapt
from dprecipe.models.schema import Model, Pretrained, Transformer

Head = Literal["taken over", "new"]


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """Where a network's first weights came from."""

    name: str
    """Of the file, without its folders."""
    digest: str
    """`sha256:…` of its bytes."""
    head: Head
    """What became of the last layer: `new` where the file's is of another number of classes."""


def start(model: Model, module: nn.Module, folder: Path, seed: int) -> InitialWeights | None:
    """Take over the weights that `model.init` names, relative to `folder`, and leave on what `model` says is trained.

    `seed`: of adapters.

    Raises:
        DataFault: there is no such file, or its tensors are not those of the module.
    """
    if not isinstance(model, Pretrained) or model.init is None:
        return None
    head = head_of(module)
    found = take_over(module, folder / model.init, head)
    if isinstance(model, Transformer) and model.lora is not None and model.train == "all":
        adapt(module, model.lora, head, seed)
    elif model.train == "head":
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in head)
    return found


def head_of(module: nn.Module) -> frozenset[str]:
    """The names of the parameters of the last layer that has any."""
    owner = [name.rpartition(".")[0] for name, _ in module.named_parameters()][-1]
    return frozenset(name for name, _ in module.named_parameters() if name.rpartition(".")[0] == owner)


def take_over(module: nn.Module, file: Path, head: frozenset[str]) -> InitialWeights:
    """All tensors of a file; the `head` stays as it is where the file's has another shape.

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
    if differing := tensors.keys() ^ expected.keys():
        raise DataFault(
            f"{file}: its tensors are not those of the network: {len(differing)} names differ, such as "
            f"{min(differing)!r}",
            "name weights of the same model block",
        )
    new = any(tensors[name].shape != expected[name].shape for name in head)
    for name, tensor in tensors.items():
        if new and name in head:
            continue
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
    module.load_state_dict({name: expected[name] if new and name in head else t for name, t in tensors.items()})
    return InitialWeights(file.name, f"sha256:{hashlib.sha256(content).hexdigest()}", "new" if new else "taken over")
