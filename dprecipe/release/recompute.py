"""The accountants' numbers of a certificate, computed again from its events.

A recomputed number must not exceed the stated one, without a tolerance. A stated one may exceed it: it is a weaker
claim, of a day when no tighter accountant was known. So the accountants of later versions may only become tighter.
"""

from __future__ import annotations

import math
from collections.abc import Set

from dprecipe.contract.certificate import compare_number
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.audit.implied import run_curve
from dprecipe.privacy.audit.results import Guesses
from dprecipe.privacy.audit.verdicts import refutes
from dprecipe.privacy.events import Charge
from dprecipe.release import claim as claims
from dprecipe.release.rebuild import Rebuilt
from dprecipe.release.schema import Accountant, Claim, GaussianBound, GroupBound, Predicate, RiskFacts
from dprecipe.release.specification import charged_mu

LAST_DIGIT = 1.1e-5
"""Relative size of one unit of the sixth significant digit, at its largest."""
RENYI_ORDERS = 2e-2
"""Largest relative difference of two Rényi bounds of the same events, which are taken over different orders."""


def recompute_numbers(stated: Predicate, rebuilt: Rebuilt, notes: list[str]) -> list[str]:
    """Returns the stated numbers that the events don't support; `notes` gains what could not be compared."""
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
    result = _check_repeated(stated, rebuilt)
    if not claim.epsilon <= plan.budget.epsilon:
        result.append(f"claim.epsilon: {claim.epsilon!r} exceeds the budget of {plan.budget.epsilon!r}")
    primary = accountants.epsilon_answer(charges, delta, relation, plan.budget.accountant)
    cross = accountants.epsilon_answer(charges, delta, relation, claims.choose_alternative(plan.budget.accountant))
    own = mechanism_of(plan.mechanism).certificate.bounds.keys()
    result += _check_row(first, {primary.accountant, *own}, primary.value, 0)
    result += _check_row(second, {cross.accountant, *own}, cross.value, 1)
    result += compare_number("claim.epsilon", claim.epsilon, primary.value)
    classic = primary.accountant == "rdp_classic"
    loose, tight = (cross, primary) if cross.accountant == "rdp" and not classic else (primary, cross)
    part = mechanism_of(plan.mechanism).certificate
    tolerance = max((charge.event.renyi_tolerance for charge in charges), default=0.0)
    if not tight.value <= loose.value * (1 + tolerance):
        result.append("accounting: the exact or numerical bound exceeds the Rényi bound; one of them is wrong")
    renyi = loose.accountant.startswith("rdp")
    rdp = accountants.epsilon(charges, delta, relation, "rdp") if renyi else math.inf
    result += _compare_cross_check(third, claim.epsilon, rdp, plan, charges, notes)
    if stated.mechanism.kind == plan.mechanism:
        result += part.check_numbers(stated.mechanism, plan, charges, claim.epsilon)
    result += _check_profile(stated, rebuilt) + _check_audited_curve(stated, rebuilt)
    return result + _check_specified_mu(stated, rebuilt)


def _check_repeated(stated: Predicate, rebuilt: Rebuilt) -> list[str]:
    """Returns values that the certificate repeats and that differ."""
    problems = []
    if stated.accounting[0].epsilon != stated.claim.epsilon:
        problems.append("accounting.0.epsilon: not the ε of the claim")
    if stated.budget.spent != stated.claim.epsilon:
        problems.append("budget.spent: not the ε of the claim")
    version = f"dprecipe {stated.provenance.versions.get('dprecipe')}"
    for index, row in enumerate(stated.accounting):
        if row.role != "cross_check" and row.version != version:
            problems.append(f"accounting.{index}.version: not the version in provenance.versions.dprecipe")
        if row.role == "cross_check" and row.version != stated.provenance.versions.get("dp-accounting"):
            problems.append(f"accounting.{index}.version: not the version in provenance.versions.dp-accounting")
    return problems


def _check_row(row: Accountant, names: Set[str], value: float, index: int) -> list[str]:
    """Checks a row of ours. `names`: that of the accountant, and those of a mechanism's own bounds, since a later
    version may find another one of them the smallest."""
    result = [] if row.name in names else [f"accounting.{index}.name: {row.name!a} gives no bound of these events"]
    stated = math.inf if row.epsilon is None else row.epsilon
    return result + compare_number(f"accounting.{index}.epsilon", stated, value)


def _compare_cross_check(
    row: Accountant, epsilon: float, rdp: float, plan: Plan, charges: tuple[Charge, ...], notes: list[str]
) -> list[str]:
    # A certificate has the Rényi bound where its maker lacked memory; then that bound is compared here too.
    renyi = row.name == "dp_accounting.rdp"
    answer = cross_check.ask_library(charges, plan.budget.delta, plan.budget.neighbouring, renyi)
    stated = math.inf if row.epsilon is None else row.epsilon
    problems = []
    if answer.version == row.version:
        if answer.name != row.name:
            problems.append(f"accounting.2.name: {answer.name} gives this bound, not {row.name}")
        problems += compare_number("accounting.2.epsilon", stated, answer.epsilon)
    else:
        notes.append(
            f"dp-accounting {row.version} is not installed; the cross-check was repeated with {answer.version}"
        )
        if math.isfinite(answer.epsilon) and not stated >= answer.epsilon * (1 - RENYI_ORDERS):
            problems.append(f"accounting.2.epsilon: {stated!r} stated, dp-accounting gives {answer.epsilon!r}")
    if answer.name == "dp_accounting.pld":
        relative, absolute = max(charge.event.cross_check_tolerance for charge in charges)
        if not answer.epsilon <= epsilon * (1 + relative) + absolute:
            problems.append(
                f"claim.epsilon: dp-accounting finds ε = {answer.epsilon!r} for the events, above the claim"
            )
    elif math.isfinite(answer.epsilon) and math.isfinite(rdp):
        notes.append("the cross-check is a Rényi bound, so it was compared with the Rényi accountant's")
        if not abs(answer.epsilon - rdp) <= RENYI_ORDERS * rdp:
            problems.append(f"accounting: dp-accounting's Rényi bound is {answer.epsilon!r}, ours {rdp!r}")
    else:
        problems.append(
            "accounting: the cross-check accountant has no bound for these events to compare the claim with"
        )
    return problems


def _check_profile(stated: Predicate, rebuilt: Rebuilt) -> list[str]:
    plan, charges, claim = rebuilt.plan, rebuilt.charges, stated.claim
    epsilons = tuple(point.epsilon for point in claim.profile)
    if epsilons != claims.choose_epsilons(claim.epsilon):
        return ["claim.profile: missing, or not at the points that belong to the claimed ε"]
    relation = plan.budget.neighbouring
    problems = []
    profile = accountants.profile(charges, relation, plan.budget.accountant, epsilons)
    for index, (point, (_, delta)) in enumerate(zip(claim.profile, profile, strict=True)):
        problems += compare_number(f"claim.profile.{index}.delta", point.delta, min(delta, 1.0))
    gdp = claims.find_gaussian_bound(charges, relation, claim.epsilon)
    if claim.gdp is not None:  # a certificate without one claims less
        problems += _check_gaussian_bound(claim.gdp, gdp)
    problems += _check_groups(claim, claims.bound_groups(charges, claim.epsilon, plan.budget))
    return problems + _check_risk(claim.risk, claims.assess_risk(charges, claim.epsilon, plan.budget, gdp))


def _check_gaussian_bound(stated: GaussianBound, recomputed: GaussianBound | None) -> list[str]:
    if recomputed is None:
        return ["claim.gdp: the events have no such bound"]
    first, last = recomputed.from_epsilon, math.inf if recomputed.to_epsilon is None else recomputed.to_epsilon
    if not first <= stated.from_epsilon <= (math.inf if stated.to_epsilon is None else stated.to_epsilon) <= last:
        return ["claim.gdp: stated for a longer interval than the events imply"]
    return compare_number("claim.gdp.mu", stated.mu, recomputed.mu)


def _check_groups(claim: Claim, recomputed: tuple[GroupBound, ...]) -> list[str]:
    if [group.size for group in claim.groups] != [group.size for group in recomputed]:
        return ["claim.groups: not the sizes of every certificate"]
    problems = []
    for index, (stated, ours) in enumerate(zip(claim.groups, recomputed, strict=True)):
        numbers = (math.inf if group.epsilon is None else group.epsilon for group in (stated, ours))
        problems += compare_number(f"claim.groups.{index}.epsilon", *numbers)
    return problems


def _check_audited_curve(stated: Predicate, rebuilt: Rebuilt) -> list[str]:
    """Checks the curve against which a run's canaries are held."""
    problems, budget = [], rebuilt.plan.budget
    for index, bound in enumerate(() if stated.audit is None else stated.audit.bounds):
        if not isinstance(bound.evidence, Guesses):
            continue
        place, stated_curve = f"audit.bounds.{index}.curve", bound.curve or ()
        curve = run_curve(rebuilt.charges, budget.neighbouring, budget.accountant, stated.claim.epsilon)
        if [point.epsilon for point in stated_curve] != [e for e, _ in curve]:
            problems.append(f"{place}: not at the points that belong to the claimed ε")
            continue
        for number, (point, (_, delta)) in enumerate(zip(stated_curve, curve, strict=True)):
            problems += compare_number(f"{place}.{number}.delta", point.delta, delta)
        if refutes(bound.evidence, bound.confidence, curve):  # the stated curve may be a looser one
            problems.append(f"audit.bounds.{index}.refuted: its names refute what the events cost")
    return problems


def _check_specified_mu(stated: Predicate, rebuilt: Rebuilt) -> list[str]:
    """Checks the separation of canaries by which their scores are judged."""
    test = None if stated.audit is None else stated.audit.specification
    if test is None:
        return []
    path, expected = "audit.specification.specified_mu", charged_mu(rebuilt.plan, rebuilt.charges)
    if not test.specified_mu <= expected * (1 + LAST_DIGIT):  # more would raise fewer alarms
        return [f"{path}: {test.specified_mu!r} stated, the events give {expected!r}"]
    return compare_number(path, test.specified_mu, expected)


def _check_risk(stated: RiskFacts, recomputed: RiskFacts) -> list[str]:
    rates, expected = stated.true_positive_rates, recomputed.true_positive_rates
    if [rate.false_positive_rate for rate in rates] != [rate.false_positive_rate for rate in expected]:
        return ["claim.risk.true_positive_rates: not at the false-positive rates of every certificate"]
    if [guess.prior for guess in stated.guesses] != [guess.prior for guess in recomputed.guesses]:
        return ["claim.risk.guesses: not at the priors of every certificate"]
    pairs = [
        *((f"true_positive_rates.{i}.true_positive_rate", rate.true_positive_rate, expected[i].true_positive_rate)
          for i, rate in enumerate(rates)),
        ("advantage", stated.advantage, recomputed.advantage),
        ("odds_factor", stated.odds_factor, recomputed.odds_factor),
        ("odds_failure", stated.odds_failure, recomputed.odds_failure),
        *((f"guesses.{i}.{name}", getattr(guess, name), getattr(recomputed.guesses[i], name))
          for i, guess in enumerate(stated.guesses) for name in ("success", "posterior")),
    ]  # fmt: skip
    return [
        problem
        for name, ours, theirs in pairs
        for problem in compare_number(
            f"claim.risk.{name}", math.inf if ours is None else ours, math.inf if theirs is None else theirs
        )
    ]
