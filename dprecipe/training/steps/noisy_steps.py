"""The program of every mechanism that steps on noisy sums: runs exactly the planned events, through the gate.

One event is a transaction: admitted and recorded, its batches drawn, each batch's bounded sum released with noise, the
optimiser moved. A transaction that is cut short is never continued; what it was charged stays charged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from dprecipe.faults import InternalFault
from dprecipe.models.modules.draws import drawing_from
from dprecipe.models.modules.inspection import is_draw_free
from dprecipe.noise.entropy import Purpose
from dprecipe.noisy_sum.batches import ORDER, UnitNumbers, UnitParts, draw_batch, stream_number
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.processes.sharded_weights import ShardedWeights
from dprecipe.training.processes.shards import Shard
from dprecipe.training.run.gate import Ticket
from dprecipe.training.steps.contract import BatchSums, NoisyStep, StepContext
from dprecipe.training.steps.filters import filter_of
from dprecipe.training.steps.optimise import Average, FlatGradient, cut_like, optimizer_of
from dprecipe.training.steps.step_failures import TensorSnapshot, watch_module
from dprecipe.training.steps.updates import updates_of

AVERAGE = "average"
"""The name of the average among the vectors of a state."""


@final
class NoisySteps:
    """Training on noisy sums alone. A trainer only counts the steps: see `NoisyModule`.

    | component | what it does |
    |---|---|
    | `gate` | admits events, which are on record before there is a ticket; adds their noise |
    | `sums` | the mechanism's half: a batch to a bounded sum, a noisy sum to a gradient |
    | `context.store` | the records of the units of a batch, on the device |
    | `context.processes` | the processes that take each step together |
    | `canaries` | synthetic units of an audited run |
    | `filter` | an estimate of the gradient, made of noisy ones |
    | `updates` and `average` | move the weights, or this process's shard of them |

    The loop, without shards, canaries and filter::

        while ticket := gate.admit():                                 # else the plan or the budget is at its end
            for units in draw_batch(ticket.event, store.units, secrets):
                clipped = sums.summed(model, sums.batch(store, units), step)
                noisy = gate.release(ticket, clipped)                 # no other function releases a sum
                gradient, factor = sums.gradient(noisy, step)         # post-processing
                updates.take(step)
    """

    def __init__(self, context: StepContext, sums: BatchSums) -> None:
        """Divides the weights into shards if the plan says so.

        Raises:
            RunFailed: see `Shard` and `updates_of`.
        """
        plan, model = context.plan, context.model
        self.model = model
        self.context = context
        self.gate = context.gate
        self.processes = context.processes
        self.canaries = context.canaries
        self.average = Average(plan.training.average, plan.length.steps)
        self.filter = filter_of(plan.training.filter)
        self.steps_done = 0
        """Number of updates that the model holds."""
        self.events_done = context.gate.done
        """Number of events that the model holds whole: a checkpoint is taken between events only."""
        self.pause_due: Callable[[], bool] = lambda: True
        """Returns True if the trainer's callbacks are to see the last step; by default they see each."""
        self.gather_due: Callable[[], bool] = lambda: False
        """Returns True if the leader's callbacks will ask for `state` or `released_state` after the last step."""
        self.stop_requested = False
        self.snapshot: TensorSnapshot | None = None
        """Tensors of a module from Python, as they were before the first step of this attempt: see `begin`."""
        self._plan = plan
        self.sums = sums
        self._store = context.store
        self._secrets = context.secrets
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._shard: Shard | None = None
        if context.processes.count > 1 and plan.runtime.sharding == "parameters":
            self._shard = ShardedWeights(context.processes, model, context.store.device)
        elif context.processes.count > 1 and plan.runtime.sharding != "none":
            self._shard = Shard(context.processes, self._trained)
        self._moved = self._trained if self._shard is None else [self._shard.weights]
        """Parameters that the optimiser moves: the trained ones, or this process's shard of them."""
        self.updates = updates_of(plan, model, self._moved)
        self._gradient = FlatGradient(self._moved)
        self._gathered: dict[str, Any] | None = None
        self._fixed: dict[str, Any] | None = None
        self._draws = not is_draw_free(model)
        self._pending: tuple[Ticket, Iterator[tuple[int, UnitNumbers]]] | None = None
        self._parts: UnitParts | None = None  # of this attempt

    @property
    def is_whole(self) -> bool:
        """True if this process has all that `state` and `released_state` need."""
        return self._shard is None or self._gathered is not None

    @property
    def is_between_events(self) -> bool:
        """True if the model holds whole events only: nothing was released of the one in hand, if any."""
        return self._pending is None or not self._pending[0].used

    def gather(self) -> None:
        """Gives every process the optimiser's state, the average and the filter whole, until the next step. All
        processes call it at the same step."""
        if self._shard is not None:
            whole = optimizer_of(self._plan.training.descent, self.model).state_dict()
            self._gathered = self._shard.collect(self.optimizer.state_dict(), whole, self._own_vectors)

    @property
    def steps_left(self) -> int:
        """Steps from here to the end of the plan."""
        return self._plan.length.steps - self.steps_done

    @property
    def last_rate(self) -> float:
        """The learning rate of the last step, or of the first one to come."""
        return self.updates.rate(max(0, self.steps_done - 1))

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self.updates.optimizer

    def request_stop(self) -> None:
        """Ends the run before its next event."""
        self.stop_requested = True

    @property
    def device(self) -> torch.device:
        return self._store.device

    def start(self) -> None:
        """Makes ready for the first step; called once."""
        self.model.train()
        if isinstance(self._shard, ShardedWeights):
            self.sums.divide(self._shard)

    def take_step(self) -> bool:
        """Takes one noisy update, or returns False at the end of the run. The refusal comes before noise is drawn."""
        if self._pending is None:
            ticket = self.processes.agree(lambda: None if self.stop_requested else self.gate.admit())
            if ticket is None:
                return False
            stream = self._secrets.stream("sampling", stream_number(ticket.event, ticket.index))
            if self._parts is None:
                self._parts = UnitParts.deal(ticket.event, self._units, self._secrets.stream("sampling", ORDER))
            self._pending = (ticket, enumerate(draw_batch(ticket.event, self._units, stream, self._parts)))
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
        """Number of units that batches are drawn from."""
        return self._store.units if self.canaries is None else self.canaries.units

    def step_on(self, ticket: Ticket, number: int, units: UnitNumbers) -> None:
        """Takes one noisy update from these units: batch `number`, from 0, of an event that is on record."""
        summed = self.sum_units(ticket, number, units)
        if self._shard is not None:
            noisy = self.gate.release(ticket, summed, self.processes.rank)
        else:
            noisy = self.processes.released(lambda: self.gate.release(ticket, summed), summed.value)
            if self.canaries is not None:
                self.canaries.score(noisy, ticket.event, units)
        gradient, factor = self.sums.gradient(noisy, self._next_step(ticket))
        if self.filter is not None:
            gradient = self.filter.estimate(gradient)
            self.filter.note(self._moved)
        self._update(gradient, factor)

    def _next_step(self, ticket: Ticket) -> NoisyStep:
        return NoisyStep(self.steps_done, ticket.event, self.context.size_share)

    def sum_units(self, ticket: Ticket, number: int, units: UnitNumbers) -> ClippedSum:
        """Returns the bounded sum of a batch, over all processes, or this process's shard of it. Only the gate may see
        it."""
        index, part = (ticket.index << 32) + number, self.processes.part(units, self.sums.group(units))
        sampled = None
        if self.canaries is not None:
            part, sampled = self.canaries.split(part)
        stored = self.sums.batch(self._store, part, self._seed("augmentation", index) if self._store.augments else 0)
        step = self._next_step(ticket)
        with self._ahead():
            with watch_module(self.model, self.snapshot), self._draws_of_layers(index):
                summed = self.sums.summed(self.model, stored, step)
            if self.canaries is not None and sampled is not None:
                summed = self.canaries.add(summed, self.model, self.sums.clipping(step), step.number, sampled)
        if self._shard is not None:
            return self._shard.keep(summed)
        return replace(summed, value=self.processes.summed(summed.value))

    @contextmanager
    def _ahead(self) -> Iterator[None]:
        """Inside, the weights are where the filter takes its sums; afterwards as before, to the bit."""
        if self.filter is None or not self.filter.is_ahead:
            yield
            return
        has_copies = self._shard is not None and not isinstance(self._shard, ShardedWeights)
        held = [*self._moved, *self._trained] if has_copies else self._moved
        kept = [parameter.detach().clone() for parameter in held]
        try:
            self.filter.lead(self._moved)
            if self._shard is not None:
                self._shard.spread()
            yield
        finally:
            with torch.no_grad():
                for parameter, before in zip(held, kept, strict=True):
                    parameter.copy_(before)

    def _draws_of_layers(self, index: int) -> AbstractContextManager[None]:
        """Inside, layers draw from a seed of this step; nothing is seeded for a model that can't draw."""
        # Not the seed of augmentation: what is drawn for one record there must not be what a layer draws for another.
        return drawing_from(self._seed("layers", index), self.device) if self._draws else nullcontext()

    def _seed(self, purpose: Purpose, index: int) -> int:
        return self.processes.seed(self._secrets.stream(purpose, index))

    def try_out(self, ticket: Ticket, units: UnitNumbers) -> None:
        """Takes a step with these units, and keeps nothing of it: neither weights nor what noisy sums decide move.

        The gate and the records have to be synthetic."""
        training = self.model.training
        self.model.train()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        with drawing_from(0, trained[0].device):
            summed = self.sums.summed(self.model, self.sums.batch(self._store, units, 0), NoisyStep(0, ticket.event))
        noisy, rehearsed = self.gate.release(ticket, summed), filter_of(self._plan.training.filter)
        if rehearsed is not None:  # it takes the memory that a step takes
            noisy = rehearsed.estimate(noisy)
            rehearsed.note(trained)
        optimizer, copies = self.updates.copy_to_try(trained)
        for copy, part in zip(copies, cut_like(noisy[: sum(p.numel() for p in trained)], trained), strict=True):
            copy.grad = part.to(copy)
        optimizer.step()
        self.model.train(training)

    def _update(self, gradient: Tensor, factor: Tensor | float) -> None:
        # A plain step is linear in the gradient. Others divide its scale away: there the update itself is scaled.
        linear = self.updates.is_linear
        if linear and not _is_one(factor):
            gradient = gradient * factor
        self._gradient.set(gradient)
        before = None if linear or _is_one(factor) else [parameter.detach().clone() for parameter in self._moved]
        self.updates.take(self.steps_done)
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
        """Returns what noisy sums have decided besides the weights, by name."""
        return self.sums.figures()

    def remarks(self) -> tuple[str, ...]:
        """Returns notes on how gradients were computed."""
        return self.sums.remarks()

    def fix_state(self, state: dict[str, Any]) -> None:
        """Makes this the state, whatever comes: what is there now is not what noisy steps have left."""
        self._fixed = state

    def state(self) -> dict[str, Any]:
        """Returns all that a later attempt needs: tensors and numbers only.

        Where somebody's trainer stopped within an event, its updates stay in the model, and are not counted: the event
        is charged, and never continued.
        """
        return self._fixed or {
            "events_done": self.events_done,
            "steps_done": self.steps_done - (0 if self._pending is None else self._pending[0].used),
            "model": self._weights(),
            "optimizer": self.optimizer.state_dict() if self._shard is None else self._whole("optimizer"),
            "rates": self.updates.state(),
            "vectors": self._vectors,
            "average_count": self.average.count,
            "filter_count": 0 if self.filter is None else self.filter.count,
            "sums": self.sums.state(),
            "canaries": None if self.canaries is None else self.canaries.state(),
        }

    def begin(self, state: dict[str, Any] | None, *, from_python: bool) -> None:
        """Takes the state that an earlier attempt left, if any; call it before the first step.

        From here on, what a module from Python changes by itself is seen. Our own modules never change their tensors.
        """
        if state is not None:
            self.restore(state)
        if from_python:
            self.snapshot = TensorSnapshot(self.model)

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`, but never from the batches or the noise of the attempt it is from."""
        self.sums.restore(state["sums"])
        if self.canaries is not None:
            self.canaries.restore(state["canaries"])
        self.events_done = int(state["events_done"])
        self.steps_done = int(state["steps_done"])
        self.gate.done = self.events_done
        optimizer, vectors, self.average.count = state["optimizer"], state["vectors"], int(state["average_count"])
        if self._shard is None:
            self.model.load_state_dict(state["model"])
        else:
            self._shard.load(self.model, state["model"])
            optimizer = self._shard.cut_state(optimizer, self.optimizer.state_dict())
            vectors = {name: self._shard.cut_vector(vector) for name, vector in vectors.items()}
        self.optimizer.load_state_dict(optimizer)
        self.updates.restore(state["rates"])
        device = next(self.model.parameters()).device
        vectors = {name: vector.to(device) for name, vector in vectors.items()}
        self.average.value = vectors.pop(AVERAGE, None)
        if self.filter is not None:
            self.filter.restore(int(state["filter_count"]), vectors)

    @property
    def _own_vectors(self) -> dict[str, Tensor]:
        """The average and the filter's vectors, by name, of what this process moves."""
        average = {} if self.average.value is None else {AVERAGE: self.average.value}
        return average if self.filter is None else {**average, **self.filter.vectors}

    @property
    def _vectors(self) -> dict[str, Tensor]:
        """The same of all weights."""
        vectors: dict[str, Tensor] = self._own_vectors if self._shard is None else self._whole("vectors")
        return vectors

    def _whole(self, key: str) -> Any:
        if self._gathered is None:
            raise InternalFault("shards were not gathered")
        return self._gathered[key]

    def _weights(self) -> dict[str, Tensor]:
        if isinstance(self._shard, ShardedWeights):
            weights: dict[str, Tensor] = self._whole("model")
            return weights
        return self.model.state_dict() if self.snapshot is None else self.snapshot.weights()

    def released_state(self) -> dict[str, Tensor]:
        """Returns the weights that are released: the average if there is one."""
        copy = {name: value.detach().clone() for name, value in self._weights().items()}
        average = self._vectors.get(AVERAGE)
        if average is not None:
            trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
            parts = dict(zip(map(id, trained), cut_like(average, trained), strict=True))
            named = self.model.named_parameters(remove_duplicate=False)  # a shared tensor has several names
            copy.update((name, parts[id(p)].clone()) for name, p in named if id(p) in parts)
        return copy


def _is_one(factor: Tensor | float) -> bool:
    return isinstance(factor, float) and factor == 1.0
