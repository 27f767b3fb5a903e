"""Scores that a module's own `validation_step` logs, on held-out records that are declared public.

Records are public and weights are those of noisy steps, so that whatever it computes of both is covered by the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from dprecipe.data.targets import SeveralTarget, Target
from dprecipe.faults import UsageFault
from dprecipe.models.modules.inspection import VALIDATION, list_own_methods
from dprecipe.models.outputs import call_with, unpack_labels
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.program.evaluate import HeldOut
from dprecipe.training.program.own_loss import module_of
from dprecipe.training.program.standin import stand_in
from dprecipe.training.steps.step_failures import locate_failures


def has_own_scores(model: nn.Module) -> bool:
    """Returns True if a model is a module with a `validation_step`."""
    return VALIDATION in list_own_methods(module_of(model))


def own_scores_of(model: nn.Module, held_out: HeldOut | None, target: Target) -> OwnScores | None:
    """Returns the scores of a module's own `validation_step`, if it has one and there are records."""
    if held_out is None or not has_own_scores(model):
        return None
    return OwnScores(held_out, target.outputs if isinstance(target, SeveralTarget) else None)


def try_own_scores(model: nn.Module, held_out: HeldOut | None, target: Target, *, from_python: bool) -> None:
    """Tries a module's `validation_step` on a batch. `from_python`: the held-out records came from Python.

    Raises:
        UsageFault: nothing says that these records are public.
        StepFailed: it raises.
    """
    if from_python:
        raise UsageFault(
            "validation_step would show scores, and nothing says that test records from Python are public",
            "let data.test of the recipe name them, with access: public; or remove validation_step",
        )
    own = own_scores_of(model, held_out, target)
    if own is not None:
        with locate_failures(own.module, "its validation_step was tried", "mend it; nothing was spent"):
            own.measure(model.state_dict(), 1)


@final
class OwnScores:
    """The values that `validation_step` gives to `self.log` or `self.log_dict`, each the mean over records."""

    def __init__(self, held_out: HeldOut, names: int | None) -> None:
        """`names`: how many a label has, where several may apply."""
        self._held_out, self._names = held_out, names

    @property
    def module(self) -> nn.Module:
        """The copy of the module that is scored."""
        return self._held_out.module

    def measure(self, state: Mapping[str, Tensor], batches: int | None = None) -> dict[str, float]:
        """Returns the scores of the module with the weights in `state`; of the first `batches` alone, if given.

        What is logged with a `compute` of its own (a metric of torchmetrics) is asked at the end, and reset.

        Raises:
            Exception: what the module raises.
        """
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        metrics: dict[str, Any] = {}
        named = {f"module.{name}": tensor for name, tensor in state.items()}
        with torch.no_grad(), in_full_precision():
            for number, (features, labels) in enumerate(self._held_out.batches()):
                if number == batches:
                    break
                logged: dict[str, Any] = {}
                answers = labels if self._names is None else unpack_labels(labels, self._names).float()
                call_with(_Validation(module_of(self.module), answers, number, _collect(logged)), named, features)
                metrics |= {name: value for name, value in logged.items() if hasattr(value, "compute")}
                for name in logged.keys() - metrics.keys():
                    sums[name] = sums.get(name, 0.0) + len(labels) * float(logged[name])
                    counts[name] = counts.get(name, 0) + len(labels)
            figures = {name: total / counts[name] for name, total in sums.items()}
            figures |= {name: float(metric.compute()) for name, metric in metrics.items()}
            for metric in metrics.values():
                metric.reset()
        return figures


def _collect(logged: dict[str, Any]) -> Callable[..., None]:
    def log(name: str | Mapping[str, Any], value: Any = None, *_: object, **__: object) -> None:
        logged.update(name if isinstance(name, Mapping) else {name: value})

    return log


@final
class _Validation(nn.Module):
    """A module's `validation_step` as a function of features, so that its weights can be replaced for the call."""

    def __init__(self, module: nn.Module, labels: Tensor, number: int, log: Callable[..., None]) -> None:
        super().__init__()
        self.module = module
        self._call = labels, number, log

    def forward(self, features: Tensor) -> Tensor:
        labels, number, log = self._call
        stand_in(self.module, log=log).validation_step((features, labels), number)  # type: ignore[operator]
        return features
