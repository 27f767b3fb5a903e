"""The program of every mechanism that steps on noisy sums: runs exactly the planned events, through the gate.

One event is a transaction: admitted and recorded, its batches drawn, each batch's bounded sum released with noise, the
optimiser moved. A transaction that is cut short is never continued; what it was charged stays charged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.language.training import Sgd
from dprecipe.models.draw_free import is_draw_free
from dprecipe.models.modules.seeded import drawing_from
from dprecipe.noise.entropy import Purpose, Secrets
from dprecipe.noisy_sum.batches import UnitNumbers, draw_batch
from dprecipe.privacy.events import Event
from dprecipe.training.canaries.contract import RunCanaries
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.sharded_sum import Shards
from dprecipe.training.processes.processes import FollowerGate, Processes, SingleProcess
from dprecipe.training.processes.sharded_weights import ShardedWeights
from dprecipe.training.processes.shards import Shard
from dprecipe.training.program.records import Store, StoredBatch
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.gate import Gate, Ticket
from dprecipe.training.steps.optimise import (
    Average,
    FlatGradient,
    apply_weight_decay,
    cut_like,
    learning_rate,
    optimizer_of,
)
from dprecipe.training.steps.snapshot import TensorSnapshot
from dprecipe.training.steps.step_failures import watch_module

CALL_SECONDS = 0.2
"""The trainer is called back at least so often: shown progress moves, and Ctrl-C is heard in every step anyway."""


@final
@dataclass(frozen=True, slots=True)
class NoisyStep:
    """One update: its number in the plan, from 0, and the event that pays for it."""

    number: int
    event: Event
    size_share: float = 1.0
    """What the planned divisor is multiplied by: less than 1 where the number of units is protected, and fewer were
    released than the bound that the divisor is planned for."""


class BatchSums(Protocol):
    """A mechanism's half of a step: how a batch becomes a sum that may be released, and the noisy sum a gradient."""

    def group(self, units: UnitNumbers) -> UnitNumbers:
        """The number of each unit's group, by which several processes divide a batch: units whose gradients are
        averaged are in one group. It depends on nothing but the unit's number and the attempt's secrets."""

    def batch(self, store: Store, units: UnitNumbers, seed: int) -> StoredBatch:
        """The records of these units, in the groups whose gradients are averaged."""

    def summed(self, model: nn.Module, batch: StoredBatch, step: NoisyStep) -> ClippedSum:
        """The bounded sum of a batch."""

    def divide(self, shards: Shards) -> None:
        """From now on the model's weights are in shards, and so are sums. All processes call it.

        Raises:
            RunFailed: they can't be.
        """

    def clipping(self, step: NoisyStep) -> Clipping | None:
        """What bounds a unit's gradient in a step; None where it is no norm."""

    def gradient(self, noisy: Tensor, step: NoisyStep) -> tuple[Tensor, Tensor | float]:
        """From the noisy sum, float64, which it may overwrite, to the gradient, (P,): divided by a public number of
        units; and a factor of the update it makes. Post-processing: reads nothing but the noisy sum, earlier ones, and
        public constants."""

    def figures(self) -> dict[str, float]:
        """What noisy sums have decided so far, by name, to be shown."""

    def remarks(self) -> tuple[str, ...]:
        """What there is to say of how sums were taken, in words."""

    def state(self) -> dict[str, Any]:
        """What noisy sums have decided so far, for a later attempt: tensors and numbers only."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not of these sums.
        """


@final
class NoisySteps(lightning.LightningModule):
    """Manual optimisation on noisy sums; the trainer only counts."""

    model: nn.Module

    def __init__(
        self, plan: Plan, model: nn.Module, store: Store, gate: Gate | FollowerGate, secrets: Secrets, sums: BatchSums
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        # Hidden from the trainer: it would attach itself to a LightningModule in there, which the probe does not, and
        # move what has no memory.
        self.__dict__["model"] = model
        self.gate = gate
        self.average = Average(plan.training.average, plan.length.steps)
        self.steps_done = 0
        """Updates the model holds."""
        self.events_done = gate.done
        """Events the model holds whole: a checkpoint is taken between events only."""
        self.pause_due: Callable[[], bool] = lambda: True
        """Whether the trainer's callbacks are to see the step that was just made; by default they see each."""
        self.gather_due: Callable[[], bool] = lambda: False
        """Whether the leader's callbacks will ask for `state` or `released_state` after the step that was just made."""
        self.stop_requested = False
        self.processes: Processes = SingleProcess()
        """Who takes part in each step: see `join`."""
        self.size_share = 1.0
        """See `NoisyStep`; set before the first."""
        self.canaries: RunCanaries | None = None
        """Those of an audited run: set before the first step, and before `restore`."""
        self.snapshot: TensorSnapshot | None = None
        """Of a module from Python, what it was: set once its weights are those it goes on from."""
        self._plan = plan
        self.sums = sums
        self._store = store
        self._secrets = secrets
        self._lr = learning_rate(plan.training.descent, plan.length)
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._shard: Shard | None = None
        self._moved: list[nn.Parameter] = []
        """What the optimiser moves: the trained parameters, or this process's shard of them."""
        self._gathered: dict[str, Any] | None = None
        self._draws = not is_draw_free(model)
        self._pending: tuple[Ticket, Iterator[tuple[int, UnitNumbers]]] | None = None
        self._move(self._trained)

    def _move(self, parameters: Sequence[nn.Parameter]) -> None:
        """Let these be what the optimiser moves."""
        self._moved = list(parameters)
        self._optimizer = optimizer_of(self._plan.training.descent, nn.ParameterList(self._moved))
        self._gradient = FlatGradient(self._moved)

    def join(self, processes: Processes) -> None:
        """Take each step together with these processes; call it before `restore` and before the first step.

        Raises:
            RunFailed: see `Shard`.
        """
        self.processes = processes
        if processes.count == 1 or self._plan.runtime.sharding == "none":
            return
        if self._plan.runtime.sharding == "parameters":
            self._shard = ShardedWeights(processes, self.model, self._store.device)
        else:
            self._shard = Shard(processes, self._trained)
        self._move([self._shard.weights])

    @property
    def is_whole(self) -> bool:
        """Whether this process has all that `state` and `released_state` need."""
        return self._shard is None or self._gathered is not None

    @property
    def is_between_events(self) -> bool:
        """True if the model holds whole events only: nothing was released of the one in hand, if any."""
        return self._pending is None or not self._pending[0].used

    def gather(self) -> None:
        """Let every process have the optimiser's state and the average whole, until the next step. All processes call
        it at the same step."""
        if self._shard is not None:
            whole = optimizer_of(self._plan.training.descent, self.model).state_dict()
            self._gathered = self._shard.collect(self._optimizer.state_dict(), whole, self.average.value)

    @property
    def steps_left(self) -> int:
        """Steps from here to the end of the plan."""
        return self._plan.length.steps - self.steps_done

    @property
    def last_rate(self) -> float:
        """The learning rate of the last step, or of the first one to come."""
        return self._lr(max(0, self.steps_done - 1))

    def request_stop(self) -> None:
        """Admit no further event."""
        self.stop_requested = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer

    def on_train_start(self) -> None:
        self.model.train()
        if isinstance(self._shard, ShardedWeights):
            self.sums.divide(self._shard)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Noisy updates, until the trainer has something to do: its own work between two calls takes a third as long
        as a step of a small model."""
        until = time.monotonic() + CALL_SECONDS
        while self.take_step() and not self.pause_due() and time.monotonic() < until:
            pass

    def take_step(self) -> bool:
        """One noisy update, or none: the refusal is in here, before noise is drawn. False when the run has ended."""
        if self._pending is None:
            ticket = self.processes.agree(lambda: None if self.stop_requested else self.gate.admit())
            if ticket is None:
                self.trainer.should_stop = True
                return False
            stream = self._secrets.stream("sampling", ticket.index)
            self._pending = (ticket, enumerate(draw_batch(ticket.event, self._units, stream)))
        ticket, batches = self._pending
        number, units = next(batches)
        self.step_on(ticket, number, units)
        if number + 1 == ticket.releases:
            self._pending = None
            self.events_done += 1
            if self.canaries is not None:
                self.canaries.end_event()
        if self._shard is not None and self.processes.agree(self.gather_due):
            self.gather()
        return True

    @property
    def _units(self) -> int:
        """What batches are drawn from."""
        return self._store.units if self.canaries is None else self.canaries.units

    def step_on(self, ticket: Ticket, number: int, units: UnitNumbers) -> None:
        """One noisy update from these units: batch `number`, from 0, of an event that is on record."""
        summed = self.sum_units(ticket, number, units)
        if self._shard is not None:
            noisy = self.gate.release(ticket, summed, self.processes.rank)
            self._update(*self.sums.gradient(noisy, NoisyStep(self.steps_done, ticket.event, self.size_share)))
            return
        noisy = self.processes.released(lambda: self.gate.release(ticket, summed), summed.value)
        if self.canaries is not None:
            self.canaries.score(noisy, ticket.event)
        self._update(*self.sums.gradient(noisy, NoisyStep(self.steps_done, ticket.event, self.size_share)))

    def sum_units(self, ticket: Ticket, number: int, units: UnitNumbers) -> ClippedSum:
        """The bounded sum of a batch, over all processes, or this process's shard of it; nobody may see it but the
        gate."""
        index, part = (ticket.index << 32) + number, self.processes.part(units, self.sums.group(units))
        sampled = None
        if self.canaries is not None:
            part, sampled = self.canaries.split(part)
        stored = self.sums.batch(self._store, part, self._seed("augmentation", index) if self._store.augments else 0)
        step = NoisyStep(self.steps_done, ticket.event, self.size_share)
        with watch_module(self.model, self.snapshot), self._draws_of_layers(index):
            summed = self.sums.summed(self.model, stored, step)
        if self.canaries is not None and sampled is not None:
            summed = self.canaries.add(summed, self.model, self.sums.clipping(step), step.number, sampled)
        if self._shard is not None:
            return self._shard.keep(summed)
        return replace(summed, value=self.processes.summed(summed.value))

    def _draws_of_layers(self, index: int) -> AbstractContextManager[None]:
        """Inside, layers draw from a seed of this step; nothing is seeded for a model that can't draw."""
        # Not the seed of augmentation: what is drawn for one record there must not be what a layer draws for another.
        return drawing_from(self._seed("layers", index), self.device) if self._draws else nullcontext()

    def _seed(self, purpose: Purpose, index: int) -> int:
        return self.processes.seed(self._secrets.stream(purpose, index))

    def try_out(self, ticket: Ticket, units: UnitNumbers) -> None:
        """All that takes memory in a step with these units, of which nothing is kept: neither weights nor what noisy
        sums decide move. The gate and the records have to be synthetic."""
        training = self.model.training
        self.model.train()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        with drawing_from(0, trained[0].device):
            summed = self.sums.summed(self.model, self.sums.batch(self._store, units, 0), NoisyStep(0, ticket.event))
        noisy = self.gate.release(ticket, summed)
        copies = [nn.Parameter(parameter.detach().clone()) for parameter in trained]
        for copy, part in zip(copies, cut_like(noisy[: sum(p.numel() for p in trained)], trained), strict=True):
            copy.grad = part.to(copy)
        optimizer_of(self._plan.training.descent, nn.ParameterList(copies)).step()
        self.model.train(training)

    def _update(self, gradient: Tensor, factor: Tensor | float) -> None:
        spec, lr, optimizer = self._plan.training.descent, self._lr(self.steps_done), self._optimizer
        for group in optimizer.param_groups:
            group["lr"] = lr
        # A plain step is linear in the gradient. Others divide its scale away: there the update itself is scaled.
        linear = isinstance(spec, Sgd)
        if linear and not _is_one(factor):
            gradient = gradient * factor
        self._gradient.set(gradient)
        apply_weight_decay(spec, optimizer, lr)
        before = None if linear or _is_one(factor) else [parameter.detach().clone() for parameter in self._moved]
        optimizer.step()
        if before is not None:
            factors = cut_like(torch.as_tensor(factor, dtype=torch.float64).expand(gradient.numel()), self._moved)
            with torch.no_grad():
                for parameter, old, scale in zip(self._moved, before, factors, strict=True):
                    parameter.copy_(old + scale.to(parameter) * (parameter - old))
        self.average.take(self.steps_done, self._moved)
        self.steps_done += 1
        if self._shard is not None:
            self._shard.spread()
            self._gathered = None

    def figures(self) -> dict[str, float]:
        """What noisy sums have decided besides the weights, by name."""
        return self.sums.figures()

    def remarks(self) -> tuple[str, ...]:
        """What there is to say of how sums were taken, in words."""
        return self.sums.remarks()

    def state(self) -> dict[str, Any]:
        """All that a later attempt needs: tensors and numbers only."""
        return {
            "events_done": self.events_done,
            "steps_done": self.steps_done,
            "model": self._weights(),
            "optimizer": self._optimizer.state_dict() if self._shard is None else self._whole("optimizer"),
            "average": self._average(),
            "average_count": self.average.count,
            "sums": self.sums.state(),
            "canaries": None if self.canaries is None else self.canaries.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, but never from the batches or the noise of the attempt it is from."""
        self.sums.restore(state["sums"])
        if self.canaries is not None:
            self.canaries.restore(state["canaries"])
        self.events_done = int(state["events_done"])
        self.steps_done = int(state["steps_done"])
        self.gate.done = self.events_done
        optimizer, average, self.average.count = state["optimizer"], state["average"], int(state["average_count"])
        if self._shard is None:
            self.model.load_state_dict(state["model"])
        else:
            self._shard.load(self.model, state["model"])
            optimizer = self._shard.cut_state(optimizer, self._optimizer.state_dict())
            average = self._shard.cut_average(average)
        self._optimizer.load_state_dict(optimizer)
        self.average.value = None if average is None else average.to(next(self.model.parameters()).device)

    def _average(self) -> Tensor | None:
        average: Tensor | None = self.average.value if self._shard is None else self._whole("average")
        return average

    def _whole(self, key: str) -> Any:
        if self._gathered is None:
            raise RunFailed("internal fault: shards were not gathered", "please report this")
        return self._gathered[key]

    def _weights(self) -> dict[str, Tensor]:
        if isinstance(self._shard, ShardedWeights):
            weights: dict[str, Tensor] = self._whole("model")
            return weights
        return self.model.state_dict() if self.snapshot is None else self.snapshot.weights()

    def released_state(self) -> dict[str, Tensor]:
        """The weights that are released: the average where there is one."""
        copy = {name: value.detach().clone() for name, value in self._weights().items()}
        average = self._average()
        if average is not None:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            parts = dict(zip(map(id, trained), cut_like(average, trained), strict=True))
            named = self.model.named_parameters(remove_duplicate=False)  # a shared tensor has several names
            copy.update((name, parts[id(p)].clone()) for name, p in named if id(p) in parts)
        return copy


Build = Callable[[Plan, nn.Module, Store, Gate | FollowerGate, Secrets], NoisySteps]
"""Makes a mechanism's program of a plan, a model and its records."""


def _is_one(factor: Tensor | float) -> bool:
    return isinstance(factor, float) and factor == 1.0
