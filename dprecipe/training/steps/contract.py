"""The parts of a step on a noisy sum: its context, the mechanism's half, and how a mechanism joins the two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, final

from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.noise.entropy import Secrets
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.events import Event
from dprecipe.training.canaries.contract import RunCanaries
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.sharded_sum import Shards
from dprecipe.training.processes.processes import FollowerGate, Processes, SingleProcess
from dprecipe.training.program.records import Store, StoredBatch
from dprecipe.training.run.gate import Gate

if TYPE_CHECKING:
    from dprecipe.training.steps.noisy_steps import NoisySteps


@final
@dataclass(frozen=True, slots=True)
class StepContext:
    """Everything that the steps of an attempt share. Leader and follower of a run have equal ones but for the gate."""

    plan: Plan
    model: nn.Module
    store: Store
    """Records, on the device."""
    gate: Gate | FollowerGate
    """Admits events and adds their noise: the only way for a sum to leave a step."""
    secrets: Secrets
    """Seeds of batches, augmentation and layers; the leader's, in all processes."""
    processes: Processes = SingleProcess()  # noqa: RUF009 -- it has no state
    """The processes that take each step together."""
    size_share: float = 1.0
    """Factor of the planned divisor: see `NoisyStep`."""
    canaries: RunCanaries | None = None
    """Canaries of an audited run."""


@final
@dataclass(frozen=True, slots=True)
class NoisyStep:
    """One update: its number in the plan, from 0, and the event that pays for it."""

    number: int
    event: Event
    size_share: float = 1.0
    """Factor of the planned divisor: less than 1 where the number of units is protected, and fewer were released than
    the bound that the divisor is planned for."""


class BatchSums(Protocol):
    """A mechanism's half of a step: a batch becomes a bounded sum, and the noisy sum a gradient."""

    def group(self, units: UnitNumbers) -> UnitNumbers:
        """Returns the number of each unit's group. Units whose gradients are averaged are in one group, and several
        processes divide a batch by groups. It depends on the unit's number and the attempt's secrets alone."""

    def batch(self, store: Store, units: UnitNumbers, seed: int) -> StoredBatch:
        """Returns the records of these units, in the groups whose gradients are averaged."""

    def summed(self, model: nn.Module, batch: StoredBatch, step: NoisyStep) -> ClippedSum:
        """Returns the bounded sum of a batch."""

    def divide(self, shards: Shards) -> None:
        """Makes sums of shards from now on: the model's weights are in shards. All processes call it.

        Raises:
            RunFailed: these sums can't be divided.
        """

    def clipping(self, step: NoisyStep) -> Clipping | None:
        """Returns the bound of a unit's gradient in a step; None where it is not a norm."""

    def gradient(self, noisy: Tensor, step: NoisyStep) -> tuple[Tensor, Tensor | float]:
        """Returns the gradient, (P,), and a factor of the update it makes.

        `noisy`: float64; it may be overwritten. It is divided by a public number of units.

        Guarantees: post-processing. It reads the noisy sum, earlier ones and public constants, and nothing else.
        """

    def figures(self) -> dict[str, float]:
        """Returns what noisy sums have decided so far, by name, to be shown."""

    def remarks(self) -> tuple[str, ...]:
        """Returns notes on how gradients were computed."""

    def state(self) -> dict[str, Any]:
        """Returns what noisy sums have decided so far, for a later attempt: tensors and numbers only."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not a state of these sums.
        """


Build = Callable[[StepContext], "NoisySteps"]
"""Makes a mechanism's program in a context."""
