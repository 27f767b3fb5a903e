"""A check that a run has learned a usable model: weights that are not finite answer nothing.

They are what noisy steps made, and what is tried on them are synthetic records: that a run ends without a model is a
function of what it may release, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dprecipe.contract.plan import Plan
from dprecipe.faults import NothingLearned
from dprecipe.training.processes.sharded_weights import gathers_weights
from dprecipe.training.program.evaluate import HeldOut
from dprecipe.training.program.program import StepwiseProgram, Synthetic

TRIED = 8
"""Synthetic records that a model is tried on."""


class _Few:
    """The first few of synthetic records."""

    def __init__(self, plan: Plan) -> None:
        self._records = Synthetic(plan)
        self.batch = self._records.batch

    def __len__(self) -> int:
        return min(TRIED, len(self._records))


def check_learned(plan: Plan, program: StepwiseProgram, state: Mapping[str, Tensor]) -> None:
    """Checks that weights, as they would be released, are finite, and so is the loss of a model of ours on synthetic
    records.

    Raises:
        NothingLearned: they are not.
    """
    weights = [value for value in state.values() if value.is_floating_point()]
    if not all(bool(torch.isfinite(value.float()).all()) for value in weights):  # torch has no test for 8 bits
        raise _diverged("its weights are not finite numbers")
    if program.custom_model or gathers_weights(plan):
        return  # whose code may not take synthetic records; or no process has the weights whole
    tried = HeldOut(program.model, _Few(plan), program.device, TRIED, program.facts.target)
    if not math.isfinite(tried.score(state).loss):
        raise _diverged("its answers to synthetic records are not finite numbers")


def _diverged(what: str) -> NothingLearned:
    return NothingLearned(
        f"training has left the range of numbers: {what}",
        "lower training.optimizer.lr, and start over in a new folder: what was spent stays spent",
    )
