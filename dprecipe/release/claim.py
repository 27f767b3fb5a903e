"""The claim of a certificate: the numbers, and the sentence a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.plan.model import Guarantee, Plan
from dprecipe.privacy import accountants, gdp, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import workload
from dprecipe.release.schema import Claim, GaussianBound, Point, PrivacyUnit

GRID = 200
"""Points at which the Gaussian bound is held against the profile."""

NOT_PROTECTED = (
    "facts that hold for the many: what a model learns of a population, it says about its members too",
    "how long the run took, the memory it used, and every other side channel of the machine",
    "anything else computed from the same records: what several releases spend adds up",
)


def claim(plan: Plan, charges: Sequence[Charge], insecure: bool) -> tuple[Claim, Guarantee]:
    """What holds for `charges`, by the accountant the budget names; the plan's own guarantee is not read.

    Guarantees: the composition of the charges is (ε, δ)-DP and (ε', δ')-DP at every point of the profile; its
    δ(ε) is at most that of the stated Gaussian bound on the stated interval.
    """
    budget = plan.budget
    found = accountants.guarantee(
        charges, budget.delta, budget.neighbouring, plan.guarantee.unit, budget.accountant
    )
    unit = privacy_unit(plan)
    return Claim(
        epsilon=found.epsilon,
        delta=budget.delta,
        neighbouring=budget.neighbouring.value,
        unit=unit,
        sentence=sentence(
            found.epsilon, budget.delta, budget.neighbouring, unit.name, plan.released, insecure
        ),
        released=plan.released,
        not_protected=not_protected(plan),
        profile=tuple(Point(epsilon=epsilon, delta=delta) for epsilon, delta in found.profile),
        gdp=gaussian_bound(charges, budget.neighbouring, found.epsilon),
    ), found


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
        return (
            f"NOT A RELEASE: the randomness was fixed in advance, for a test; nobody is protected. {formal}"
        )
    return formal


def privacy_unit(plan: Plan) -> PrivacyUnit:
    """Who is protected, and what enforces it."""
    unit = plan.data.unit
    if unit == "record":
        return PrivacyUnit(
            name="record",
            max_records=1,
            enforced_by="each record's gradient is clipped by itself, and sampled by itself",
        )
    return PrivacyUnit(
        name=unit.column,
        max_records=unit.max_records,
        enforced_by=(
            f"records that share a value of {unit.column} are sampled together and their gradients are "
            f"clipped together; at most {unit.max_records} of them are used"
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
    if plan.data.unit == "record":
        first.append("a person with several records: each record is protected, not all of them together")
    return (*first, *NOT_PROTECTED)


def gaussian_bound(
    charges: Sequence[Charge], neighbouring: Neighbouring, epsilon: float
) -> GaussianBound | None:
    """The least μ found such that δ(ε') is at most that of a μ-Gaussian mechanism: for all ε' where nothing
    was sampled, else for 0 ≤ ε' ≤ 2ε; None where no such μ was found.

    Guarantees: holds on the whole interval and not just on the grid: between neighbouring points the profile
    lies below its left end and the Gaussian's above its right one.
    Source: Dong, Roth & Su 2022, Corollary 2.13; Gomez et al. 2025 for reporting μ.
    """
    work = workload(charges, neighbouring)
    if work.empty or not epsilon > 0:
        return None
    if not work.sampled:
        return GaussianBound(mu=rounding.up(work.mu * (1 + 1e-12)), from_epsilon=0.0, to_epsilon=None)
    grid = [2 * epsilon * i / GRID for i in range(GRID + 1)]
    deltas = [delta for _, delta in accountants.profile(charges, neighbouring, "pld", grid)]
    if not max(deltas) < 1 - 1e-9:
        return None
    mu = max(gdp.mu_for(right, delta) for right, delta in zip(grid[1:], deltas, strict=False))
    return GaussianBound(mu=rounding.up(mu * (1 + 1e-9)), from_epsilon=0.0, to_epsilon=grid[-1])
