"""Sums of clipped gradients as a mechanism's half of a step: clip and sum a batch, then divide the noisy sum, phase by
phase."""

from __future__ import annotations

import bisect
import math
from itertools import accumulate
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.faults import RunFailed
from dprecipe.models.outputs import label_type
from dprecipe.models.zoo.causal_lm import CausalLanguageModel
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.noisy_sum.clipped_plan import ClippedPlan, Phase, PlannedClip
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.training.engine.clipped_sum import BatchPart, ClippedSum, clipped_sum, find_fallbacks
from dprecipe.training.engine.clipping import Clipping, layer_numbers
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.full_precision import Reduced
from dprecipe.training.engine.recompute import Recompute
from dprecipe.training.engine.sharded_sum import PassSizes, Shards, plan_passes, sharded_clipped_sum
from dprecipe.training.engine.unit_rows import MeanLoss, RowwiseModel
from dprecipe.training.probe.sums import SumTests, clipping_tests
from dprecipe.training.processes.processes import world_size
from dprecipe.training.program.own_loss import loss_of
from dprecipe.training.program.records import Store, StoredBatch, UnitRowsBatch
from dprecipe.training.run.gate import multiplier_of
from dprecipe.training.steps.contract import NoisyStep, StepContext
from dprecipe.training.steps.noisy_steps import NoisySteps

MIN_NORM, MAX_NORM = 1e-6, 1e6
"""The limits of an adaptive clip norm: those of any clip norm in a recipe."""


def build(context: StepContext) -> NoisySteps:
    """Builds the program of a plan.

    Raises:
        RunFailed: the plan's clip norms do not match the model's layers.
    """
    return NoisySteps(context, ClippedSums(context.plan, context.model))


def sum_tests(plan: Plan, model: nn.Module) -> SumTests:
    """Returns the probe's tests of this mechanism's sums."""
    sums = ClippedSums(plan, model)
    clipping = sums.clipping(NoisyStep(0, plan.mechanism_plan.events[0].event))
    rows = None if sums.several is None else 2 * sums.copies
    return clipping_tests(clipped_sum, clipping, rows)


def clipping_of(
    clip: PlannedClip,
    model: nn.Module,
    clip_norm: float,
    noise_multiplier: float,
    shares: tuple[float, ...] | None = None,
) -> Clipping:
    """Returns a plan's clipping at one clip norm.

    `shares` are those of an event with noise of its own for each group of layers.

    Raises:
        RunFailed: the number of norms is not the model's number of layers, or of their groups.
    """
    norm = clip.norm_kind
    if clip.mode == "per_layer":
        groups = _group_numbers(clip, layer_numbers(model))
        count = max(groups) + 1
        relative = clip.norms
        if relative is None:
            relative = (1 / count if norm == "l1" else 1 / math.sqrt(count),) * count
        if len(relative) != count:
            raise RunFailed(
                f"the recipe has clip norms for {len(relative)} layers, but this model has {count}",
                f"let the recipe name a model of {count} layers (an mlp with {count - 1} hidden ones, say), over which "
                "mechanism.clip.norm is split; or clip with mode: flat",
            )
        return Clipping(tuple(clip_norm * share for share in relative), groups, norm=norm, shares=shares)
    if clip.stability is not None:
        return Clipping((clip_norm,), stability=clip.stability, norm=norm)
    if clip.adaptation is not None:
        return Clipping((clip_norm,), norm=norm, counted=clip.adaptation.count_noise / noise_multiplier)
    return Clipping.flat(clip_norm, norm)


def _group_numbers(clip: PlannedClip, layers: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the group of each trained parameter, given its layer."""
    if clip.groups is None:
        return layers
    if sum(clip.groups) != max(layers) + 1:
        raise RunFailed(
            f"the recipe has {sum(clip.groups)} layers in groups, but this model has {max(layers) + 1} layers",
            "write mechanism.clip.groups so that its numbers add up to the number of layers",
        )
    ends = list(accumulate(clip.groups))
    return tuple(bisect.bisect_right(ends, layer) for layer in layers)


def next_clip_norm(clip_norm: float, share: float, quantile: float, learning_rate: float) -> float:
    """Returns the next clip norm, if about `share` of the units were within this one: C exp(-η (share - quantile)).

    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", Algorithm 1.
    """
    log_norm = math.log(clip_norm) - learning_rate * (share - quantile)
    return math.exp(min(math.log(MAX_NORM), max(math.log(MIN_NORM), log_norm)))


@final
class ClippedSums:
    """Algorithm 1 of Abadi et al. 2016: each unit's gradient clipped to the norm of its phase.

    A unit of several records, or of one record in several augmented copies (De et al. 2022), passes through the model
    as one record of several rows.
    """

    def __init__(self, plan: Plan, model: nn.Module) -> None:
        planned = plan.as_plan_of(ClippedPlan)
        self._model = model
        self._shape = describe_data(plan.data).shape
        self._runtime = plan.runtime
        self._clip = planned.clip
        self._phases = planned.phases
        self._starts = [0, *accumulate(phase.steps for phase in self._phases)][:-1]
        self.copies = planned.augmentations
        recomputed = plan.runtime.recompute and isinstance(model, CausalLanguageModel)
        module = Recompute(model, cast(CausalLanguageModel, model).blocks) if recomputed else model
        self._module = module if plan.runtime.precision == 32 else Reduced(module)
        self.several = RowwiseModel(self._module) if self.copies > 1 or plan.data.unit != "record" else None
        self._target = describe_data(plan.data).target
        loss = loss_of(plan, model)
        self._loss = loss if self.several is None else MeanLoss(loss)
        result = (self._module if self.several is None else self.several, self._loss)
        self._passes = Passes(
            *result,
            False if plan.runtime.recompute else plan.runtime.compile,
            planned.largest_expected_batch / world_size(),
            plan.length.steps,
            hindrance="" if plan.data.unit == "record" else "units have different numbers of records",
            processes=world_size(),
            owner=model,
        )
        self._adapted = self._phases[0].clip_norm if planned.clip.adaptation is not None else None
        self._expected = planned.largest_expected_batch / world_size()
        self._sharded: tuple[Shards, PassSizes] | None = None

    def clipping(self, step: NoisyStep) -> Clipping:
        """Returns a step's clipping, after the adaptation in earlier steps; its noise is that of the charged event."""
        clip_norm = self._phase(step).clip_norm if self._adapted is None else self._adapted
        shares = step.event.shares if isinstance(step.event, GroupedGaussian) else None
        return clipping_of(self._clip, self._model, clip_norm, multiplier_of(step.event), shares)

    def divide(self, shards: Shards) -> None:
        if self.several is not None:
            raise RunFailed(
                "runtime.sharding: parameters is for units of one record each", "set runtime.sharding to optimizer"
            )
        most, expected = self._runtime.physical_batch_size, self._expected
        self._sharded = shards, plan_passes(self._module, self._loss, self._zeros(1), most, expected, shards)

    def group(self, units: UnitNumbers) -> UnitNumbers:
        return units

    def batch(self, store: Store, units: UnitNumbers, seed: int) -> StoredBatch:
        return store.batch(units, seed)

    def summed(self, model: nn.Module, batch: StoredBatch, step: NoisyStep) -> ClippedSum:
        if self._sharded is not None:
            shards, sizes = self._sharded
            return sharded_clipped_sum(self._module, self._loss, batch, self.clipping(step), sizes, shards)
        clipping = self.clipping(step)
        max_rows, passes = self._runtime.physical_batch_size, self._passes
        if self.several is None:
            return clipped_sum(self._module, self._loss, batch, clipping, max_rows, passes, world_size())
        rows = UnitRowsBatch(batch, self.copies)
        return clipped_sum(self.several, self._loss, rows, clipping, max_rows, passes, world_size())

    def gradient(self, noisy: Tensor, step: NoisyStep) -> tuple[Tensor, Tensor | float]:
        divisor, adaptation = self._phase(step).divisor * step.size_share, self._clip.adaptation
        if self._adapted is not None and adaptation is not None:
            share = float(noisy[-1]) / divisor + 0.5
            self._adapted = next_clip_norm(self._adapted, share, adaptation.quantile, adaptation.learning_rate)
            noisy = noisy[:-1]
        return noisy.div_(divisor), 1.0

    def figures(self) -> dict[str, float]:
        return {} if self._adapted is None else {"clip_norm": self._adapted}

    def remarks(self) -> tuple[str, ...]:
        text = (f"gradients: {self._passes.remark}",) if self._passes.remark else ()
        size, rows = math.ceil(self._phases[0].divisor), 1 if self.several is None else self.copies
        count = max(1, min(size, self._runtime.physical_batch_size // rows))
        batch = self._zeros(count)
        model = self._module if self.several is None else self.several
        clipping = clipping_of(self._clip, self._model, 1.0, self._phases[0].noise_multiplier)
        return (*text, *find_fallbacks(model, self._loss, batch, clipping, self._model))

    def _zeros(self, count: int) -> BatchPart:
        """Returns `count` units whose features and labels are all zeros."""
        rows = () if self.several is None else (self.copies,)
        device = next(self._model.parameters()).device
        labels = torch.zeros((count, *rows), dtype=label_type(self._target), device=device)
        return BatchPart(torch.zeros((count, *rows, *self._shape), device=device), labels)

    def state(self) -> dict[str, Any]:
        return dict(self.figures())

    def restore(self, state: dict[str, Any]) -> None:
        if self._adapted is not None:
            clip_norm = float(state["clip_norm"])
            if not MIN_NORM <= clip_norm <= MAX_NORM:  # written so that NaN fails
                raise ValueError(f"a clip norm of {clip_norm}")
            self._adapted = clip_norm

    def _phase(self, step: NoisyStep) -> Phase:
        return self._phases[bisect.bisect_right(self._starts, step.number) - 1]
