"""The canaries of a run's attempt: made when its ledger is open, and judged when it has ended.

Canaries that are records are synthetic, with synthetic labels, and taken through the whole program like any other.
Their numbers are noise and their labels arbitrary: what a model knows of one it has from it alone. They are public, a
function of the plan's digest. Whether one was in is judged by how far the released model's loss on it fell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.data.facts import DataFacts, describe_data
from dprecipe.data.raw import Labels
from dprecipe.data.records import RecordSource
from dprecipe.faults import InternalFault
from dprecipe.models.outputs import call_with
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.planning.audit import canaries_of, naming_of
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.implied import run_curve
from dprecipe.privacy.audit.results import MAX_DIFFERENCE, AuditBound, Guesses, Scores, SpecificationTest
from dprecipe.privacy.audit.specification import judge_specification
from dprecipe.privacy.audit.verdicts import describe_chance, judge_bound
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.rounding import round_down
from dprecipe.release.specification import charged_mu, find_reason_untested
from dprecipe.training.audit.run import ClaimRefuted
from dprecipe.training.canaries.contract import Coins, Floats, Numbers, RunCanaries, generator_of
from dprecipe.training.canaries.gradients import GradientCanaries
from dprecipe.training.engine.clipped_sum import ClippedSum, Loss
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.program.losses import synthetic_labels
from dprecipe.training.program.own_loss import loss_of


def add_canaries(plan: Plan, records: RecordSource) -> RecordSource:
    """Returns the training records, with the canaries of the plan where these are records too."""
    if canaries_of(plan, "record"):
        return WithCanaries(records, canaries_of(plan, "record"), describe_data(plan.data), plan.digest)
    return records


def make_canaries(
    plan: Plan, coins: Coins, records: RecordSource, model: nn.Module, device: torch.device
) -> RunCanaries:
    """Returns the canaries of an attempt. `records`: what `add_canaries` returned. `model`: with its initial
    weights."""
    if isinstance(records, WithCanaries):
        losses = losses_on(records, model, loss_of(plan, model), device, plan.runtime.physical_batch_size)
        return RecordCanaries(coins, records, losses)
    replaced = plan.budget.neighbouring is Neighbouring.REPLACE_ONE
    return GradientCanaries(coins, records.unit_count, plan.digest, replaced=replaced)


def guess_coins(plan: Plan, canaries: RunCanaries, released: Mapping[str, Tensor]) -> Guesses:
    """Returns what is published of a run's canaries; `released`: the weights that are released."""
    return count_guesses(plan, canaries.coins, canaries.rank(released))


def count_guesses(plan: Plan, coins: Coins, scores_M: Floats) -> Guesses:
    """Counts how many names, as many as the plan says, are right.

    Those with the highest scores are named in, those with the lowest out; of equal ones the first is the lower.
    """
    each = naming_of(plan).each
    order = np.argsort(scores_M, kind="stable")
    correct = int(coins.inside[order[-each:]].sum() + (~coins.inside[order[:each]]).sum())
    return Guesses(canaries=coins.count, named_in=each, named_out=each, correct=correct)


def compare_scores(
    plan: Plan, canaries: RunCanaries, released: Mapping[str, Tensor], *, from_python: bool
) -> Scores | None:
    """Returns what is published of the scores; None where the plan does not specify their distribution. `from_python`:
    the module came from there."""
    if find_reason_untested(plan, "python" if from_python else "recipe") is not None:
        return None
    return summarise_scores(canaries.coins, canaries.rank(released))


def summarise_scores(coins: Coins, scores_M: Floats) -> Scores:
    """Returns how far the scores of those that are in and of those that are out lie apart, in standard deviations."""
    sides = scores_M[coins.inside], scores_M[~coins.inside]
    difference = 0.0
    if all(map(len, sides)) and coins.count > 2:
        spread = math.sqrt(sum(float(np.sum((side - side.mean()) ** 2)) for side in sides) / (coins.count - 2))
        apart = float(sides[0].mean() - sides[1].mean())
        difference = apart / spread if spread > 0 else math.copysign(MAX_DIFFERENCE, apart) if apart else 0.0
    return Scores(
        inside=len(sides[0]),
        outside=len(sides[1]),
        difference=round_down(max(-MAX_DIFFERENCE, min(MAX_DIFFERENCE, difference))),
    )


def judge_scores(plan: Plan, scores: Scores, charges: Sequence[Charge]) -> SpecificationTest:
    """Returns whether the scores are consistent with the specification of these charges."""
    if plan.audit is None:
        raise InternalFault("canaries of a run that is not audited")
    return judge_specification(scores, charged_mu(plan, charges), plan.audit.confidence)


def judge_guesses(plan: Plan, guesses: Guesses, charges: Sequence[Charge], epsilon: float) -> AuditBound:
    """Returns what the guesses show, beside the ε and the profile that are claimed of these charges."""
    block = plan.audit
    if block is None:
        raise InternalFault("canaries of a run that is not audited")
    return judge_bound(
        "canaries",
        f"{block.canary}_canaries",
        describe_bound(block.canary),
        guesses,
        confidence=block.confidence,
        claimed=epsilon,
        delta=plan.budget.delta,
        curve=run_curve(charges, plan.budget.neighbouring, plan.budget.accountant, epsilon),
    )


def describe_bound(canary: str) -> str:
    """Describes what is expected of a sound program."""
    told = "all noisy sums tell" if canary == "gradient" else "the released model tells"
    return f"{told} no more of which {canary} canaries were in this run than the claim allows"


def refuse_release(path: Path, bound: AuditBound, test: SpecificationTest | None) -> ClaimRefuted:
    """Returns the fault of a run whose claim its canaries have refuted; the folder says why, so that no attempt goes
    on. `test`: what their scores say of the specification."""
    reason = f"the canaries of this run refute its claim of ε = {bound.claimed:g}: {describe_chance(bound)}"
    content = {
        "schema": "dprecipe.refuted/v1",
        "reason": reason,
        "bound": bound.model_dump(mode="json"),
        "specification": None if test is None else test.model_dump(mode="json"),
    }
    try:
        durable.replace_file(path, json.dumps(content, indent=1).encode())
    except OSError as error:
        reason += f" (and {path} can't be written: {error.strerror})"
    return ClaimRefuted(
        f"{reason}; nothing is released, and what was drawn stays charged",
        "a sound program gets there with probability 1 - confidence at most: please report this, with private/ kept",
    )


Indices = NDArray[np.int64]


@final
class WithCanaries:
    """A set of records, and after them its canaries: each a unit of one record."""

    def __init__(self, records: RecordSource, count: int, facts: DataFacts, key: str) -> None:
        """`key`: the plan's digest."""
        self._records, self._count, self._facts, self._key = records, count, facts, key
        self.unit_count = records.unit_count + count

    def __len__(self) -> int:
        return len(self._records) + self._count

    @cached_property
    def units(self) -> Indices | None:
        """The unit of each record."""
        known = self._records.units
        return (
            None
            if known is None
            else np.concatenate([known, np.arange(self.unit_count - self._count, self.unit_count)])
        )

    def batch(self, indices: Indices | slice) -> tuple[NDArray[np.float32], Labels]:
        """Returns a batch, as every source of records does."""
        numbers = np.arange(len(self))[indices] if isinstance(indices, slice) else indices
        own = numbers >= len(self._records)
        features, labels = self._records.batch(numbers[~own])
        if not own.any():
            return features, labels
        made, made_labels = (array[numbers[own] - len(self._records)] for array in self.canaries)
        both = np.empty((len(numbers), *made.shape[1:]), made.dtype)
        both_labels = np.empty(len(numbers), made_labels.dtype)
        both[~own], both[own] = features, made
        both_labels[~own], both_labels[own] = labels, made_labels
        return both, both_labels

    @cached_property
    def canaries(self) -> tuple[NDArray[np.float32], Labels]:
        """All canaries; made when they are asked for: one of the records tells shapes and types, and nothing else."""
        one: tuple[NDArray[Any], Labels] = self._records.batch(np.arange(min(1, len(self._records))))
        features, labels = one
        generator = generator_of(self._key, self._count)
        shape = (self._count, *features.shape[1:])
        vocabulary = self._facts.vocabulary
        made: NDArray[Any]
        if vocabulary is not None:
            made = generator.integers(1, max(2, vocabulary), size=shape)
        elif features.dtype.kind in "iu":
            made = generator.integers(np.iinfo(features.dtype).max, size=shape)
        else:
            made = generator.standard_normal(shape)
        numbers = torch.from_numpy(generator.integers(1 << 31, size=self._count))
        answers: Labels = synthetic_labels(numbers, self._facts.target).numpy()
        answers = answers.astype(np.float32) if labels.dtype == np.float32 else answers.astype(np.int64)
        return made.astype(features.dtype), answers


@final
class RecordCanaries:
    """The canaries of a run, in the program's batches."""

    def __init__(self, coins: Coins, source: WithCanaries, losses: Callable[[Mapping[str, Tensor]], Floats]) -> None:
        """`losses` (M,): those of a model with given weights on the canaries; asked now, of the initial ones."""
        self.coins = coins
        self.units = source.unit_count
        """Number of units that batches are drawn from."""
        self._first = self.units - coins.count
        self._losses = losses
        self._before_M = losses({})

    def split(self, units: UnitNumbers) -> tuple[UnitNumbers, None]:
        """Returns a batch without the canaries that are out."""
        first = int(np.searchsorted(units, self._first))
        canaries = units[first:]
        return np.concatenate([units[:first], canaries[self.coins.inside[canaries - self._first]]]), None

    def add(
        self, clipped: ClippedSum, model: nn.Module, clipping: Clipping | None, step: int, sampled: Numbers
    ) -> ClippedSum:
        """Does nothing: the canaries are in the sum already."""
        return clipped

    def score(self, noisy: Tensor, event: Event, units: UnitNumbers) -> None:
        """Does nothing: only the released model is asked."""

    def end_event(self) -> None:
        """Does nothing."""

    def rank(self, released: Mapping[str, Tensor]) -> Floats:
        """Ranks the canaries by how far the loss has fallen."""
        fallen_M = self._before_M - self._losses(released)
        return np.nan_to_num(fallen_M, nan=-np.inf)

    def state(self) -> dict[str, Any]:
        """Returns what a later attempt needs."""
        return {"coins": self.coins.digest}

    def restore(self, state: dict[str, Any]) -> None:
        """See `RunCanaries`."""
        if state["coins"] != self.coins.digest:
            raise ValueError("a state with other canaries")


def losses_on(
    source: WithCanaries, model: nn.Module, loss: Loss, device: torch.device, size: int
) -> Callable[[Mapping[str, Tensor]], Floats]:
    """Returns the losses (M,) on the canaries of a model, with weights that take the place of its own, in evaluation
    mode."""

    def losses(state: Mapping[str, Tensor]) -> Floats:
        features, labels = source.canaries
        training, parts = model.training, []
        model.eval()
        try:
            with torch.no_grad(), in_full_precision():
                for start in range(0, len(labels), size):
                    arrays = (features[start : start + size], labels[start : start + size])
                    some, answers = (torch.from_numpy(array).to(device) for array in arrays)
                    outputs = call_with(model, state, some)
                    parts.append(loss(outputs, answers).to("cpu", torch.float64).numpy())
        finally:
            model.train(training)
        return np.concatenate(parts)

    return losses
