"""What made each tensor of a release: noisy steps, or something that no noise covers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor, nn

from dprecipe.faults import UsageFault
from dprecipe.models.lora import Adapted
from dprecipe.planning.model import Plan
from dprecipe.release.facts import MadeBy, ReleasedTensor
from dprecipe.release.origins import listed, untouched


def trained_names(module: nn.Module, fitted: bool = False) -> frozenset[str]:
    """The names in a release of what is trained, adapters merged into the layers that they adapt; of a module that was
    `fitted` as a whole, all of them.

    A tensor counts only if it is the trained parameter itself: a module may put another under its name.
    """
    state = module.state_dict()
    if fitted:
        return frozenset(state)
    names = {
        name
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
        and name in state
        and state[name].shape == parameter.shape
        and state[name].data_ptr() == parameter.data_ptr()
    }
    for name, layer in module.named_modules():
        if isinstance(layer, Adapted):
            prefix = f"{name}." if name else ""
            adapters = {f"{prefix}down.weight", f"{prefix}up.weight"}
            if adapters & names:
                names = (names - adapters) | {f"{prefix}weight"}
    return frozenset(names)


def tensors_of(
    weights: Mapping[str, Tensor], trained: Collection[str], custom: bool, from_file: bool
) -> tuple[ReleasedTensor, ...]:
    """All tensors of a release. `custom`: the module came from Python; `from_file`: it began from declared weights."""
    rest: MadeBy = "python" if custom else "file" if from_file else "seed"
    return tuple(
        ReleasedTensor(name, tuple(tensor.shape), "noisy_steps" if name in trained else rest)
        for name, tensor in sorted(weights.items())
    )


def refuse_python_tensors(plan: Plan, module: nn.Module) -> None:
    """Where the recipe refuses tensors from Python that no noisy step makes: there are none. Ask before training.

    Raises:
        UsageFault: there are some; names them.
    """
    if plan.runtime.python_tensors != "refuse":
        return
    found = untouched(tensors_of(module.state_dict(), trained_names(module), custom=True, from_file=False))
    if found:
        raise UsageFault(
            f"the module from Python would release tensors that no noisy step makes: {listed(found)}; the recipe has "
            "runtime.python_tensors: refuse",
            "train them, register buffers with persistent=False so that they are not released, or set "
            "runtime.python_tensors to declare, and the certificate names them",
        )
