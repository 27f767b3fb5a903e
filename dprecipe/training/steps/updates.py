"""Updates of the weights by noisy gradients: with the recipe's optimiser and rates, or with those of a module.

Post-processing of noisy sums: no update costs privacy. A module's own optimiser is one of torch's, so
that it reads gradients, weights and its own constants alone; its functions are declared (`python_optimizer` of the
certificate).
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Protocol, final

import torch
from torch import nn
from torch.optim import lr_scheduler

from dprecipe.contract.plan import Length, Plan
from dprecipe.faults import Fault, RunFailed
from dprecipe.language.training import Sgd
from dprecipe.training.engine.single import shorten_error
from dprecipe.training.probe.place import locate_failure
from dprecipe.training.program.own_loss import module_of
from dprecipe.training.program.standin import stand_in
from dprecipe.training.steps.optimise import apply_weight_decay, learning_rate, optimizer_of


class Updates(Protocol):
    """An optimiser and what sets its rate."""

    optimizer: torch.optim.Optimizer
    is_linear: bool
    """True if an update is linear in the gradient."""
    sets_rate: bool
    """True if each step sets the rate."""

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step, from 0, that was taken last or is the next."""

    def take(self, step: int) -> None:
        """Moves the weights by their `.grad`, in step `step` from 0."""

    def copy_to_try(self, trained: Sequence[nn.Parameter]) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
        """Returns such an optimiser of copies of these parameters, and the copies."""

    def state(self) -> dict[str, Any]:
        """Returns the state of what sets the rate, for a later attempt: tensors and numbers only."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from `state`; the optimiser has its own already.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of this.
        """


def updates_of(plan: Plan, model: nn.Module, moved: Sequence[nn.Parameter]) -> Updates:
    """Returns the updates of a plan. `moved`: the trained parameters of the model, or this process's part of them.

    Raises:
        RunFailed: the module's own optimiser can't be used: see `OwnUpdates`.
    """
    if plan.training.own_optimizer:
        return OwnUpdates(module_of(model), plan.length)
    return RecipeUpdates(plan, moved)


def rehearse_updates(plan: Plan, model: nn.Module) -> None:
    """Tries a module's own optimiser, and walks through the rates of a whole run, on a copy.

    Raises:
        RunFailed: see `OwnUpdates` and its `rehearse`.
    """
    if plan.training.own_optimizer:
        OwnUpdates(copy.deepcopy(module_of(model)), plan.length).rehearse()


@final
class RecipeUpdates:
    """The optimiser that the recipe names; its rate is a function of the step."""

    sets_rate = True

    def __init__(self, plan: Plan, moved: Sequence[nn.Parameter]) -> None:
        self._spec = plan.training.descent
        self.rate = learning_rate(self._spec, plan.length)
        self.is_linear = isinstance(self._spec, Sgd)
        self.optimizer = optimizer_of(self._spec, nn.ParameterList(moved))

    def take(self, step: int) -> None:
        rate = self.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        apply_weight_decay(self._spec, self.optimizer, rate)
        self.optimizer.step()

    def copy_to_try(self, trained: Sequence[nn.Parameter]) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in trained]
        return optimizer_of(self._spec, nn.ParameterList(copies)), copies

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state:
            raise ValueError("a schedule of a module's own")


@final
@dataclass(frozen=True, slots=True)
class Scheduled:
    """A scheduler of torch, which steps after every `every` steps."""

    scheduler: lr_scheduler.LRScheduler
    every: int


@final
class OwnUpdates:
    """The optimiser and the schedulers that a module's `configure_optimizers` returns, stepped as Lightning does."""

    is_linear = sets_rate = False

    def __init__(self, module: nn.Module, length: Length) -> None:
        """Asks the module for them, new ones at each call.

        Raises:
            RunFailed: it raises; it returns no optimiser of torch over exactly the trained parameters, or one that is
                no function of one gradient; or a schedule that looks at scores.
        """
        try:
            given = stand_in(module, length).configure_optimizers()  # type: ignore[operator]
        except Fault:
            raise
        except Exception as error:  # of the module, whose code is the user's
            raise RunFailed(
                f"configure_optimizers of the module raises: {locate_failure(error, module)}", "mend it"
            ) from None
        self.optimizer, schedulers = _split(given)
        _check_optimizer(self.optimizer, module)
        self._schedules = [_schedule_of(each, self.optimizer, length) for each in schedulers]
        self._last, self._taken, self._steps = self._now(), 0, length.steps

    def _now(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def rate(self, step: int) -> float:
        return self._last

    def take(self, step: int) -> None:
        self._last = self._now()
        self.optimizer.step()
        self._advance()

    def _advance(self) -> None:
        """Moves the rates on, to the end of the plan: an audit takes further steps, which no schedule knows."""
        self._taken += 1
        for schedule in self._schedules if self._taken < self._steps else ():
            if self._taken % schedule.every == 0:
                schedule.scheduler.step()

    def copy_to_try(self, trained: Sequence[nn.Parameter]) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
        return copy.deepcopy((self.optimizer, list(trained)))

    def state(self) -> dict[str, Any]:
        schedules = [schedule.scheduler.state_dict() for schedule in self._schedules]
        return {"taken": self._taken, "schedules": schedules}

    def restore(self, state: Mapping[str, Any]) -> None:
        for schedule, kept in zip(self._schedules, state["schedules"], strict=True):
            schedule.scheduler.load_state_dict(dict(kept))
        self._last, self._taken = self._now(), int(state["taken"])

    def rehearse(self) -> None:
        """Walks through the rates of a whole run; use it for nothing else afterwards.

        Raises:
            RunFailed: a rate is not finite, a scheduler raises, or a checkpoint can't hold its state.
        """
        self.optimizer.zero_grad()
        self.optimizer.step()  # without gradients it moves nothing; a scheduler wants to see it
        for step in range(self._steps):
            try:
                self._advance()
            except Exception as error:  # of torch's, or of a function of the user's
                raise RunFailed(
                    f"the module's schedule raises at step {step + 1:,} of {self._steps:,}: {shorten_error(error)}",
                    "let it be as long as the run: self.trainer.estimated_stepping_batches counts the planned steps",
                ) from None
            if not all(math.isfinite(group["lr"]) for group in self.optimizer.param_groups):
                raise RunFailed(f"the module's schedule has no finite rate at step {step + 1:,}", "mend the schedule")
        with BytesIO() as file:
            try:
                torch.save((self.optimizer.state_dict(), self.state()), file)
                file.seek(0)
                torch.load(file, weights_only=True)
            except (pickle.PickleError, RuntimeError, TypeError, AttributeError) as error:
                raise RunFailed(
                    f"no checkpoint can hold the state of the module's optimiser: {shorten_error(error)}",
                    "let optimiser and schedules hold numbers and plain functions alone",
                ) from None


def _split(given: Any) -> tuple[torch.optim.Optimizer, list[Any]]:
    """Returns the optimiser and the schedulers in what `configure_optimizers` may return, by Lightning's forms."""
    schedulers: Any = []
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(each, tuple | list) for each in given):
        given, schedulers = given
    elif isinstance(given, Mapping):
        found = given.get("lr_scheduler")
        given, schedulers = given.get("optimizer"), [] if found is None else [found]
    if isinstance(given, tuple | list) and len(given) == 1:
        if isinstance(given[0], Mapping):
            return _split(given[0])
        [given] = given
    if not isinstance(given, torch.optim.Optimizer):
        raise RunFailed(
            "configure_optimizers of the module does not return one optimiser",
            "return an optimiser, ([optimiser], [scheduler]), or {'optimizer': …, 'lr_scheduler': …}",
        )
    return given, list(schedulers)


UNFIT = {"LBFGS": "it asks for the loss again within a step", "SparseAdam": "noisy gradients have no zeros"}


def _is_torchs(kind: type) -> bool:
    return kind.__module__.startswith("torch.optim.")


def _check_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    kind, own = type(optimizer), {id(parameter): name for name, parameter in module.named_parameters()}
    given = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not _is_torchs(kind):
        raise RunFailed(
            f"{kind.__name__} is no optimiser of torch.optim: nothing says what it does besides steps",
            "take one of torch.optim, such as AdamW",
        )
    if kind.__name__ in UNFIT:
        raise RunFailed(
            f"{kind.__name__} can't take noisy steps: {UNFIT[kind.__name__]}", "take another one, such as AdamW"
        )
    if hooks := [name for name in vars(optimizer) if "hooks" in name and vars(optimizer)[name]]:
        raise RunFailed(f"the optimiser has hooks ({', '.join(hooks)})", "register none in configure_optimizers")
    if given - own.keys():
        raise RunFailed(
            "the optimiser moves tensors that are no parameters of the module", "give it parameters of self alone"
        )
    trained = [name for name, p in module.named_parameters() if p.requires_grad and id(p) not in given]
    if trained:
        raise RunFailed(
            f"the optimiser leaves out parameters that are trained: {', '.join(map(ascii, trained[:8]))}",
            "give it all that are trained; set requires_grad to False on those that stay as they are: else they take "
            "part in the norm that is clipped",
        )


def _schedule_of(given: Any, optimizer: torch.optim.Optimizer, length: Length) -> Scheduled:
    scheduler, interval, frequency = given, "epoch", 1
    if isinstance(given, Mapping):
        scheduler, interval, frequency = (
            given.get("scheduler"),
            given.get("interval", interval),
            given.get("frequency", 1),
        )
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise RunFailed(
            "ReduceLROnPlateau follows a score, and a score of private records would set the rate",
            "take a schedule of steps alone, such as OneCycleLR",
        )
    if not isinstance(scheduler, lr_scheduler.LRScheduler) or not _is_torchs(type(scheduler)):
        raise RunFailed(f"{type(scheduler).__name__} is no scheduler of torch.optim.lr_scheduler", "take one of these")
    if getattr(scheduler, "optimizer", None) is not optimizer:
        raise RunFailed("the scheduler is of another optimiser", "make it of the one that is returned")
    if interval not in ("step", "epoch") or not isinstance(frequency, int) or frequency < 1:
        raise RunFailed("the scheduler's interval or frequency is unknown", 'write interval "step" or "epoch"')
    return Scheduled(scheduler, frequency * (1 if interval == "step" else length.steps_per_epoch))
