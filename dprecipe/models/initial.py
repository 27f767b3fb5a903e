"""Initial weights that were learned elsewhere from public data, and which part of a network is trained from them.

The file is untrusted: plain tensors, whose names, shapes and types are checked against the network before any is used.
That they contain nothing of the private records can't be checked by a program: it is an assumption of the certificate,
which names the file's digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from dprecipe.faults import DataFault
from dprecipe.models.layout import find_unknown_layers, select_tensors
from dprecipe.models.lora import add_adapters
from dprecipe.models.prior_checks import check_prior_file
from dprecipe.models.public_record import InitialWeights, parse_record
from dprecipe.models.schema import CausalLm, Hub, Model, Pretrained, Primed, TrainedLayers, Transformer, Transformers
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.models.zoo.checkpoint import load_decoder
from dprecipe.models.zoo.hub import WEIGHTS, SequenceClassifier, folder_of
from dprecipe.priors.record import read_prior


def start_from(model: Model, module: nn.Module, folder: Path, seed: int) -> InitialWeights | None:
    """Loads the weights that `model.init` names, relative to `folder`, and freezes what `model` does not train.

    `seed`: of adapters.

    Raises:
        DataFault: there is no such file, its tensors are not those of the module, it is not of the prior that the
            model declares, or `model` names layers that the module does not have.
    """
    if not isinstance(model, Pretrained):
        return None
    initial = _start(model, module, folder, seed) if model.starts_elsewhere else None
    if model.train == "head" or isinstance(model.train, TrainedLayers):
        trained = _find_trained(model.train, module)
        if initial is not None and initial.head == "new" and not head_of(module) <= trained:
            raise DataFault(
                f"{initial.name} has no last layer of this number of classes, so it starts from the seed, and "
                "model.train leaves it untrained",
                "train the last layer too, or name weights of as many classes",
            )
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in trained)
    return initial


def _find_trained(spec: TrainedLayers | Literal["head"], module: nn.Module) -> frozenset[str]:
    """Returns the names of the parameters that are trained.

    Raises:
        DataFault: a name is that of no layer.
    """
    if not isinstance(spec, TrainedLayers):
        return head_of(module)
    names = [name for name, _ in module.named_parameters()]
    for finding in find_unknown_layers(spec, names):
        raise DataFault(f"{finding.path}: {finding.message}", finding.remedy)
    return select_tensors(spec, names)


def _start(model: Pretrained, module: nn.Module, folder: Path, seed: int) -> InitialWeights:
    """Takes over weights that were learned elsewhere; adapters are put beside them where `model` has any."""
    head = head_of(module)
    if isinstance(model, Transformers | CausalLm):
        place = folder_of(model, folder)
        if isinstance(module, CausalLanguageModel):
            initial = load_decoder(module, place)
        else:
            initial = load_initial(module, place / WEIGHTS, head)
        name = place.name if model.hub is None else f"{model.hub.name}@{model.hub.revision}"
        initial = replace(initial, name=f"{name}/{initial.name}")
    else:
        initial = load_initial(module, folder / str(model.init), head)
        if isinstance(model, Primed) and model.prior is not None:
            file = read_prior(folder / str(model.init))
            initial = replace(initial, prior=check_prior_file(initial.name, model, model.prior, file))
    if isinstance(model, Transformer | Hub) and model.lora is not None and model.train == "all":
        # The head of a decoder is as large as its embedding, and was learned for the same tokens: it stays.
        add_adapters(module, model.lora, () if isinstance(model, CausalLm) else head, seed)
    return initial


def head_of(module: nn.Module) -> frozenset[str]:
    """Returns the names of the parameters of the last layer that has any, or of those behind an encoder or a
    decoder.
    """
    if isinstance(module, SequenceClassifier | CausalLanguageModel):
        return module.head
    owner = [name.rpartition(".")[0] for name, _ in module.named_parameters()][-1]
    return frozenset(name for name, _ in module.named_parameters() if name.rpartition(".")[0] == owner)


def load_initial(module: nn.Module, file: Path, head: frozenset[str]) -> InitialWeights:
    """Loads all tensors of a file. The `head` keeps its own weights if the file has none, or one of another shape.

    Of a checkpoint of `transformers`, tensors of other tasks are ignored.

    Raises:
        DataFault: there is no such file, or its tensors are not those of the module.
    """
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
    loaded = {name: tensor for name, tensor in tensors.items() if not (new and name in head)}
    for name, tensor in loaded.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise DataFault(
                f"{file}: {name!r} is {list(tensor.shape)} {tensor.dtype}, the network's is "
                f"{list(expected[name].shape)} {expected[name].dtype}",
                "name weights of the same model block; only the last layer may have another number of classes",
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DataFault(
                f"{file}: {name!r} holds numbers that are not finite", "name weights of a finished training"
            )
    module.load_state_dict({**expected, **loaded})
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return InitialWeights(file.name, digest, "new" if new else "taken over", learned=parse_record(content, file.name))


def _renamed(tensors: Mapping[str, Tensor], module: SequenceClassifier) -> dict[str, Tensor]:
    """Selects a checkpoint's tensors that the module has, by the module's names, and widens half precision.

    The checkpoint may be of any task.
    """
    expected, result = module.state_dict(), {}
    for name, tensor in tensors.items():
        modern = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        for candidate in (modern, f"network.{modern}", f"{module.prefix}{modern}"):
            if candidate in expected:
                result[candidate] = tensor.to(expected[candidate].dtype) if tensor.is_floating_point() else tensor
    return result
