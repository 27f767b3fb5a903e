"""Origin of each tensor in a release: noisy steps, or something that no noise covers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.models.lora import LowRankLayer, adapter_state, merge_adapters
from dprecipe.release.facts import Dtype, MadeBy, ReleasedTensor
from dprecipe.release.origins import list_tensors, list_unchanged
from dprecipe.release.tensors import releases_adapters

DTYPES: dict[torch.dtype, Dtype] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
"""The types of numbers that can be released."""


def released_state(plan: Plan, module: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors to release from a state of the module: all of it, adapters merged into the layers that they
    adapt, or the adapters alone where the recipe says so."""
    return adapter_state(module, state) if releases_adapters(plan) else merge_adapters(module, state)


def released_names(plan: Plan, module: nn.Module) -> frozenset[str]:
    """Returns the names in a release of what is trained."""
    return frozenset(adapter_state(module, module.state_dict())) if releases_adapters(plan) else trained_names(module)


def trained_names(module: nn.Module, fitted: bool = False) -> frozenset[str]:
    """Returns the names in a release of what is trained, adapters merged into the layers that they adapt; of a module
    that was `fitted` as a whole, all of them.
    """
    if fitted:
        return frozenset(module.state_dict())
    names = set(trained_parameters(module))
    for name, layer in module.named_modules():
        if isinstance(layer, LowRankLayer):
            prefix = f"{name}." if name else ""
            adapters = {f"{prefix}down.weight", f"{prefix}up.weight"}
            if adapters & names:
                names = (names - adapters) | {f"{prefix}weight"}
    return frozenset(names)


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trained parameters by their names in `state_dict`.

    A tensor counts only if it is the trained parameter itself: a module may put another under its name.
    """
    state = module.state_dict()
    return {
        name: parameter
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
        and name in state
        and state[name].shape == parameter.shape
        and state[name].data_ptr() == parameter.data_ptr()
    }


def tensors_of(
    weights: Mapping[str, Tensor], trained: Collection[str], custom: bool, from_file: bool
) -> tuple[ReleasedTensor, ...]:
    """Returns all tensors of a release. `custom`: the module came from Python; `from_file`: it began from declared
    weights.

    Raises:
        UsageFault: the numbers of one are of a type that no release holds.
    """
    for name, tensor in sorted(weights.items()):
        if tensor.dtype not in DTYPES:
            raise UsageFault(
                f"the tensor {ascii(name)[:80]} holds numbers of the type {tensor.dtype}, which no release holds",
                "give it another type (float32, say), or register the buffer with persistent=False",
            )
    other: MadeBy = "python" if custom else "file" if from_file else "seed"
    return tuple(
        ReleasedTensor(name, tuple(tensor.shape), "noisy_steps" if name in trained else other, DTYPES[tensor.dtype])
        for name, tensor in sorted(weights.items())
    )


def refuse_python_tensors(plan: Plan, module: nn.Module) -> None:
    """Checks, where the recipe refuses tensors from Python that no noisy step makes, that there are none. Ask before
    training.

    Raises:
        UsageFault: there are some; the message names them.
    """
    if plan.runtime.python_tensors != "refuse":
        return
    result = list_unchanged(tensors_of(module.state_dict(), trained_names(module), custom=True, from_file=False))
    if result:
        raise UsageFault(
            f"the module from Python would release tensors that no noisy step makes: {list_tensors(result)}; the "
            "recipe has runtime.python_tensors: refuse",
            "train them, register buffers with persistent=False so that they are not released, or set "
            "runtime.python_tensors to declare, and the certificate names them",
        )
