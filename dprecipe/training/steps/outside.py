"""Code of somebody else's that runs between noisy steps: it may look at a run's state, and moves nothing of it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook as has_hooks_for_all

from dprecipe.models.modules.inspection import HOOKS, is_hooked
from dprecipe.release.origins import quote_names
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.states import find_differences, flatten_state
from dprecipe.training.steps.step_failures import StepFailed

REMEDY = (
    "remove the callback that does it (averaging, pruning, thawing, hooks, a step of its own), and continue with "
    "resume=True; the recipe names the optimiser, training.average and model.train"
)
RATE = re.compile(r"optimizer\.param_groups\.\d+\.lr")
Structure = Mapping[str, object]


def describe_structure(model: nn.Module) -> Structure:
    """Returns what the probe has seen of a model besides its numbers: layers, hooks, what is trained."""
    parts: dict[str, object] = {"hooks of all modules": has_hooks_for_all()}  # type: ignore[no-untyped-call]
    for name, layer in model.named_modules():
        hooks = [tuple(getattr(layer, kind)) for kind in HOOKS]
        parts[name or "the model"] = (id(layer), type(layer), type(layer).forward, vars(layer).get("forward"), hooks)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        parts[name] = (id(parameter), parameter.requires_grad, parameter.dtype, parameter.shape, is_hooked(parameter))
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
        self.steps, self._structure = steps, structure
        self._kept: dict[str, Any] = {}
        self.keep()

    def keep(self) -> None:
        """Copies the state as a noisy step has left it."""
        self._kept = copy.deepcopy(self.steps.state())

    def check(self) -> None:
        """Compares the state to that which the last noisy step has left.

        Raises:
            StepFailed: something differs; a checkpoint of these steps holds what was there before.
        """
        moved = [*find_differences(self._structure, describe_structure(self.steps.model)), *self._find_moves()]
        optimizer = self.steps.optimizer
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            moved.append("hooks of the optimiser")
        if moved:
            self.steps.fix_state(self._kept)
            what = quote_names(list(dict.fromkeys(moved)))
            raise StepFailed(f"something other than a noisy step changed the run between two steps: {what}", REMEDY)

    def _find_moves(self) -> list[str]:
        """Returns the names of values that differ; without the optimiser's rate where each step sets it."""
        before, now = flatten_state(self._kept), flatten_state(self.steps.state())
        moved = find_differences(before, now)
        return [name for name in moved if not (self.steps.updates.sets_rate and RATE.fullmatch(name))]


def in_declared_precision(device: torch.device) -> torch.autocast:
    """Inside, no autocast of somebody else's rounds what a step computes."""
    return torch.autocast(device.type, enabled=False)
