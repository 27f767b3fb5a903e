"""The claim of a certificate: the numbers the accountants give, and the sentence a person reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dprecipe import __version__
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate import certificate as voting
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.pnsgd import certificate as hiding
from dprecipe.planning import places
from dprecipe.privacy import accountants, gdp, rounding, second_opinion
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, NoisyMax, NoisyThreshold
from dprecipe.privacy.workload import workload
from dprecipe.release.schema import (
    Accountant,
    BoundFacts,
    Claim,
    DataDependentFacts,
    GaussianBound,
    Point,
    PositionBound,
    PrivacyUnit,
    Role,
)

if TYPE_CHECKING:
    from dprecipe.mechanisms.pate.theory.sanitise import Sanitised, Sanitiser

GRID = 200
"""Points at which the Gaussian bound is held against the profile."""

FACTORS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""The profile's ε, as multiples of the claimed one."""

BOUNDS = {
    "pld": "upper bound: privacy-loss distribution, discretised upwards, composed by FFT, errors added",
    "rdp": "upper bound: Rényi divergence, converted by Canonne, Kamath and Steinke 2020",
    "rdp_classic": "upper bound: Rényi divergence, converted by Mironov 2017",
    "gdp": "exact for unsampled Gaussian noise, rounded up",
    "no_amplification": "upper bound: as if every iterate were seen",
    "contraction": "upper bound: each later step shrinks δ by the same factor, Asoodeh, Diaz and Calmon 2020",
    "nonlinear": "upper bound: each later step shrinks δ, the more the smaller it is",
    "iteration": "upper bound: Gaussian amplification by iteration, Bok, Su and Altschuler 2024",
    "hybrid": "upper bound: amplification by iteration, then nonlinear contraction",
    "dp_accounting.pld": "upper bound by an independent library: privacy-loss distribution",
    "dp_accounting.rdp": "upper bound by an independent library: Rényi divergence",
    "dp_accounting": "an independent library, which has no bound for these events",
}

TAKES_PART = {
    "poisson": ("sampled by itself", "are sampled together"),
    "truncated_poisson": ("sampled by itself", "are sampled together"),
    "fixed_size": ("drawn in lots of one size", "are drawn together"),
    "full_batch": ("takes part in every step", "take part together in every step"),
    "shuffle": ("dealt to one lot of each epoch", "are dealt together to one lot of each epoch"),
}
"""How a record, and how the records of a unit, come to take part in a step."""

NOT_PROTECTED = (
    "facts that hold for the many: what a model learns of a population, it says about its members too",
    "that the records are what the recipe declares: on others a run is refused, before anything is spent",
    "how long the run took, the memory it used, and every other side channel of the machine",
    "anything else computed from the same records: what several releases spend adds up",
)


@dataclass(frozen=True, slots=True)
class VotesCost:
    """What a reader concludes from the published cost of votes: ε, the bound of the Rényi cost, and what the claim's
    events cost in the worst case at the same δ."""

    epsilon: float
    cost: float
    worst_case: float


@dataclass(frozen=True, slots=True)
class HiddenNumbers:
    """What each bound of hidden runs gives, the simplest of the least, and what protects a record at its place."""

    bounds: tuple[BoundFacts, ...]
    winner: str
    by_position: tuple[PositionBound, ...]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Everything in a certificate that an accountant computed; every number is rounded up."""

    epsilon: float
    profile: tuple[Point, ...]
    gdp: GaussianBound | None
    accounting: tuple[Accountant, ...]
    votes: VotesCost | None = None
    hidden: HiddenNumbers | None = None


def numbers(plan: Plan, charges: Sequence[Charge], sanitised: Sanitised | None = None) -> Numbers:
    """What `charges` cost, by the accountant the budget names and two more; the plan's guarantee is not read.
    `sanitised`: what the run published of its votes' cost.

    Guarantees: the composition of the charges is (ε, δ)-DP at the budget's δ, and (ε', δ')-DP at every point
    of the profile; its δ(ε) is at most that of the Gaussian bound on the stated interval.
    """
    budget = plan.budget
    delta, relation = budget.delta, budget.neighbouring
    first = accountants.epsilon_answer(charges, delta, relation, budget.accountant)
    second = accountants.epsilon_answer(charges, delta, relation, other(budget.accountant))
    third = second_opinion.opinion(charges, delta, relation)
    epsilon = rounding.up(first.value)
    ours = f"dprecipe {__version__}"
    return Numbers(
        epsilon,
        profile(charges, relation, budget.accountant, profile_epsilons(epsilon)),
        gaussian_bound(charges, relation, epsilon),
        (
            _row(first.accountant, ours, "claim", epsilon),
            _row(second.accountant, ours, "cross_check", rounding.up(second.value)),
            _row(third.name, third.version, "second_opinion", rounding.up(third.epsilon)),
        ),
        None if sanitised is None else votes_cost(plan, charges, sanitised),
        hidden_numbers(plan, charges, epsilon) if plan.mechanism == hiding.NAME else None,
    )


def hidden_numbers(plan: Plan, charges: Sequence[Charge], epsilon: float) -> HiddenNumbers:
    """What the bounds of hidden runs give for `charges`, all of it rounded up; `epsilon` is the claimed one.

    The list by position is of runs through the file's order that are charged once: of more it would not hold.
    """
    delta, relation = plan.budget.delta, plan.budget.neighbouring
    bounds = accountants.hidden_bounds(charges, delta, relation)
    rows = accountants.by_position(charges, delta, relation, epsilon)
    return HiddenNumbers(
        tuple(BoundFacts(name=name, epsilon=rounding.up(e) if e < math.inf else None) for name, e in bounds.items()),
        accountants.epsilon_answer(charges, delta, relation, "pld").accountant,
        tuple(PositionBound(position=position, epsilon=e, delta=d) for position, e, d in rows),
    )


def other(accountant: str) -> str:
    """The accountant that cross-checks another."""
    return "rdp" if accountant in ("pld", "gdp") else "pld"


def _row(name: str, version: str, role: Role, epsilon: float) -> Accountant:
    bounded = epsilon if math.isfinite(epsilon) else None
    return Accountant(name=name, version=version, bound=BOUNDS[name], role=role, epsilon=bounded)


def profile_epsilons(epsilon: float) -> tuple[float, ...]:
    """Where the profile is stated; nowhere when nothing is bounded or nothing was spent."""
    if not 0 < epsilon < math.inf:
        return ()
    return tuple(rounding.up(factor * epsilon) for factor in FACTORS)


def profile(
    charges: Sequence[Charge], neighbouring: Neighbouring, accountant: str, epsilons: Sequence[float]
) -> tuple[Point, ...]:
    """δ at each ε, rounded up."""
    points = accountants.profile(charges, neighbouring, accountant, epsilons)
    return tuple(Point(epsilon=e, delta=min(1.0, rounding.up(d))) for e, d in points)


def gaussian_bound(charges: Sequence[Charge], neighbouring: Neighbouring, epsilon: float) -> GaussianBound | None:
    """The least μ found such that δ(ε') is at most that of a μ-Gaussian mechanism: for all ε' where nothing
    was sampled, else for 0 ≤ ε' ≤ 2ε; None where no such μ was found, or none is looked for: of hidden runs whose
    guarantee is an average.

    Guarantees: holds on the whole interval and not just on the grid: between neighbouring points the profile
    lies below its left end and the Gaussian's above its right one.
    Source: Dong, Roth & Su 2022, Corollary 2.13; Gomez et al. 2025 for reporting μ.
    """
    work = workload(charges, neighbouring)
    if work.empty or not 0 < epsilon < math.inf:
        return None
    if work.gaussian:
        return GaussianBound(mu=rounding.up(work.mu * (1 + 1e-12)), from_epsilon=0.0, to_epsilon=None)
    if work.hidden:
        runs = work.hidden_alone
        mu = None if runs is None else accountants.hidden_mu(runs)
        return None if mu is None else GaussianBound(mu=rounding.up(mu), from_epsilon=0.0, to_epsilon=None)
    grid = [2 * epsilon * i / GRID for i in range(GRID + 1)]
    deltas = [delta for _, delta in accountants.profile(charges, neighbouring, "pld", grid)]
    if not max(deltas) < 1 - 1e-9:
        return None
    mu = max(gdp.mu_for(right, delta) for right, delta in zip(grid[1:], deltas, strict=False))
    return GaussianBound(mu=rounding.up(mu * (1 + 1e-9)), from_epsilon=0.0, to_epsilon=grid[-1])


def votes_cost(plan: Plan, charges: Sequence[Charge], sanitised: Sanitised) -> VotesCost:
    """What the published numbers say of the votes, by the constants of the plan alone.

    No list of queries costs more than the worst case of all that are planned.

    Raises:
        RunFailed: the plan does not publish what votes cost.
        ValueError: the plan's constants are out of range.
    """
    from dprecipe.mechanisms.pate.theory import sanitise

    chosen, budget = sanitiser(plan), plan.budget
    events = [charge.event for charge in plan.events if isinstance(charge.event, NoisyMax | NoisyThreshold)]
    asked = workload([Charge(event, plan.length.steps) for event in events], budget.neighbouring)
    most = float(accountants.rdp_curve(asked, [chosen.order])[0])
    found = sanitise.upper_bound(sanitised, chosen, budget.delta, most)
    worst = accountants.epsilon(charges, found.delta, budget.neighbouring, budget.accountant)
    return VotesCost(rounding.up(found.epsilon), rounding.up(found.total), rounding.up(worst))


def sanitiser(plan: Plan) -> Sanitiser:
    """The plan's constants of publishing what votes cost.

    Raises:
        RunFailed: there are none.
        ValueError: they are out of range.
    """
    from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser

    chosen = plan.settings.get("sanitize")
    if chosen is None:
        raise RunFailed("internal fault: the plan does not publish what votes cost", "please report this")
    return Sanitiser(chosen["order"], chosen["beta"], chosen["multiplier"], chosen["scale_multiplier"], chosen["delta"])


def data_dependent(plan: Plan, found: Numbers, sanitised: Sanitised | None) -> DataDependentFacts | None:
    """The statement about these very votes, where the run published what it takes.

    Raises:
        RunFailed: it did, and the plan does not.
    """
    if sanitised is None or found.votes is None:
        return None
    chosen, votes, delta = sanitiser(plan), found.votes, plan.budget.delta
    return DataDependentFacts(
        epsilon=votes.epsilon,
        delta=delta + 2 * chosen.failure,
        sentence=votes_sentence(votes, delta, chosen.failure, plan.guarantee.unit),
        order=chosen.order,
        beta=chosen.smoothness,
        noise_multiplier=chosen.value_multiplier,
        scale_multiplier=chosen.sensitivity_multiplier,
        failure=chosen.failure,
        noisy_cost=sanitised.value,
        noisy_log_sensitivity=sanitised.log_sensitivity,
        cost=votes.cost,
        worst_case_epsilon=votes.worst_case,
        smaller="data_dependent" if votes.epsilon < votes.worst_case else "worst_case",
    )


def votes_sentence(votes: VotesCost, delta: float, failure: float, unit: str) -> str:
    """The data-dependent statement in words."""
    whole = delta + 2 * failure
    smaller = "this statement is" if votes.epsilon < votes.worst_case else "the claim is"
    return (
        "For the records of this run, dealt to its teachers as they were, and for no others: every set of possible "
        f"outcomes is at most exp({votes.epsilon!r}) times as probable, plus {delta!r}, as with one {unit} added to, "
        "removed from or replaced in the part of one teacher; except with a chance of "
        f"{2 * failure!r}, that noise made the published cost too small. "
        f"Counting that chance, (ε = {votes.epsilon!r}, δ = {whole!r}). It says how much these teachers agreed, not "
        f"what holds for everyone: that is the claim. At the same δ the claim's events are worth "
        f"ε = {votes.worst_case!r}: {smaller} the smaller of two sound ones."
    )


def claim(plan: Plan, found: Numbers, insecure: bool) -> Claim:
    """The claim that follows from the numbers."""
    budget, unit = plan.budget, privacy_unit(plan)
    return Claim(
        epsilon=found.epsilon,
        delta=budget.delta,
        neighbouring=budget.neighbouring.value,
        unit=unit,
        sentence=(
            sentence(found.epsilon, budget.delta, budget.neighbouring, unit.name, plan.released, insecure)
            + (hiding.averaged(plan, found.hidden) if found.hidden is not None else "")
        ),
        released=plan.released,
        not_protected=not_protected(plan),
        profile=found.profile,
        gdp=found.gdp,
        by_position=() if found.hidden is None else found.hidden.by_position,
    )


def sentence(
    epsilon: float,
    delta: float,
    neighbouring: Neighbouring,
    unit: str,
    released: Sequence[str],
    insecure: bool,
) -> str:
    """The claim in words."""
    change = neighbouring.words.format(unit=unit)
    formal = (
        f"The {' and the '.join(released)} of this run satisfy (ε = {epsilon!r}, δ = {delta!r}) differential "
        f"privacy with respect to {change}: for every set of possible outcomes, {change} changes its "
        f"probability by at most a factor of exp({epsilon!r}), plus {delta!r}."
    )
    if insecure:
        return f"NOT A RELEASE: the randomness was fixed in advance, for a test; nobody is protected. {formal}"
    return formal


def privacy_unit(plan: Plan) -> PrivacyUnit:
    """Who is protected, and what enforces it."""
    unit = plan.data.unit
    if plan.mechanism == hiding.NAME:
        return PrivacyUnit(name="record", max_records=1, enforced_by=hiding.enforced_by(plan))
    if plan.mechanism == voting.NAME:
        name, most = ("record", 1) if unit == "record" else (plan.guarantee.unit, unit.max_records)
        moved = f"so one {name} moves at most one vote on a query"
        return PrivacyUnit(name=name, max_records=most, enforced_by=f"{voting.partition(plan)}; {moved}")
    if plan.settings.get("slots") is not None:
        name, most = ("record", 1) if unit == "record" else (plan.guarantee.unit, unit.max_records)
        dealt = "is sampled, and dealt to a micro-batch, by itself"
        if plan.settings["scheme"] == "full_batch":
            dealt = "takes part in every step, and is dealt to a micro-batch by itself"
        return PrivacyUnit(
            name=name,
            max_records=most,
            enforced_by=(
                f"each {name} {dealt}; the mean gradient of a micro-batch is "
                "encoded, so one code is exchanged for another"
            ),
        )
    copies, scheme = plan.settings.get("augmentations", 1), plan.settings["scheme"]
    averaged = f"; the gradients of its {copies} augmented copies are averaged first" if copies > 1 else ""
    if unit == "record":
        return PrivacyUnit(
            name="record",
            max_records=1,
            enforced_by=f"each record's gradient is clipped by itself, and {TAKES_PART[scheme][0]}{averaged}",
        )
    return PrivacyUnit(
        name=plan.guarantee.unit,
        max_records=unit.max_records,
        enforced_by=(
            f"records that share a value of {plan.guarantee.unit} {TAKES_PART[scheme][1]} and their gradients are "
            f"clipped together; at most {unit.max_records} of them are used{averaged.replace('its', 'their')}"
        ),
    )


def not_protected(plan: Plan) -> tuple[str, ...]:
    """What the claim does not cover, in words."""
    size = plan.data.size
    who = "records" if plan.data.unit == "record" else f"values of {plan.guarantee.unit}"
    first = [
        f"the number of {who}, {size}, and the shape of the data: columns, ranges, categories, classes",
        "the recipe: the model's architecture and every hyper-parameter",
        "metrics on private records, checkpoints and the ledger: they stay in private/",
    ]
    if plan.mechanism == voting.NAME:
        first += [
            f"the number of teachers, {plan.settings['teachers']}, and which public records they were asked about",
            "the votes, what they cost, the teachers, and the key that dealt the records: they stay in private/",
        ]
    if plan.mechanism == hiding.NAME:
        first += hiding.not_protected(plan)
    if plan.data.unit == "record":
        first.append("a person with several records: each record is protected, not all of them together")
    return (*first, *places.not_protected(plan), *NOT_PROTECTED)
