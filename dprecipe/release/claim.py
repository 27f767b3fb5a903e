"""The claim of a certificate: the numbers the accountants give, and the sentence a person reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dprecipe import __version__
from dprecipe.contract.facts import Published
from dprecipe.contract.plan import Plan, PlanBudget
from dprecipe.contract.table import mechanism_of
from dprecipe.data.names import quote_name
from dprecipe.planning import records, split
from dprecipe.privacy import accountants, cross_check, gdp, groups, risk, rounding, whole_runs
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import summarise_charges
from dprecipe.release import charged_account
from dprecipe.release.no_model import SENTENCE
from dprecipe.release.schema import (
    Accountant,
    AttackRate,
    Claim,
    GaussianBound,
    GroupBound,
    GuessFacts,
    ProfilePoint,
    RiskFacts,
    Role,
)

STRIDE = 20
"""Distance between the points that are compared first."""
COVERED = 1 + 1e-10
"""Above 1 by more than `gdp.delta` may be above the truth."""

MAX_DELTA = 1 - 1e-4
"""Largest δ that has a μ: nearer to 1, it is too coarse a double, and runs that cost that much do not protect."""
MU_MARGIN = 1 + 1e-9
"""Above 1 by more than `gdp.mu_for` may be below the truth, for a δ of at most `MAX_DELTA`."""

FACTORS = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0)
"""The profile's ε, as multiples of the claimed one: part of rules 1."""

BOUNDS = {
    "pld": "upper bound: privacy-loss distribution, discretised upwards, composed by FFT, errors added",
    "rdp": "upper bound: Rényi divergence, converted by Canonne, Kamath and Steinke 2020",
    "rdp_classic": "upper bound: Rényi divergence, converted by Mironov 2017",
    "gdp": "exact for unsampled Gaussian noise, rounded up",
    "dp_accounting.pld": "upper bound by an independent library: privacy-loss distribution",
    "dp_accounting.rdp": "upper bound by an independent library: Rényi divergence",
    "dp_accounting": "an independent library, which has no bound for these events",
}

DECLARED = "that the records are what the recipe declares: a run on other records is refused before anything is spent"
NOT_PROTECTED = (
    "how long the run took, how much memory it used, and every other side channel",
    "anything else computed from the same records: the costs of several releases add up",
)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a certificate that the accountants computed; all are rounded up."""

    epsilon: float
    profile: tuple[ProfilePoint, ...]
    gdp: GaussianBound | None
    groups: tuple[GroupBound, ...]
    accounting: tuple[Accountant, ...]
    risk: RiskFacts
    own: object = None
    """Numbers of the mechanism's own part of the certificate; the mechanism's folder defines the type."""


def compute_numbers(plan: Plan, charges: Sequence[Charge], published: Published | None = None) -> Numbers:
    """Computes the cost of `charges`, by the budget's accountant and by two more. The plan's guarantee is not read.
    `published`: what the run published about itself, for the mechanism's own part of the certificate.

    Guarantees: the composition of the charges is (ε, δ)-DP at the budget's δ, and (ε', δ')-DP at every point
    of the profile; its δ(ε) is at most that of the Gaussian bound on the stated interval.

    Raises:
        RunFailed: something was published that was not charged, or that the plan does not publish.
    """
    budget = plan.budget
    delta, relation = budget.delta, budget.neighbouring
    first = accountants.epsilon_answer(charges, delta, relation, budget.accountant)
    second = accountants.epsilon_answer(charges, delta, relation, choose_alternative(budget.accountant))
    third = cross_check.ask_library(charges, delta, relation)
    epsilon = rounding.round_up(first.value)
    version = f"dprecipe {__version__}"
    bounds = list_bounds(plan)
    gaussian = find_gaussian_bound(charges, relation, epsilon)
    return Numbers(
        epsilon,
        compute_profile(charges, relation, budget.accountant, choose_epsilons(epsilon)),
        gaussian,
        bound_groups(charges, epsilon, budget),
        (
            _row(bounds, first.accountant, version, "claim", epsilon),
            _row(bounds, second.accountant, version, "alternative", rounding.round_up(second.value)),
            _row(bounds, third.name, third.version, "cross_check", rounding.round_up(third.epsilon)),
        ),
        assess_risk(charges, epsilon, plan.budget, gaussian),
        mechanism_of(plan.mechanism).certificate.compute_numbers(plan, charges, epsilon, published),
    )


def bound_groups(charges: Sequence[Charge], epsilon: float, budget: PlanBudget) -> tuple[GroupBound, ...]:
    """Returns the cost of several units together, rounded up; nothing where the cost of one is 0 or infinite."""
    if not 0 < epsilon < math.inf:
        return ()
    bounds = groups.bound_groups(charges, budget.delta, budget.neighbouring, budget.accountant, epsilon)
    return tuple(
        GroupBound(size=size, epsilon=rounding.round_up(value) if math.isfinite(value) else None)
        for size, value in bounds
    )


def assess_risk(
    charges: Sequence[Charge], epsilon: float, budget: PlanBudget, gaussian: GaussianBound | None
) -> RiskFacts:
    """Returns upper bounds of what attacks of any kind attain against these charges, which are claimed to cost ε: from
    the accountant's profile or from the Gaussian bound on δ(ε), whichever is less."""
    points = risk.list_points(charges, epsilon, budget.delta, budget.neighbouring, budget.accountant)
    if gaussian is not None:
        first, last = gaussian.from_epsilon, math.inf if gaussian.to_epsilon is None else gaussian.to_epsilon
        points = [*points, *((e, gdp.delta(gaussian.mu, e)) for e, _ in points if first <= e <= last)]
    return describe_risk(risk.assess_points(points, budget.delta))


def describe_risk(assessed: risk.AttackRisk) -> RiskFacts:
    """Returns a risk as a certificate states it."""
    return RiskFacts(
        true_positive_rates=tuple(
            AttackRate(false_positive_rate=x, true_positive_rate=rate) for x, rate in assessed.true_positive_rates
        ),
        advantage=assessed.advantage,
        odds_factor=assessed.odds_factor if math.isfinite(assessed.odds_factor) else None,
        odds_failure=assessed.odds_failure,
        guesses=tuple(GuessFacts(prior=p, success=s, posterior=q) for p, s, q in assessed.guesses),
    )


def list_bounds(plan: Plan) -> dict[str, str]:
    """Returns the kind of bound that each accountant of the plan's events gives, by the accountant's name."""
    return {**BOUNDS, **mechanism_of(plan.mechanism).certificate.bounds}


def choose_alternative(accountant: str) -> str:
    """Returns the name of the accountant to run beside `accountant`."""
    return "rdp" if accountant in ("pld", "gdp") else "pld"


def _row(bounds: Mapping[str, str], name: str, version: str, role: Role, epsilon: float) -> Accountant:
    bounded = epsilon if math.isfinite(epsilon) else None
    return Accountant(name=name, version=version, bound=bounds[name], role=role, epsilon=bounded)


def choose_epsilons(epsilon: float) -> tuple[float, ...]:
    """Returns the values of ε at which the profile is stated; none when ε is infinite or nothing was spent."""
    if not 0 < epsilon < math.inf:
        return ()
    return tuple(rounding.round_up(factor * epsilon) for factor in FACTORS)


def compute_profile(
    charges: Sequence[Charge], neighbouring: Neighbouring, accountant: str, epsilons: Sequence[float]
) -> tuple[ProfilePoint, ...]:
    """Returns δ at each ε, rounded up."""
    points = accountants.profile(charges, neighbouring, accountant, epsilons)
    return tuple(ProfilePoint(epsilon=e, delta=min(1.0, rounding.round_up(d))) for e, d in points)


def find_gaussian_bound(charges: Sequence[Charge], neighbouring: Neighbouring, epsilon: float) -> GaussianBound | None:
    """Returns a small μ such that δ(ε') is at most that of a μ-Gaussian mechanism: for all ε' where nothing was
    sampled, else for 0 ≤ ε' ≤ 2ε. None where there is no such μ, and for last-iterate releases whose guarantee is an
    average.

    Guarantees: the bound holds on the whole interval, not just on the grid. Between neighbouring points the profile
    is below its value at the left end, and the Gaussian's is above its value at the right end.
    Source: Dong, Roth & Su 2022, Corollary 2.13; Gomez et al. 2025 for reporting μ.
    """
    work = summarise_charges(charges, neighbouring)
    if work.empty or not 0 < epsilon < math.inf:
        return None
    if work.gaussian:
        return GaussianBound(mu=rounding.round_up(work.mu * (1 + 1e-12)), from_epsilon=0.0, to_epsilon=None)
    if work.whole:
        profile = work.lone_profile
        mu = None if profile is None else whole_runs.profile_mu(*profile)
        return None if mu is None else GaussianBound(mu=rounding.round_up(mu), from_epsilon=0.0, to_epsilon=None)
    grid = groups.list_epsilons(epsilon)
    deltas = [delta for _, delta in accountants.profile(charges, neighbouring, "pld", grid)]
    if not max(deltas) < MAX_DELTA:
        return None
    mu = _largest_mu(list(zip(grid[1:], deltas, strict=False)))
    return GaussianBound(mu=rounding.round_up(mu * MU_MARGIN), from_epsilon=0.0, to_epsilon=grid[-1])


def _largest_mu(points: Sequence[tuple[float, float]]) -> float:
    """Returns the largest `gdp.mu_for` of these points (ε, δ).

    A point is passed over only where the Gaussian of the largest μ so far has a δ above its own, by more than
    `gdp.delta` rounds up: δ grows with μ, so the point's own μ is smaller. The first points are far apart, so that few
    of the others have theirs computed.
    """
    largest = 0.0
    for start in range(STRIDE):
        for epsilon, delta in points[start::STRIDE]:
            if not delta * COVERED <= gdp.delta(largest, epsilon):
                largest = max(largest, gdp.mu_for(epsilon, delta))
    return largest


def make_claim(plan: Plan, numbers: Numbers, insecure: bool, has_no_model: bool = False) -> Claim:
    """Returns the claim that follows from the numbers. `has_no_model`: the run released none, and nothing else."""
    budget, part = plan.budget, mechanism_of(plan.mechanism).certificate
    released = () if has_no_model else plan.released
    unit = part.describe_unit(plan)
    return Claim(
        epsilon=numbers.epsilon,
        delta=budget.delta,
        neighbouring=budget.neighbouring.value,
        unit=unit,
        sentence=(
            write_claim(numbers.epsilon, budget.delta, budget.neighbouring, unit.name, released, insecure)
            + define_unit(plan)
            + ("" if has_no_model else part.qualify_claim(plan, numbers.own))
        ),
        released=released,
        not_protected=list_unprotected(plan),
        profile=numbers.profile,
        gdp=numbers.gdp,
        groups=numbers.groups,
        risk=numbers.risk,
    )


def write_claim(
    epsilon: float,
    delta: float,
    neighbouring: Neighbouring,
    unit: str,
    released: Sequence[str],
    insecure: bool,
) -> str:
    """Returns the claim in words; of a run that released no model, the claim for all that it drew."""
    change = neighbouring.words.format(unit=unit)
    what = f"The {' and the '.join(released)} of this run satisfy"
    if not released:
        what = f"{SENTENCE}. All that was drawn for it satisfies"
    formal = (
        f"{what} (ε = {epsilon!r}, δ = {delta!r}) differential "
        f"privacy with respect to {change}: for every set of possible outcomes, {change} changes its "
        f"probability by at most a factor of exp({epsilon!r}), plus {delta!r}."
    )
    if insecure:
        return f"NOT A RELEASE: the randomness was fixed in advance for a test, so nobody is protected. {formal}"
    return formal


def define_unit(plan: Plan) -> str:
    """Returns a sentence that defines the recipe's own word for a unit; starts with a space, and is empty where it has
    none."""
    unit = plan.data.unit
    if unit == "record" or unit.name is None:
        return ""
    return f" Here one {unit.name} is all records with the same {quote_name(unit.column)}."


def list_unprotected(plan: Plan) -> tuple[str, ...]:
    """Lists what the claim does not cover, in words."""
    size = plan.data.declared_units
    bound = "a bound on " if plan.data.hides_size else ""
    column = plan.data.unit_column
    noun = "records" if column is None else f"values of {quote_name(column)}"
    first = [
        "the classes of the labels"
        if size is None
        else f"{bound}the number of {noun}, {size}, and the shape of the data: columns, ranges, categories, classes",
        "the recipe: the model's architecture and every hyper-parameter" if plan.has_model else "the recipe",
        "metrics on private records, checkpoints and the ledger: they stay in private/",
    ]
    first += mechanism_of(plan.mechanism).certificate.list_unprotected(plan)
    if plan.budget.account is not None:
        first.append(charged_account.SENTENCE)
    if plan.data.unit == "record":
        first.append("people with several records: each record is protected, but not all records of one person at once")
    learned = "what a model learns about many people also says" if plan.has_model else "labels of many people also say"
    population = f"facts about a population: {learned} something about each of them"
    declared = () if plan.data.is_elsewhere else (DECLARED,)
    return (*first, *records.not_protected(plan), *split.not_protected(plan), population, *declared, *NOT_PROTECTED)
