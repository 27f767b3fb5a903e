"""A recipe's run in a fixed order as arithmetic: its passes, the share λ, and the passes that a budget holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.correlated.schema import Correlated, PreviousStepNoise
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.clipped_plan import Phase
from dprecipe.noisy_sum.sampling import FixedOrderSampling, Pace
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlated_sums import CycleGaussian
from dprecipe.privacy.events import Charge

MAX_PASSES = 1000
"""The most passes of a run: each is an event of its own in plan, ledger and certificate."""
NOISE = "mechanism.noise.multiplier"


class PassesRun:
    """A recipe's run as arithmetic; its sampling is a fixed order."""

    def __init__(self, noise: PreviousStepNoise, sampling: FixedOrderSampling, spec: Correlated, facts: Facts) -> None:
        self.noise, self.sampling, self.spec, self.facts = noise, sampling, spec, facts
        self.pace = Pace.of(sampling, facts.size)
        self.batches = self.pace.steps_per_event

    @property
    def passes(self) -> int | None:
        """The number of passes that the recipe asks for; None: as many as the budget holds."""
        return self.problem.events

    @cached_property
    def problem(self) -> solve.Problem:
        written = self.noise.multiplier
        multiplier = None if written == "auto" else float(written)
        return solve.Problem(self.facts, self.pace, self.charges, multiplier, NOISE, opening=None)

    def previous(self, passes: int) -> float:
        """Returns λ of a run of this many passes."""
        written = self.noise.previous
        return choose_share(self.batches, passes) if written == "auto" else float(written)

    def charges(self, multiplier: float, passes: int) -> tuple[Charge, ...]:
        """Returns the charges of a run of this many passes."""
        previous = self.previous(passes)
        block = self.sampling.block_size
        return tuple(Charge(CycleGaussian(multiplier, previous, self.batches, e, block), 1) for e in range(passes))

    def phases(self, charges: tuple[Charge, ...], norm: float) -> tuple[Phase, ...]:
        """Returns a phase for each pass, at one clip norm."""
        return tuple(Phase(charge, norm, self.pace.expected_batch) for charge in charges)

    @property
    def least_multiplier(self) -> float:
        """The least noise multiplier of a pass that protects anything: that of a full batch, for what a unit moves in
        the last pass."""
        last = self.charges(1.0, self.passes or 1)[-1].event
        return solve.MIN_NOISE * math.sqrt(last.energy) if isinstance(last, CycleGaussian) else solve.MIN_NOISE

    @property
    def chosen(self) -> dict[str, float | int]:
        """λ where it is `auto` and follows from the length, by its path."""
        return {} if self.noise.previous != "auto" else {"mechanism.noise.previous": self.previous(self.passes or 1)}

    def solve_length(self) -> tuple[dict[str, float | int], PassesRun]:
        """Returns the length that was `auto`, by its path, and the run of that length: the most passes within the
        budget.

        Raises:
            PlanRefused: it holds none (P102), or more than a run may have (P178).
        """
        limit = min(MAX_PASSES, solve.MAX_STEPS // self.batches)
        multiplier = self.problem.multiplier
        if multiplier is None or self.facts.cap is None:
            raise PlanRefused([solve.two_free_variables(NOISE)])
        _, one = self._lasting(1)
        if findings := solve.check_batch_sizes(one.pace, one.facts) or solve.check(one.problem):
            raise PlanRefused(findings)
        if self._holds(multiplier, limit):
            raise PlanRefused([refuse_passes("the budget holds", limit, self)])
        fits, exceeds = 1, limit
        while exceeds - fits > 1:
            middle = (fits + exceeds) // 2
            fits, exceeds = (middle, exceeds) if self._holds(multiplier, middle) else (fits, middle)
        return self._lasting(fits)

    def _holds(self, multiplier: float, passes: int) -> bool:
        from dprecipe.privacy import accountants

        budget, cap = self.facts.budget, self.facts.cap
        relation = Neighbouring(budget.neighbouring)
        charges = self.problem.compose(multiplier, passes)
        return cap is not None and accountants.epsilon(charges, budget.delta, relation, budget.accountant) <= cap

    def _lasting(self, passes: int) -> tuple[dict[str, float | int], PassesRun]:
        training = self.facts.training
        length: Mapping[str, float | int]
        length = {"steps": passes * self.batches} if training.steps is not None else {"epochs": float(passes)}
        facts = replace(self.facts, training=training.model_copy(update=dict(length)))
        return {f"training.{name}": value for name, value in length.items()}, PassesRun(
            self.noise, self.sampling, self.spec, facts
        )


def refuse_passes(start: str, limit: int, run: PassesRun) -> Finding:
    """Returns the finding for a run of more than `limit` passes."""
    in_steps = run.facts.training.steps is not None
    path = "training.steps" if in_steps else "training.epochs"
    return Finding(
        "P178",
        f"{start} more than {limit:,} passes: each of them is an event",
        f"set {path} to {'a multiple of ' + str(run.batches) + ', ' if in_steps else ''}at most "
        f"{limit * run.batches if in_steps else limit}; or use mechanism.kind dpsgd",
        path,
    )


@lru_cache(maxsize=4096)
def choose_share(batches: int, passes: int) -> float:
    """Returns the λ that leaves the least noise in the iterates, of a fixed grid."""
    from dprecipe.privacy.correlation.choice import choose_previous

    return choose_previous(batches, passes).previous
