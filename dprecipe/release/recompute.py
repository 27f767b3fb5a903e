"""The accountants' numbers of a certificate, computed again from its events.

The safe side has no tolerance: what is recomputed must not exceed what is stated. The other side is held to one
unit of the last printed digit, so that nobody can pass off a number that this version did not print.
"""

from __future__ import annotations

import math

from dprecipe.faults import Fault
from dprecipe.mechanisms.certificate import compare_number
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.events import Charge
from dprecipe.release import claim as claims
from dprecipe.release.rebuild import Rebuilt
from dprecipe.release.schema import Accountant, Predicate

RENYI_ORDERS = 2e-2
"""How far two Rényi bounds of the same events may lie apart, relative: they try different orders."""


def recompute_numbers(stated: Predicate, rebuilt: Rebuilt, notes: list[str]) -> list[str]:
    """What the events don't support; `notes` gains what could not be compared."""
    try:
        return _check(stated, rebuilt, notes)
    except (Fault, ValueError, ArithmeticError) as error:
        return [f"accounting: the events can't be accounted for: {error}"]


def _check(stated: Predicate, rebuilt: Rebuilt, notes: list[str]) -> list[str]:
    plan, charges, claim = rebuilt.plan, rebuilt.charges, stated.claim
    delta, relation = plan.budget.delta, plan.budget.neighbouring
    roles = [row.role for row in stated.accounting]
    if roles != ["claim", "alternative", "cross_check"]:
        return ["accounting: expected a claim, an alternative and a cross_check, in this order"]
    first, second, third = stated.accounting
    result = _one(stated, rebuilt)
    if not claim.epsilon <= plan.budget.epsilon:
        result.append(f"claim.epsilon: {claim.epsilon!r} exceeds the budget of {plan.budget.epsilon!r}")
    primary = accountants.epsilon_answer(charges, delta, relation, plan.budget.accountant)
    cross = accountants.epsilon_answer(charges, delta, relation, claims.other_accountant(plan.budget.accountant))
    result += _row(first, primary.accountant, primary.value, 0)
    result += _row(second, cross.accountant, cross.value, 1)
    result += compare_number("claim.epsilon", claim.epsilon, primary.value)
    loose, tight = (cross, primary) if cross.accountant.startswith("rdp") else (primary, cross)
    part = mechanism_of(plan.mechanism).certificate
    tolerance = max((charge.event.renyi_tolerance for charge in charges), default=0.0)
    if not tight.value <= loose.value * (1 + tolerance):
        result.append("accounting: the exact or numerical bound exceeds the Rényi bound; one of them is wrong")
    rdp = loose.value if loose.accountant.startswith("rdp") else math.inf
    result += _cross_check(third, claim.epsilon, rdp, plan, charges, notes)
    if stated.mechanism.kind == plan.mechanism:
        result += part.check_numbers(stated.mechanism, plan, charges, claim.epsilon)
    return result + _profile(stated, rebuilt)


def _one(stated: Predicate, rebuilt: Rebuilt) -> list[str]:
    """What must be the same wherever it is said."""
    problems = []
    if stated.accounting[0].epsilon != stated.claim.epsilon:
        problems.append("accounting.0.epsilon: not the ε of the claim")
    if stated.budget.spent != stated.claim.epsilon:
        problems.append("budget.spent: not the ε of the claim")
    bounds = claims.bounds_of(rebuilt.plan)
    ours = f"dprecipe {stated.provenance.versions.get('dprecipe')}"
    for index, row in enumerate(stated.accounting):
        if row.role != "cross_check" and row.version != ours:
            problems.append(f"accounting.{index}.version: not the version in provenance.versions.dprecipe")
        if row.role == "cross_check" and row.version != stated.provenance.versions.get("dp-accounting"):
            problems.append(f"accounting.{index}.version: not the version in provenance.versions.dp-accounting")
        if row.bound != bounds.get(row.name):
            problems.append(f"accounting.{index}.bound: not what is known of {row.name}")
    return problems


def _row(row: Accountant, name: str, value: float, index: int) -> list[str]:
    result = [] if row.name == name else [f"accounting.{index}.name: {name} gives this bound, not {row.name}"]
    stated = math.inf if row.epsilon is None else row.epsilon
    return result + compare_number(f"accounting.{index}.epsilon", stated, value)


def _cross_check(
    row: Accountant, epsilon: float, rdp: float, plan: Plan, charges: tuple[Charge, ...], notes: list[str]
) -> list[str]:
    # A lack of memory here is no answer to a certificate whose maker had enough.
    renyi = row.name == "dp_accounting.rdp"
    opinion = cross_check.ask_library(charges, plan.budget.delta, plan.budget.neighbouring, renyi)
    stated = math.inf if row.epsilon is None else row.epsilon
    problems = []
    if opinion.version == row.version:
        if opinion.name != row.name:
            problems.append(f"accounting.2.name: {opinion.name} gives this bound, not {row.name}")
        problems += compare_number("accounting.2.epsilon", stated, opinion.epsilon)
    else:
        notes.append(f"dp-accounting {row.version} was not here to be asked again; {opinion.version} was")
        if math.isfinite(opinion.epsilon) and not abs(stated - opinion.epsilon) <= RENYI_ORDERS * opinion.epsilon:
            problems.append(f"accounting.2.epsilon: {stated!r} stated, dp-accounting gives {opinion.epsilon!r}")
    if opinion.name == "dp_accounting.pld":
        part, much = max(charge.event.cross_check_tolerance for charge in charges)
        if not opinion.epsilon <= epsilon * (1 + part) + much:
            problems.append(
                f"claim.epsilon: dp-accounting finds ε = {opinion.epsilon!r} for the events, above the claim"
            )
    elif math.isfinite(opinion.epsilon) and math.isfinite(rdp):
        notes.append("the cross-check is a Rényi bound: it was held against the Rényi cross-check")
        if not abs(opinion.epsilon - rdp) <= RENYI_ORDERS * rdp:
            problems.append(f"accounting: dp-accounting's Rényi bound is {opinion.epsilon!r}, ours {rdp!r}")
    else:
        problems.append("accounting: the second accountant has no bound for these events to hold the claim against")
    return problems


def _profile(stated: Predicate, rebuilt: Rebuilt) -> list[str]:
    plan, charges, claim = rebuilt.plan, rebuilt.charges, stated.claim
    epsilons = tuple(point.epsilon for point in claim.profile)
    if epsilons != claims.profile_epsilons(claim.epsilon):
        return ["claim.profile: not stated where it is due, or not for the claimed ε"]
    relation = plan.budget.neighbouring
    problems = []
    again = accountants.profile(charges, relation, plan.budget.accountant, epsilons)
    for index, (point, (_, delta)) in enumerate(zip(claim.profile, again, strict=True)):
        problems += compare_number(f"claim.profile.{index}.delta", point.delta, min(delta, 1.0))
    gdp = claims.gaussian_bound(charges, relation, claim.epsilon)
    if (gdp is None) != (claim.gdp is None):
        problems.append("claim.gdp: the events give another answer")
    elif gdp is not None and claim.gdp is not None:
        if (gdp.from_epsilon, gdp.to_epsilon) != (claim.gdp.from_epsilon, claim.gdp.to_epsilon):
            problems.append("claim.gdp: stated for another interval than the events give")
        problems += compare_number("claim.gdp.mu", claim.gdp.mu, gdp.mu)
    return problems
