"""The student of a plan, trained only on public records and released labels.

No function here receives a private record, a vote, or the path to one.

Axes: R public records, K queries, M classes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.preprocess import Floats
from dprecipe.faults import InternalFault, NothingLearned, PlanRefused, RunFailed
from dprecipe.mechanisms.pate.aggregators import Scores
from dprecipe.models.build import build
from dprecipe.models.modules.inspection import detach_trainers, inspect_steps
from dprecipe.progress import Progress
from dprecipe.training.probe.place import name_failure
from dprecipe.training.steps.step_failures import locate_failures

TRIED = 4
"""Number of public records on which a module from Python is tried."""


def train_plan_student(
    plan: Plan,
    module: nn.Module | None,
    public: Floats,
    labels_R: NDArray[np.int64],
    device: torch.device,
    stop: Callable[[], bool],
) -> nn.Module | None:
    """Trains the student and returns it in evaluation mode; None if `stop` came first.

    `module` replaces the recipe's model. `labels_R` holds a label, or a number below 0 for a public record that has
    none.

    Guarantees: the student is a function of the arguments; on a CPU, two calls give the same student.

    Raises:
        NothingLearned: no record has a label, or the training diverged to numbers that are not finite.
    """
    labelled = np.flatnonzero(labels_R >= 0)
    if not len(labelled):
        raise NothingLearned(
            "no query was answered, so there is nothing to learn from",
            "lower mechanism.aggregator.selection.threshold, and start again: what was spent stays spent",
        )
    features, labels, seed, result = public[labelled], labels_R[labelled], plan.runtime.seed, describe_data(plan.data)
    if module is None and plan.training.optimizer is None:
        from dprecipe.mechanisms.pate.train.fitted import Fittable, fit_model

        if not isinstance(plan.model, Fittable):
            raise InternalFault("a student that takes steps has no optimizer")
        return fit_model(plan.model, features, labels, result.outputs, seed).to(device)
    from dprecipe.mechanisms.pate.train.student import train_student

    # Each call trains it from its initial weights.
    if module is None:
        student = build(plan.model, result.shape, result.outputs, seed, vocabulary=result.vocabulary)
    else:
        student = copy.deepcopy(module)
    bars: list[Progress] = []

    def report(done: int, steps: int) -> None:
        if not bars:
            bars.append(Progress("student", "update", steps))
        (bars[0].end if done == steps else bars[0].show)(done)

    return train_student(student, features, labels, public, plan.training, seed, device, report, stop)


def check_student(plan: Plan, module: nn.Module, public: Floats, device: torch.device) -> None:
    """Checks that a module from Python can be the student; called before anything is spent.

    It must have no steps of its own, and a copy of it makes an update and predictions on public records.

    Raises:
        PlanRefused: it has steps of its own, which would be dropped.
        RunFailed: it raises, or does not predict one number for each class; or the recipe has no optimizer.
    """
    if findings := list(inspect_steps(module)):
        raise PlanRefused(findings)
    detach_trainers(module)
    if plan.training.optimizer is None:
        raise RunFailed(
            "a module from Python learns by gradient steps, and the recipe has no training.optimizer",
            "add training.optimizer, and training.steps or epochs; nothing was spent",
        )
    from dprecipe.mechanisms.pate.train.student import train_student

    student, outputs, few = copy.deepcopy(module), describe_data(plan.data).outputs, public[:TRIED]
    one = plan.training.model_copy(update={"steps": 1, "epochs": None})
    with locate_failures(student, "it was tried on public records", "mend the module; nothing was spent"):
        with suppress(NothingLearned):  # one update proves little: a whole run reports it, with its own labels
            train_student(student, few, np.zeros(len(few), np.int64), public, one, plan.runtime.seed, device)
        shape = score_student(student.eval(), few, device, TRIED).shape
    if shape != (len(few), outputs):
        raise RunFailed(
            f"{name_failure(module, '')} does not return one number for each of {outputs} classes",
            "let forward return logits (records, classes); nothing was spent",
        )


def score_student(module: nn.Module, features: Floats, device: torch.device, physical_batch: int) -> Scores:
    """Returns the student's probability for each class, (K, M) float64."""
    with torch.no_grad():
        parts = [
            torch.softmax(module(torch.from_numpy(features[start : start + physical_batch]).to(device)).double(), 1)
            for start in range(0, len(features), physical_batch)
        ]
    expected: Scores = torch.cat(parts).cpu().numpy()
    return expected
