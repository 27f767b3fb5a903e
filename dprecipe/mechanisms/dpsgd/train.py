"""DP-SGD's program: clip, sum, add noise, step."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from dprecipe.data.lots import Lot
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.model import Plan
from dprecipe.privacy.events import Event
from dprecipe.training.engine.clipped_sum import ClippedSum, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.gate import Gate
from dprecipe.training.losses import cross_entropy
from dprecipe.training.noisy_steps import NoisySteps
from dprecipe.training.probe_sums import SumTests, clipping_tests
from dprecipe.training.records import Store, StoredLot


def build(plan: Plan, model: nn.Module, store: Store, gate: Gate, secrets: Secrets) -> NoisySteps:
    """The program of a plan."""
    return NoisySteps(plan, model, store, gate, secrets, ClippedSums(plan))


def tests(plan: Plan, model: nn.Module) -> SumTests:
    """What the probe asks of this mechanism's sums."""
    return clipping_tests(clipped_sum)


@final
class ClippedSums:
    """Algorithm 1 of Abadi et al. 2016: each unit's gradient clipped to the norm."""

    def __init__(self, plan: Plan) -> None:
        self._clipping = Clipping.flat(float(plan.settings["clip_norm"]))
        self._physical_batch = plan.runtime.physical_batch

    def lot(self, store: Store, units: Lot, seed: int) -> StoredLot:
        return store.lot(units, seed)

    def summed(self, model: nn.Module, lot: StoredLot) -> ClippedSum:
        return clipped_sum(model, cross_entropy, lot, self._clipping, self._physical_batch)

    def gradient(self, noisy: Tensor, event: Event) -> tuple[Tensor, Tensor | float]:
        return noisy, 1.0
