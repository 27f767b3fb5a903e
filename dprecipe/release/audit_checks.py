"""Checks of an audit in a certificate: all that it states follows again from the counts, the recipe and the claim.

A certificate can't show whether the counts are what was seen; nor can an audit show that there is no fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.planning.audit import canaries_of, naming_of
from dprecipe.privacy.audit.implied import implied_epsilon, step_curve, step_mu
from dprecipe.privacy.audit.program import digest_program
from dprecipe.privacy.audit.results import Audit, AuditBound, AuditTest, Guesses
from dprecipe.privacy.audit.verdicts import (
    describe_chance,
    is_deterministic,
    judge_bound,
    judge_test,
    refutes,
    share_level,
)
from dprecipe.release import specification
from dprecipe.release.no_model import has_no_model
from dprecipe.release.schema import Predicate

CLOSE = 3e-6
"""Largest relative difference of two computations of one printed number: a unit of its sixth digit, and a little."""

CLOSE_SOLUTIONS = 2e-2
"""The same of two solutions of a linear programme: each is a bound, and the better one depends on the solver."""


def find_contradictions(stated: Predicate, plan: Plan) -> list[str]:
    """Finds what is wrong with the audit of a certificate, by its own numbers and the plan of its recipe."""
    audit, asked = stated.audit, list_depths(plan, has_no_model(stated))
    if (audit is None) is not (not asked):
        return ["audit: expected exactly for recipes that ask for one"]
    if audit is None:
        return []
    problems = list(_check_depths(audit, plan, asked))
    version = stated.provenance.versions.get("dprecipe", "")
    if audit.program != digest_program(plan.digest, version, audit.sources):
        problems.append("audit.program: not the digest of this plan, this version and these sources")
    unasked = list(_check_sizes(audit, plan))
    if unasked:
        return [*problems, *unasked]  # it could take hours to compute with them
    model, has_canaries = stated.provenance.model, "canaries" in asked
    asked_test = specification.find_contradictions(audit.specification, plan, model, has_canaries)
    return [*problems, *_check_verdicts(audit, stated.is_own), *_check_claims(stated, audit, plan), *asked_test]


def list_depths(plan: Plan, ended_without_model: bool) -> list[str]:
    """Returns the depths of the audit that a run of the plan states: what its recipe asks for, of what its mechanism
    has. No name is given to the canaries of a run that ended without a model."""
    known = mechanism_of(plan.mechanism).audit_depths
    before = [] if plan.audit is None else [depth for depth in plan.audit.depths if depth in known]
    return [*before, *(["canaries"] if canaries_of(plan) and not ended_without_model else [])]


def _check_depths(audit: Audit, plan: Plan, asked: Sequence[str]) -> Iterator[str]:
    """Checks that depths are those that the recipe asks for, and no other; each with what it always has."""
    done = audit.depths
    yield from (f"audit: depth {depth} is missing, for which the recipe asks" for depth in asked if depth not in done)
    yield from (
        f"audit: depth {depth} is there, for which the recipe does not ask" for depth in done if depth not in asked
    )
    tests = {test.id for test in audit.tests if test.depth == "program"}
    always = {"secrets"} | mechanism_of(plan.mechanism).certificate.audit_tests if "program" in asked else set()
    yield from (f"audit.tests: {name} is missing" for name in sorted(always - tests))
    bounded = {bound.depth for bound in audit.bounds}
    yield from (
        f"audit.bounds: depth {depth} has no lower bound" for depth in asked if depth not in {*bounded, "program"}
    )


def _check_sizes(audit: Audit, plan: Plan) -> Iterator[str]:
    """Checks that bounds are made of what the recipe asks for, and of as much of it."""
    for index, bound in enumerate(audit.bounds):
        seen, path = bound.evidence, f"audit.bounds.{index}"
        if bound.depth == "program":
            yield f"{path}.depth: what is tested of a program has no lower bound"
        elif isinstance(seen, Guesses) is not (bound.depth == "canaries"):
            yield f"{path}.evidence: expected guesses of canaries, and trials of all else"
        elif isinstance(seen, Guesses):
            if not seen.canaries == canaries_of(plan) > 0:
                yield f"{path}.evidence.canaries: not the number in the recipe"
        elif bound.depth == "steps" and plan.audit is not None and seen.trials_in + seen.trials_out != plan.audit.steps:
            yield f"{path}.evidence: not as many trials as the recipe asks for"


def _check_verdicts(audit: Audit, own: bool) -> Iterator[str]:
    level = share_level(test.evidence for test in audit.tests)
    for index, test in enumerate(audit.tests):
        path = f"audit.tests.{index}"
        if test.level != (0.0 if is_deterministic(test.evidence) else level):
            yield f"{path}.level: not this test's equal part of what all of them share"
        else:
            yield from (f"{path}.{problem}" for problem in _check_test(test))
    for index, bound in enumerate(audit.bounds):
        try:
            yield from (f"audit.bounds.{index}.{problem}" for problem in _check_bound(bound, own))
        except (Fault, ValueError, ArithmeticError) as error:
            yield f"audit.bounds.{index}: can't be computed again: {error}"


def _check_test(stated: AuditTest) -> Iterator[str]:
    again = judge_test(stated.depth, stated.id, stated.text, stated.evidence, stated.level, stated.choices)
    if not _is_close(stated.p_value, again.p_value):
        yield f"p_value: {stated.p_value!r} stated, the evidence gives {again.p_value!r}"
    if stated.passed is not (stated.p_value > stated.level):
        yield "passed: not what the p-value says"
    if not stated.passed:
        yield f"passed: {stated.id} did not pass: the program that ran is not the one that is claimed"


def _check_bound(stated: AuditBound, own: bool) -> Iterator[str]:
    """Checks a bound by its own counts, from which a later version may conclude more, never less; this one, as much.
    `own`: this version made the certificate."""
    again = judge_bound(
        stated.depth,
        stated.id,
        stated.text,
        stated.evidence,
        confidence=stated.confidence,
        claimed=None if stated.measure == "rate" else stated.claimed,
        delta=stated.delta,
        curve=None if stated.curve is None else [(point.epsilon, point.delta) for point in stated.curve],
        implied_epsilon=stated.implied_epsilon,
    )
    solved = CLOSE_SOLUTIONS if isinstance(stated.evidence, Guesses) else CLOSE
    if not _is_close(stated.claimed, again.claimed):
        yield f"claimed: {stated.claimed!r} stated, the counts give {again.claimed!r}"
    for name, close in (("lower", solved), ("smallest_fault", CLOSE), ("p_value", solved)):
        value, expected = _or_infinite(getattr(stated, name)), _or_infinite(getattr(again, name))
        low, high = value >= expected * (1 - close), value <= expected * (1 + close)
        if not (low and high if own else high if name == "lower" else low):
            yield f"{name}: {value!r} stated, the counts give {expected!r}"
    if (stated.p_value is None) is not (again.p_value is None):
        yield "p_value: expected exactly of guesses"
    if stated.refuted is not stated.contradicted:
        yield "refuted: not what the bound says"
    if stated.refuted and stated.p_value is not None:
        yield f"refuted: {describe_chance(stated)}, where {1 - stated.confidence:.3g} is the least that is allowed"
    elif stated.refuted or again.refuted:
        yield f"refuted: the lower bound {again.lower!r} exceeds the claimed {stated.claimed!r}"


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _check_claims(stated: Predicate, audit: Audit, plan: Plan) -> Iterator[str]:
    """Checks that the confidence, the sizes and the claims of all bounds are those of the recipe."""
    block = plan.audit
    for index, bound in enumerate(audit.bounds if block is not None else ()):
        path = f"audit.bounds.{index}"
        if block is not None and bound.confidence != block.confidence:
            yield f"{path}.confidence: not the recipe's"
        if bound.depth == "steps":
            yield from (f"{path}.{problem}" for problem in _check_step(bound, plan, stated.is_own))
            continue
        if bound.implied_epsilon is not None:
            yield f"{path}.implied_epsilon: expected of a bound of a step alone"
        if bound.depth == "canaries":
            yield from (f"{path}.{problem}" for problem in _check_canaries(bound, stated, plan))
    if sum(bound.depth == "canaries" for bound in audit.bounds) > 1:
        yield "audit.bounds: a run has one bound of its canaries"


def _check_canaries(bound: AuditBound, stated: Predicate, plan: Plan) -> Iterator[str]:
    """Checks that the plan's numbers of canaries and of names are stated, and the claim of the certificate."""
    seen = bound.evidence
    each = naming_of(plan).each
    if isinstance(seen, Guesses) and (seen.named_in, seen.named_out) != (each, each):
        yield f"evidence.named_in: the plan names {each} in and {each} out"
    if (bound.claimed, bound.delta) != (stated.claim.epsilon, stated.claim.delta):
        yield "claimed: not the claim of this certificate"


def _check_step(bound: AuditBound, plan: Plan, own: bool) -> Iterator[str]:
    events = [charge.event for charge in plan.mechanism_plan.events]
    if bound.curve is not None:
        curve = [(point.epsilon, point.delta) for point in bound.curve]
        steps = [step for step in map(step_curve, dict.fromkeys(events)) if _covers(curve, step)]
        if not steps:
            yield "curve: not the profile of a step of this recipe"
        elif bound.measure == "rate" and all(refutes(bound.evidence, bound.confidence, step) for step in steps):
            yield "refuted: the counts refute the profile of a step of this recipe"
        return
    if bound.measure != "mu" or bound.claimed not in {step_mu(event) for event in events}:
        yield "claimed: not what a step of this recipe claims"
        return
    relation, delta = plan.budget.neighbouring, plan.budget.delta
    implied = implied_epsilon(
        plan.stage_charges, plan.mechanism_plan.events, relation, delta, bound.claimed, bound.lower
    )
    value, expected = bound.implied_epsilon or 0.0, implied or 0.0
    is_enough, is_too_much = value >= expected * (1 - CLOSE), value > expected * (1 + CLOSE)
    if (bound.implied_epsilon is None) is not (implied is None) or not is_enough or (own and is_too_much):
        yield f"implied_epsilon: {bound.implied_epsilon!r} stated, the bound implies {implied!r}"


def _covers(stated: Sequence[tuple[float, float]], step: Sequence[tuple[float, float]]) -> bool:
    """Returns True if a stated curve is at the points of another one, and nowhere below it."""
    return len(stated) == len(step) and all(
        _is_close(epsilon, point) and delta >= least * (1 - CLOSE)
        for (epsilon, delta), (point, least) in zip(stated, step, strict=True)
    )


def _is_close(stated: float, expected: float) -> bool:
    return math.isclose(stated, expected, rel_tol=CLOSE, abs_tol=1e-300)
