"""The gate: may this event be spent? Then record it, then let noise be drawn, in this order and nowhere else.

The check is "would the next event exceed the budget?", and of a run that is charged to an account "would it exceed what
the account has reserved?", asked before noise is drawn and before the optimiser moves.
`release` is the only function that returns a noisy sum, and it asks for a ticket that only `admit` gives out, after
the ledger holds the event.

Formal guarantee: the events in a run's ledger account for every noisy sum released in all of its attempts. The gate
reserves an event only within the budget: either the event is part of the solved plan, or the accountant bounds all
charges including this event by the budget.

| case | what happens |
|---|---|
| the plan is complete, or the budget can't hold another event | no ticket: nothing is drawn |
| an empty batch | its sum of zeros is released with noise, and charged like any other |
| a non-finite record | the clipped sum already excludes it (`engine.clipped_sum`); the charge is the same |
| a noise scale of 0 | a fault (`dprecipe.training.steps.noise`): no sum is released without noise |
| noise can't be added (no memory) | nothing is released; with bands, what was kept is dropped, and noise begins again |
| a ticket that is used up, or a sum bounded in another norm than the event's | a fault, before noise is drawn |
| a crash between reservation and settlement | the whole block counts as spent |
| the ledger can't be written | a fault, before noise is drawn |
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from dprecipe.contract.plan import PlanBudget
from dprecipe.faults import InternalFault
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy import calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlation.strategies import Banded, PreviousStep
from dprecipe.privacy.events import Charge, Event, count_by_event, count_events, run_lengths
from dprecipe.privacy.ledger import LedgerWriter, StopReason
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.sizes import widest_type
from dprecipe.training.steps.noise import Term, add_noise

# The ledger may take at most this share of the time between events; blocks grow until it does.
LEDGER_SHARE = 0.01
# A crash loses at most one block: no block has more events than this, or than a fiftieth of the plan.
MAX_BLOCK = 64


def distribution_of(event: Event) -> Distribution:
    """Returns the distribution of an event's noise, at unit scale.

    Raises:
        RunFailed: the event is not a noisy sum.
    """
    distribution = event.noise_distribution()
    if distribution is None:
        raise InternalFault(f"a {event.kind} is not a noisy sum")
    return distribution


def multiplier_of(event: Event) -> float:
    """Returns the scale of an event's noise, over its sensitivity.

    Raises:
        RunFailed: the event is not a noisy sum.
        ValueError: the event has several multipliers.
    """
    distribution_of(event)
    (multiplier,) = event.multipliers
    return multiplier


@final
class Ticket:
    """Permission to release the noisy sums of one event that is on record."""

    def __init__(self, event: Event, index: int) -> None:
        self.event = event
        self.index = index
        """Number of the event within this attempt; it selects the event's secret streams."""
        self.releases = event.steps
        self.used = 0


@final
class SumNoise:
    """Adds the noise of events that are on record, from the secret streams of an attempt.

    Of noise that is correlated over steps something is kept, in memory alone: a number, by which the draw of the step
    before is taken again from its stream, or of bands the noise itself. The first release of an attempt has none before
    it.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._before: dict[int, int] = {}
        """The number of the last release's stream, by shard."""
        self._noises: dict[int, deque[Tensor]] = {}
        """The noise of the last releases with bands, the latest last, by shard: in scales, which may differ from step
        to step, and in float64, since errors of a recursion depend on what was released."""

    def release(self, ticket: Ticket, clipped: ClippedSum, shard: int = 0) -> Tensor:
        """Returns the clipped sum plus noise: (P,) float64, on the sum's device (on the CPU for Apple's GPU, which has
        no float64). The sum is overwritten. A ticket allows as many releases as its event has.

        `shard`: which part of the coordinates it is, where several processes have one each.

        Guarantees: the noise has the event's distribution at scale `noise_multiplier` × the sum's own sensitivity (for
        Gaussian noise, its standard deviation), is added in float64, and comes from a stream that no other release
        or shard uses; the result is on a lattice that does not depend on the sum (`dprecipe.training.steps.noise`).
        Of an event with correlated noise this is the fresh noise; what its strategy takes back of the releases before,
        at this scale, is taken from it.

        Raises:
            RunFailed: the ticket is used up, or the sum is bounded in another norm than the event's.
            ValueError: the scale is not positive, or too small or too large for a lattice.
        """
        if not ticket.used < ticket.releases:
            raise InternalFault("the ledger does not hold the requested noisy sum")
        if clipped.norm != ticket.event.norm:
            raise InternalFault(f"a sum bounded in the {clipped.norm} norm, for an event in {ticket.event.norm}")
        ticket.used += 1
        noises = self._noises.pop(shard, deque[Tensor]())  # a release that fails leaves none: noise begins again
        number = (shard << 64) + (ticket.index << 32) + ticket.used
        before, self._before[shard] = self._before.get(shard), number
        stream, strategy = self._secrets.stream("noise", number), ticket.event.strategy
        scale = multiplier_of(ticket.event) * clipped.sensitivity(Neighbouring.ADD_OR_REMOVE_ONE)
        value = clipped.value.detach().to(widest_type(clipped.value.device), torch.float64)
        earlier: list[Term | Tensor] = []
        if isinstance(strategy, PreviousStep) and strategy.previous and before is not None:
            earlier = [(-strategy.previous, self._secrets.stream("noise", before))]
        elif isinstance(strategy, Banded) and len(strategy.bands) > 1:
            earlier = [self._take_back(strategy, value, noises)]
        noisy = add_noise(
            value,
            distribution_of(ticket.event),
            scale.to(value) if isinstance(scale, Tensor) else scale,
            stream,
            *earlier,
        )
        self._noises[shard] = noises
        return noisy

    def _take_back(self, strategy: Banded, like_P: Tensor, noises: deque[Tensor]) -> Tensor:
        """Returns -Σ c_j w_{t-j}, in scales, in the memory that w_t of this release takes: the last of `noises`."""
        weights = strategy.bands[1:]
        taken_P = noises.popleft().mul_(-weights[-1]) if len(noises) == len(weights) else torch.zeros_like(like_P)
        for weight, noise_P in zip(weights, reversed(noises), strict=False):  # fewer, at first
            taken_P.sub_(noise_P, alpha=weight)
        noises.append(taken_P)
        return taken_P


@final
class Gate:
    """Stands between the clipped sums of a run and everything else."""

    def __init__(
        self,
        events: Sequence[Charge],
        budget: PlanBudget,
        ledger: LedgerWriter,
        secrets: Secrets,
        charged: Sequence[Charge] = (),
        done: int = 0,
        stages: Sequence[Charge] = (),
    ) -> None:
        """Guard a run of `events`, the first `done` of which are already in the model.

        `charged`: everything spent before, whether or not it is in the model. `stages`: what the plan was solved for
        besides these events: paid steps of preprocessing.
        """
        self.planned = run_lengths(events)
        self.done = done
        self.stop_reason: StopReason | None = None
        self._stages = tuple(stages)
        self._budget = budget
        self._ledger = ledger
        self._noise = SumNoise(secrets)
        self._charged = run_lengths(charged)
        self._block: tuple[Event, int, int] | None = None  # event, reserved, admitted
        self._admitted = 0
        self._ticket: Ticket | None = None
        self._left: tuple[Event, int] | None = None
        self._ledger_seconds = 0.0
        self._last = time.monotonic()
        self._step_seconds = 0.0

    @property
    def spent(self) -> tuple[Charge, ...]:
        """Returns the charges that count as spent if the run is settled now."""
        block = [] if self._block is None else [Charge(self._block[0], self._block[2])]
        return run_lengths([*self._charged, *block])

    def admit(self) -> Ticket | None:
        """Returns a ticket for the next event, which the ledger holds; `None` if the run is complete or out of
        budget."""
        if self.stop_reason is not None:
            return None
        following = self._next()
        if following is None:
            self.stop_reason = "completed"
            return None
        event = following.event
        now = time.monotonic()
        self._step_seconds, self._last = now - self._last, now
        if self._block is not None and (self._block[0] != event or self._block[1] == self._block[2]):
            self.settle()
        if self._block is None and not self._reserve(following):
            self.stop_reason = "budget"
            return None
        block = self._block
        if block is None:
            raise InternalFault("the gate has no reservation")
        self._block = (block[0], block[1], block[2] + 1)
        self._admitted += 1
        self.done += 1
        self._ticket = Ticket(event, self._admitted)
        return self._ticket

    def release(self, ticket: Ticket, clipped: ClippedSum, shard: int = 0) -> Tensor:
        """Returns the clipped sum plus noise: see `SumNoise.release`. The ticket is the last one that was given."""
        if ticket is not self._ticket:
            raise InternalFault("this gate gave no such ticket, or has given another one since")
        return self._noise.release(ticket, clipped, shard)

    def close(self, interrupted: bool = False) -> StopReason:
        """Settles the events that ran and closes the attempt in the ledger; returns why it ended."""
        reason: StopReason = "interrupted" if interrupted or self.stop_reason is None else self.stop_reason
        self.settle()
        self._ledger.close(reason)
        self.stop_reason = reason
        return reason

    def _next(self) -> Charge | None:
        """Returns the next event, and how many more times in a row it is planned."""
        remaining = self.done
        for charge in self.planned:
            if remaining < charge.count:
                return Charge(charge.event, charge.count - remaining)
            remaining -= charge.count
        return None

    def _reserve(self, following: Charge) -> bool:
        event = following.event
        max_count = min(MAX_BLOCK, max(1, count_events(self.planned) // 50), following.count)
        count = event.line_weight  # events with long ledger lines are reserved several per line
        if self._step_seconds > 0:
            count = max(count, math.ceil(self._ledger_seconds / (LEDGER_SHARE * self._step_seconds)))
        count = min(max(1, count), max_count, self._affordable(event, max_count))
        if count < 1:
            return False
        start = time.monotonic()
        self._ledger.reserve(event, count)
        self._ledger_seconds = time.monotonic() - start
        self._block = (event, count, 0)
        if self._left is not None:
            self._left = (event, self._left[1] - count)
        return True

    def _affordable(self, event: Event, count: int) -> int:
        """Returns the number of further events like this one that fit into the budget, up to `count`."""
        after = [*self._charged, Charge(event, count)]
        is_planned = count_by_event(after) <= count_by_event((*self._stages, *self.planned))
        if is_planned and self._budget.is_reserved(after):
            return count  # part of the solved plan
        if self._left is None or self._left[0] != event:
            self._left = (event, self._count_affordable(event))
        return min(count, self._left[1])

    def _count_affordable(self, event: Event) -> int:
        """Returns the number of further events like this one that fit into the budget, at most all that are planned."""
        budget, planned = self._budget, count_events(self.planned)
        if budget.holds([*self._charged, Charge(event, planned)]):
            return planned
        if not budget.holds([*self._charged, Charge(event, 1)]):
            return 0
        terms = (budget.delta, budget.neighbouring, budget.accountant)
        affordable = calibrate.calibrate_count(event, budget.epsilon, *terms, self._charged)
        return self._count_reserved(event, affordable)

    def _count_reserved(self, event: Event, affordable: int) -> int:
        """Returns how many of `affordable` further events the account's reservation covers: all without an account."""
        is_reserved = self._budget.is_reserved
        if is_reserved([*self._charged, Charge(event, affordable)]):
            return affordable
        covered = 0
        while affordable - covered > 1:
            middle = (covered + affordable) // 2
            covered, affordable = (
                (middle, affordable) if is_reserved([*self._charged, Charge(event, middle)]) else (covered, middle)
            )
        return covered

    def settle(self) -> None:
        """Settles the events that ran."""
        if self._block is None:
            return
        event, _, admitted = self._block
        self._ledger.settle(event, admitted)
        self._charged = run_lengths([*self._charged, Charge(event, admitted)])
        self._block = None
