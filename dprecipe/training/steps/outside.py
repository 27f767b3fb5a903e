"""Code of somebody else's that runs between noisy steps: it may look at a run's state, and moves nothing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_hooks_for_all

from dprecipe.release.origins import quote_names
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.step_failures import StepFailed, are_equal

REMEDY = (
    "remove the callback that does it (averaging, pruning, thawing, hooks, a step of its own), and continue with "
    "resume=True; the recipe names the optimiser, training.average and model.train"
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Structure = Mapping[str, object]


def describe_structure(model: nn.Module) -> Structure:
    """Returns what the probe has seen of a model besides its numbers: layers, hooks, what is trained."""
    parts: dict[str, object] = {"hooks of all modules": has_hooks_for_all()}  # type: ignore[no-untyped-call]
    for name, layer in model.named_modules():
        hooks = [tuple(getattr(layer, kind)) for kind in HOOKS]
        parts[name or "the model"] = (id(layer), type(layer), type(layer).forward, vars(layer).get("forward"), hooks)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        hooked = bool(parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None))
        parts[name] = (id(parameter), parameter.requires_grad, parameter.dtype, parameter.shape, hooked)
    return parts


@final
class StateGuard:
    """A copy of a run's state after each noisy step, to which it is compared before the next.

    Guarantees: no noisy step begins, and nothing is released, where something else has moved a weight, a buffer, an
    average, or the state of the optimiser or of a filter since the last step; or has changed the model's structure
    since it was tried. What a checkpoint then holds is the copy.
    """

    def __init__(self, steps: NoisySteps, structure: Structure) -> None:
        """`structure`: the model's, when it was tried."""
        self._steps, self._structure = steps, structure
        self._kept: Any = None
        self.keep()

    def keep(self) -> None:
        """Copies the state as a noisy step has left it."""
        self._kept = _copy(self._steps.state())

    def check(self) -> None:
        """Compares the state to that which the last noisy step has left.

        Raises:
            StepFailed: something differs; a checkpoint of these steps holds what was there before.
        """
        structure = describe_structure(self._steps.model)
        names = dict.fromkeys((*self._structure, *structure))
        moved = [name for name in names if self._structure.get(name) != structure.get(name)]
        moved += list(dict.fromkeys(_find_moves(self._kept, self._steps.state())))
        optimizer = self._steps.optimizer
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            moved.append("hooks of the optimiser")
        if moved:
            self._steps.fix_state(self._kept)
            what = quote_names(moved)
            raise StepFailed(f"something other than a noisy step changed the run between two steps: {what}", REMEDY)


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list | tuple) else value


def _find_moves(before: Any, now: Any, name: str = "") -> list[str]:
    """Returns the names of values that differ. The rate is left out: each step sets it."""
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return [] if are_equal(before, now.detach()) else [name]
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [key for key in dict.fromkeys((*before, *now)) if key != "lr"]
        return [move for key in keys for move in _find_moves(before.get(key), now.get(key), _join(name, key))]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [move for number, (one, other) in pairs for move in _find_moves(one, other, _join(name, number))]
    return [] if type(before) is type(now) and before == now else [name]


def _join(name: str, key: object) -> str:
    return f"{name}.{key}" if name else str(key)


def in_declared_precision(device: torch.device) -> torch.autocast:
    """Inside, no autocast of somebody else's rounds what a step computes."""
    return torch.autocast(device.type, enabled=False)
