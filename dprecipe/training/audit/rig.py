"""One attempt of the compiled program on synthetic records, with its doors watched: what goes to the gate, what comes
out, what the optimiser gets, which streams are drawn from, and what the ledger held at each draw.

Nothing of the program is replaced: records are synthetic, and its gate and its secrets are called through watchers that
pass everything on. The ledger is in a temporary folder.

Legend: P trained parameters.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Purpose, Secrets, Stream
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.correlation.strategies import PreviousStep
from dprecipe.privacy.events import Charge, Event
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.program.program import StepwiseProgram
from dprecipe.training.program.records import Store
from dprecipe.training.run.attempt import open_attempt
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.gate import Gate, Ticket, distribution_of, multiplier_of
from dprecipe.training.run.runner import Start
from dprecipe.training.steps.contract import Build, StepContext
from dprecipe.training.steps.noisy_steps import NoisySteps

UNBOUNDED = 1e300
"""Number that stands in evidence for one that is not finite."""


@final
@dataclass(frozen=True, slots=True)
class Seen:
    """Record of one noisy update, all float64 and on the CPU."""

    event: Event
    summed: Tensor
    """The sum before noise, (P,) or one longer."""
    bound: float | Tensor
    """Largest distance that one unit can move the sum, by the sum's own account."""
    noisy: Tensor
    gradient: Tensor
    """(P,): what the optimiser was given."""

    @property
    def distribution(self) -> Distribution:
        """Distribution of the noise, by the event."""
        return distribution_of(self.event)

    @property
    def scale(self) -> float | Tensor:
        """Scale of the noise, by the event and the sum."""
        return multiplier_of(self.event) * self.bound

    @property
    def noise(self) -> Tensor:
        """Noise that the gate added, in scales of the noise."""
        return (self.noisy - self.summed) / self.scale


@final
class WatchedSecrets:
    """Secrets that note how many streams of noise were asked for, and whether the ledger was ahead of each."""

    def __init__(self, secrets: Secrets, ledger: Path, event: Event) -> None:
        """`event`: what is drawn for. Where its noise takes back that of the step before, the stream of this step may
        be asked for once more, right after that of the next."""
        self._secrets = secrets
        self._ledger = ledger
        self._releases = event.steps
        self._takes_back = isinstance(event.strategy, PreviousStep)
        self._last = self._again = b""
        self._before = count_entries(ledger)["reserve"]
        self.draws = 0
        """Streams of noise."""
        self.early = 0
        """Number of these drawn before the ledger's file held an event for them."""
        self.repeated = 0
        """Number of these drawn a second time."""
        self.keys: set[bytes] = set()
        """Keys of the streams of noise."""

    @property
    def insecure_seed(self) -> int | None:
        return self._secrets.insecure_seed

    def replace(self, other: WatchedSecrets) -> None:
        """Draws from another's streams."""
        self._secrets = other._secrets

    def stream(self, purpose: Purpose, index: int) -> Stream:
        stream = self._secrets.stream(purpose, index)
        if purpose == "noise" and self._takes_back and stream.key == self._again:
            self._again = b""
        elif purpose == "noise":
            self._again, self._last = self._last, stream.key
            self.draws += 1
            self.repeated += stream.key in self.keys
            self.keys.add(stream.key)
            held = count_entries(self._ledger)["reserve"] - self._before
            self.early += self.draws > held * self._releases
        return stream


@final
class WatchedGate:
    """A gate that notes the sums it is given and what it returns."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.seen: list[tuple[Event, ClippedSum, Tensor]] = []

    @property
    def done(self) -> int:
        return self._gate.done

    @done.setter
    def done(self, done: int) -> None:
        self._gate.done = done

    def admit(self) -> Ticket | None:
        return self._gate.admit()

    def release(self, ticket: Ticket, clipped: ClippedSum) -> Tensor:
        kept = _keep(clipped)
        noisy = self._gate.release(ticket, clipped)
        self.seen.append((ticket.event, kept, _copy(noisy)))
        return noisy


@final
class Rig:
    """An attempt of these events on a model of its own; a context manager that lets go of the ledger.

    Attempts in one folder follow one another, as those of a run do.
    """

    def __init__(self, plan: Plan, build: Build, program: StepwiseProgram, store: Store, path: Path, charge: Charge):
        """`path`: of the run folder, which is made where there is none."""
        folder = RunFolder(path) if path.exists() else RunFolder.create(path, plan)
        self._open = ExitStack()
        start = Start(datetime.now(UTC), trial=True)  # paid steps have runs of their own, and nothing is published
        opened = open_attempt(plan, folder, start, program.provenance, {"commitment": None})
        attempt = self._open.enter_context(opened)
        self.plan, self.event, self.ledger = plan, charge.event, folder.ledger
        self.model = copy.deepcopy(program.model)
        self.secrets = WatchedSecrets(attempt.secrets, folder.ledger, charge.event)
        self._real = Gate(
            [charge],
            plan.budget,
            attempt.ledger,
            cast(Secrets, self.secrets),
            attempt.charged,
            stages=plan.stage_charges,
        )
        self.gate = WatchedGate(self._real)
        self.module = self._build(build, store)
        self.given: list[Tensor] = []
        self.module.optimizer.register_step_pre_hook(self._note_gradient)
        self.releases = charge.count * charge.event.steps
        """Number of noisy updates that the gate allows."""
        self.number = 0
        self._settled_before = count_entries(folder.ledger)["settle"]
        self.settled = 0
        """Events of this attempt that the ledger's file has settled, once it is closed."""
        self._ticket: Ticket | None = None

    def _build(self, build: Build, store: Store) -> NoisySteps:
        secrets = cast(Secrets, self.secrets)
        module = build(StepContext(self.plan, self.model, store, cast(Gate, self.gate), secrets))
        module.model.train()
        return module

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that learn, in order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def ticket(self) -> Ticket:
        """Returns the ticket of the release that comes next.

        Raises:
            RunFailed: the gate admits no further event.
        """
        if self._ticket is None or self.number == self._ticket.releases:
            self._ticket, self.number = self.gate.admit(), 0
        if self._ticket is None:
            raise InternalFault("the gate admits no further event of an audit")
        return self._ticket

    def share_noise(self, other: Rig) -> None:
        """Draws what the other attempt draws: to compare sums under the same noise."""
        self.secrets.replace(other.secrets)

    def step(self, units: UnitNumbers) -> Seen:
        """Returns one noisy update of these units.

        Raises:
            RunFailed: it takes none, as where empty batches are left out, or several.
        """
        ticket = self.ticket()
        self.module.step_on(ticket, self.number, units)
        if (len(self.gate.seen), len(self.given)) != (1, 1):
            raise RunFailed(
                f"a step with a batch of {len(units)} took {len(self.gate.seen)} noisy sums, and gave the optimiser "
                f"{len(self.given)} gradients: expected one of each, of every batch",
                "don't run it: the program does not do what is accounted for; please report this, with the plan",
            )
        self.number += 1
        self.module.events_done += self.number == ticket.releases
        event, clipped, noisy = self.gate.seen.pop()
        return Seen(event, clipped.value, clipped.bound, noisy, self.given.pop())

    def sum(self, units: UnitNumbers) -> ClippedSum:
        """Returns the bounded sum of these units as the next step would take it. Asked again, the same draws are
        made."""
        summed = self.module.sum_units(self.ticket(), self.number, units)
        return _keep(summed)

    def close(self) -> None:
        """Settles and closes the attempt; `settled` is then what the ledger's file says of it."""
        self._real.close(interrupted=True)
        self.settled = count_entries(self.ledger)["settle"] - self._settled_before

    def _note_gradient(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        grads = [parameter.grad for parameter in self.module.model.parameters()]  # in whatever groups they are
        parts = [g.detach().flatten().double().cpu() for g in grads if g is not None]
        self.given.append(torch.cat(parts))


def count_entries(ledger: Path) -> Counter[str]:
    """Counts the events of each type of line in a ledger's file, read afresh and without the ledger's own code."""
    counts: Counter[str] = Counter()
    for line in ledger.read_text("utf-8").splitlines():
        entry = json.loads(line)
        counts[entry["type"]] += sum(charge.get("count", 1) for charge in entry.get("events", ()))
    return counts


def move_between(one: ClippedSum, other: ClippedSum) -> float:
    """Returns the distance of two sums, in the bound that they state and its norm; if not finite, `UNBOUNDED`."""
    order = 1 if one.norm == "l1" else 2
    distance = float(torch.linalg.vector_norm((one.value - other.value) / one.bound, ord=order))
    return distance if np.isfinite(distance) else UNBOUNDED


def _keep(clipped: ClippedSum) -> ClippedSum:
    return replace(clipped, value=_copy(clipped.value), bound=_bound(clipped.bound))


def _copy(value: Tensor) -> Tensor:
    return value.detach().cpu().double().clone()


def _bound(bound: float | Tensor) -> float | Tensor:
    return bound.detach().cpu().double() if isinstance(bound, Tensor) else bound
