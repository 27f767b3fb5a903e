"""Solves a run of noisy steps: any one of noise, length and budget follows from the other two.

Shared by the mechanisms that step on noisy sums. *Guarantees*: the charges of a `Solution` spend at most the budget,
by the accountant the budget names. At the end are the checks of noise that has several phases.

The accountants are imported inside the functions that use them: a recipe whose noise is `auto` validates without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Assumption, Length
from dprecipe.contract.stages import find_overspent_stages
from dprecipe.data.facts import describe_size
from dprecipe.faults import Finding, PlanRefused
from dprecipe.noisy_sum.sampling import Pace, count_steps
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.screen import keeps

MAX_STEPS = 10_000_000
MIN_NOISE = 0.2
AS_MANY = "(or to auto: as many as the budget holds)"
"""The addition to a remedy that names the largest length."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A run with one unknown, or none.

    `charges(multiplier, events)` is what `events` events release; the multiplier is that of the noise written at
    `path`: the one that is solved if it is `auto` (`multiplier` is `None`), and offered as a remedy otherwise. From
    event `opening` on all events are equal, so that the maximum number can be solved; `None`: they never are, and a
    run of another length has other events.
    """

    facts: Facts
    pace: Pace
    charges: Callable[[float, int], tuple[Charge, ...]]
    multiplier: float | None
    path: str
    opening: int | None = 0
    remedy: Callable[[float], str] | None = None
    """A function that writes how to set the noise to a multiplier; None if a number at `path` is enough."""

    @property
    def events(self) -> int | None:
        """Number of events that the recipe asks for; `None`: as many as the budget allows."""
        training = self.facts.training
        if training.epochs == "auto" or training.steps == "auto":
            return None
        return self.pace.events_for(training.epochs, training.steps)

    def compose(self, multiplier: float, events: int) -> tuple[Charge, ...]:
        """Returns all charges: paid steps of preprocessing, then `charges`, or the best of several runs of these."""
        return self.facts.release(self.charges(multiplier, events))


@dataclass(frozen=True, slots=True)
class Solution:
    """A run with every free variable solved."""

    multiplier: float
    charges: tuple[Charge, ...]
    solved: dict[str, float | int]
    length: Length


def check_batch_sizes(pace: Pace, facts: Facts) -> list[Finding]:
    """Checks that batches are no larger than the data (P105), and that the run is short enough to plan (P109)."""
    ends = {name: pace.batches[at][1] for name, at in (("", 0), (".from", 0), (".to", -1))}
    for name in ("",) if len(pace.batches) == 1 else (".from", ".to"):
        if ends[name] > facts.size:
            canaries = facts.size - facts.data.planned_units
            units = f"{facts.size:,}" if not canaries else f"and {canaries:,} canaries together, {facts.size:,}"
            return [
                Finding(
                    "P105",
                    f"batch_size {float(ends[name]):,.10g} is larger than data.size {units}",
                    f"set batch_size{name} to at most {facts.size}, or use scheme: full_batch",
                    f"mechanism.sampling.batch_size{name}",
                )
            ]
    training = facts.training
    if training.epochs == "auto" or training.steps == "auto":
        return []
    steps = pace.events_for(training.epochs, training.steps) * pace.steps_per_event
    if steps <= MAX_STEPS:
        return []
    field = "steps" if training.steps is not None else "epochs"
    return [
        Finding(
            "P109",
            f"the run would take {steps:,} steps; the limit is {MAX_STEPS:,}",
            f"lower training.{field} or raise mechanism.sampling.batch_size",
            f"training.{field}",
        )
    ]


def check(problem: Problem) -> list[Finding]:
    """Checks that a run with nothing to solve keeps its budget."""
    facts, multiplier, events = problem.facts, problem.multiplier, problem.events
    budget, cap = facts.budget, facts.cap
    if cap is None or multiplier is None:
        return []
    if events is None:
        events = (problem.opening or 0) + 1
    charges = problem.compose(multiplier, events)
    if keeps(charges, cap, budget.delta, Neighbouring(budget.neighbouring), budget.accountant):
        return []
    return [_overspent(problem, multiplier, events)]


def solve(problem: Problem, min_multiplier: float = MIN_NOISE) -> Solution:
    """Solves the free variable; a solved multiplier below `min_multiplier` is refused.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or is so large that it protects nothing (P107).
    """
    from dprecipe.privacy import calibrate

    facts, pace = problem.facts, problem.pace
    multiplier, events = problem.multiplier, problem.events
    budget, epsilon = facts.budget, facts.cap
    relation = Neighbouring(budget.neighbouring)
    solved: dict[str, float | int] = {}
    if multiplier is None and events is not None and epsilon is not None:
        count = events
        terms = (epsilon, budget.delta, relation, budget.accountant)
        try:
            multiplier = calibrate.noise_multiplier(lambda sigma: problem.compose(sigma, count), *terms)
        except calibrate.CalibrationError as error:
            if error.reason == "too_tight":
                raise PlanRefused([_too_tight(problem, error.tried)]) from None
            raise PlanRefused([too_loose("is met without noise")]) from None
        solved[problem.path] = multiplier
        if not multiplier >= min_multiplier:
            raise PlanRefused([too_loose(f"is met with a noise multiplier of {multiplier:g}, hardly any noise")])
    elif events is None and multiplier is not None and epsilon is not None:
        opening = problem.opening or 0
        max_events = opening + math.ceil(MAX_STEPS / pace.steps_per_event)
        quick = "rdp" if budget.accountant == "pld" else budget.accountant
        if _epsilon(problem.compose(multiplier, max_events), facts, quick) <= epsilon:
            raise PlanRefused([_too_long(facts)])
        try:
            further = _further(problem, multiplier, epsilon)
        except calibrate.CalibrationError:  # of the other accountant, whose ε is smaller
            raise PlanRefused([_too_long(facts)]) from None
        if further == 0:
            raise PlanRefused([_overspent(problem, multiplier, opening + 1)])
        events = opening + further
        if events > max_events:
            raise PlanRefused([_too_long(facts)])
        path = "training.steps" if facts.training.steps is not None else "training.epochs"
        steps = events * pace.steps_per_event
        solved[path] = steps if path.endswith("steps") else pace.epochs_of(events)
    elif multiplier is None or events is None:
        raise PlanRefused([two_free_variables(problem.path)])
    if epsilon is not None and _epsilon(problem.compose(multiplier, events), facts, budget.accountant) > epsilon:
        raise PlanRefused([_overspent(problem, multiplier, events)])
    charges = problem.charges(multiplier, events)
    length = Length(count_steps(charges), pace.steps_per_epoch)
    return Solution(multiplier, charges, solved, length)


def two_free_variables(path: str) -> Finding:
    """Returns the finding for a recipe with more than one `auto`."""
    return Finding(
        "R302",
        "more than one of noise, length and budget is `auto`: one of them can be solved from the other two",
        f"give a number to all but one of {path}, training.epochs (or steps) and budget.epsilon",
        path,
    )


def common_assumptions(scheme: str, facts: Facts) -> tuple[tuple[Assumption, ...], tuple[Assumption, ...]]:
    """Returns the assumptions of every mechanism of noisy sums: those listed before its own, and those after.

    `scheme`: that of the recipe, or `capped_dealt` where dealt batches have a largest size, or `fixed_blocks` where
    blocks of units are in a fixed order.
    """
    participation = {
        "poisson": "each unit joins each batch independently with the sampling rate, and who joined stays secret",
        "truncated_poisson": "each unit joins each batch independently with the sampling rate; of a batch that is too "
        "large a uniformly random subset of the stated size is kept, and who joined stays secret",
        "fixed_size": "each batch is an independent, uniformly random subset of the stated size, and who is in it "
        "stays secret",
        "full_batch": "every unit takes part in every step",
        "permuted": "each epoch cuts a new, uniformly random order of all units into batches of the stated size, and "
        "who is in a batch stays secret",
        "fixed_order": "each attempt deals every unit to exactly one batch of a pass, uniformly and independently of "
        "all others, and keeps it there in all passes",
        "fixed_blocks": "each attempt cuts a random order of blocks of consecutive units into the batches of a pass, "
        "and keeps it in all passes; no unit changes the block of another, since compared data sets have as many",
        "cyclic_poisson": "each attempt deals every unit to one part, uniformly and independently of all others, and "
        "keeps it there; each unit of a step's part joins its batch independently, and parts and batches stay secret",
        "dealt": "each epoch deals every unit to exactly one batch, uniformly and independently of all others, and who "
        "is in a batch stays secret",
        "capped_dealt": "each epoch deals every unit to exactly one batch, uniformly and independently of all others; "
        "of a batch that is too large the stated number of units with the highest random priorities are kept, and who "
        "is in a batch, and the priorities, stay secret",
    }[scheme]
    return (
        (Assumption("sampling", participation, "code"),),
        (
            Assumption("independence", "no record influences the gradient of another", "code"),
            *_assume_omitted(facts),
            *_assume_size(facts),
            Assumption(
                "choices",
                "the recipe's constants were chosen without looking at the private records",
                "declaration",
            ),
            Assumption(
                "floating_point",
                "rounding of float64 noise and of gradients leaks nothing, and nobody measures timing: "
                "docs/explanation/accounting.md#what-is-assumed",
                "declaration",
            ),
        ),
    )


def _assume_omitted(facts: Facts) -> tuple[Assumption, ...]:
    if not facts.data.omits_records:
        return ()
    what = "the gradient of a record whose label is missing is zero; in all else the record takes part as others do"
    return (Assumption("omitted_records", what, "code"),)


def _assume_size(facts: Facts) -> tuple[Assumption, Assumption]:
    divisor = "the public expected batch size"
    if facts.data.hides_size:
        divisor = "the sampling rate times a number of units that was released with noise"
    return (
        Assumption("divisor", f"noisy sums are divided by {divisor}", "code"),
        Assumption("size", describe_size(facts.data), "declaration"),
    )


def _further(problem: Problem, multiplier: float, epsilon: float) -> int:
    """Returns the number of events that the budget allows beyond the opening; 0 if they are never equal."""
    from dprecipe.privacy import calibrate

    if problem.opening is None:
        return 0
    budget, opening = problem.facts.budget, problem.opening
    if problem.facts.selection is not None:
        from dprecipe.privacy.tuning.plan import solve_length

        def further(count: int) -> tuple[Charge, ...]:
            return (*problem.charges(multiplier, opening + count), *problem.facts.score)

        terms = (problem.facts.selection, (epsilon, budget.delta), Neighbouring(budget.neighbouring))
        return solve_length(further, *terms, budget.accountant, problem.facts.stage_charges)
    spent = problem.compose(multiplier, problem.opening)
    event = problem.compose(multiplier, problem.opening + 1)[-1].event
    relation = Neighbouring(budget.neighbouring)
    return calibrate.calibrate_count(event, epsilon, budget.delta, relation, budget.accountant, spent)


def _epsilon(charges: Sequence[Charge], facts: Facts, accountant: str) -> float:
    from dprecipe.privacy import accountants

    return accountants.epsilon(charges, facts.budget.delta, Neighbouring(facts.budget.neighbouring), accountant)


def _overspent(problem: Problem, multiplier: float, events: int) -> Finding:
    """Returns the finding for an overspent budget: the excess, and the single changes that would each fit it."""
    from dprecipe.privacy import calibrate

    facts, pace = problem.facts, problem.pace
    budget = facts.budget
    relation = Neighbouring(budget.neighbouring)
    cap = float(budget.epsilon) if facts.cap is None else facts.cap
    spent = _epsilon(problem.compose(multiplier, events), facts, budget.accountant)
    further = _further(problem, multiplier, cap)
    remedies = []
    try:
        sigma = calibrate.noise_multiplier(
            lambda value: problem.compose(value, events), cap, budget.delta, relation, budget.accountant
        )
        remedies.append(f"set {problem.path} to {sigma:.6g}" if problem.remedy is None else problem.remedy(sigma))
    except calibrate.CalibrationError as error:
        if not problem.opening:
            return _too_tight(problem, error.tried)
    if further:
        whole = (problem.opening or 0) + further
        if facts.training.steps is not None:
            remedies.insert(0, f"lower training.steps to {whole * pace.steps_per_event} {AS_MANY}")
        else:
            epochs = pace.passes(whole)
            epochs_left: float = math.floor(epochs)
            if not epochs_left or pace.events_for(epochs_left, None) <= (problem.opening or 0):
                epochs_left = math.floor(epochs * 10_000) / 10_000
            if epochs_left and pace.events_for(epochs_left, None) > (problem.opening or 0):
                remedies.insert(0, f"lower training.epochs to {epochs_left} {AS_MANY}")
    code, start = ("P102", "") if further or problem.opening is None else ("P106", "not even one step fits: one step ")
    if code == "P106" and problem.opening:
        start = "the earlier phases leave nothing for the last: with one step of it the run "
    return Finding(
        code,
        f"{start}spends ε = {spent:.4g} of {cap:g} at δ = {budget.delta:g}",
        ", or ".join(remedies) or "raise the noise of every phase",
        "budget.epsilon",
    )


def _too_tight(problem: Problem, tried: float) -> Finding:
    if (finding := find_overspent_stages(problem.facts)) is not None:
        return finding
    others = ", or raise the noise of the other phases" if problem.opening else ""
    others += ", or that of the paid steps of data.preprocess" if problem.facts.stages else ""
    return Finding(
        "P106",
        f"no noise meets this budget: even with {problem.path} = {tried:g} the run spends more",
        f"shorten the run{others}, or raise budget.epsilon or budget.delta",
        "budget.epsilon",
    )


def _too_long(facts: Facts) -> Finding:
    return Finding(
        "P107",
        f"the budget holds more than {MAX_STEPS:,} steps at this noise: no run is so long",
        f"give training.{'steps' if facts.training.steps is not None else 'epochs'} a number; or lower budget.epsilon "
        "or the noise",
        "budget.epsilon",
    )


def too_loose(reason: str) -> Finding:
    """Returns the finding for a budget so large that it protects almost nothing; `reason` says how it is met."""
    return Finding(
        "P107",
        f"the budget {reason}: it protects almost nothing",
        "lower budget.epsilon or budget.delta",
        "budget.epsilon",
    )


def check_phase_lengths(noise: object) -> Iterator[Finding]:
    """Checks that every phase but the last has exactly one length, in epochs or steps (R262)."""
    if not isinstance(noise, tuple):
        return
    for index, phase in enumerate(noise):
        path, last = f"mechanism.noise.{index}", index == len(noise) - 1
        lengths = [name for name in ("epochs", "steps") if getattr(phase, name) is not None]
        if last and lengths:
            yield Finding(
                "R262",
                "the last phase lasts to the end of the run and takes no length",
                f"remove {' and '.join(lengths)}",
                f"{path}.{lengths[0]}",
            )
        elif not last and not lengths:
            yield Finding(
                "R262",
                "a phase before the last has no length",
                "add epochs (passes over the data) or steps",
                path,
            )
        elif not last and len(lengths) == 2:
            yield Finding("R262", "the phase has both epochs and steps", "remove one of them", f"{path}.steps")


def check_last_phase(opening: int, steps: int | None) -> Iterator[Finding]:
    """Checks that the phases before the last, `opening` steps in total, leave at least one of `steps` steps for the
    last; `None`: as many steps as the budget allows (R262).
    """
    max_steps = MAX_STEPS if steps is None else steps
    if max_steps <= opening:
        limit = "a run has at most" if steps is None else "the run has"
        yield Finding(
            "R262",
            f"the phases before the last take {opening:,} steps; {limit} {max_steps:,}",
            "shorten them" + ("" if steps is None else ", or lengthen the run"),
            "mechanism.noise",
        )
