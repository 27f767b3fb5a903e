"""The audit of a run: its check in a certificate, and its figures in a report, a card and on the screen.

All that a certificate states of its audit follows again from the counts, the recipe and the claim. A certificate can't
show whether the counts are what was seen; nor can an audit show that there is no fault. The figures are lower bounds
beside the claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dprecipe.contract.drawing import CAP, SOFT, Axes, Figure
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.page import escape_html, render_section, render_table
from dprecipe.planning.audit import canaries_of, naming_of
from dprecipe.privacy.audit.implied import implied_epsilon, step_curve, step_mu
from dprecipe.privacy.audit.program import digest_program, digest_sources
from dprecipe.privacy.audit.results import Audit, AuditBound, AuditTest, Depth, Guesses
from dprecipe.privacy.audit.verdicts import describe_chance, is_deterministic, judge_bound, judge_test, share_level
from dprecipe.privacy.rounding import round_down
from dprecipe.release import specification
from dprecipe.release.meaning import read_up
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
    return [*problems, *_check_verdicts(audit), *_check_claims(stated, audit, plan), *asked_test]


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


def describe_note(audit: Audit) -> str:
    """Describes what the checks of an audit don't show."""
    small = (
        "; what bounds of whole runs are held against, small runs of their own"
        if any(bound.depth == "releases" for bound in audit.bounds)
        else ""
    )
    here = "are those installed here" if audit.sources == digest_sources() else "are others than those installed here"
    return (
        f"taken from the certificate alone: what the audit counted, and in which words{small}; and that it ran the "
        f"sources that it names, which {here}. An audit can show a fault, never its absence"
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


def _check_verdicts(audit: Audit) -> Iterator[str]:
    level = share_level(test.evidence for test in audit.tests)
    for index, test in enumerate(audit.tests):
        path = f"audit.tests.{index}"
        if test.level != (0.0 if is_deterministic(test.evidence) else level):
            yield f"{path}.level: not this test's equal part of what all of them share"
        else:
            yield from (f"{path}.{problem}" for problem in _check_test(test))
    for index, bound in enumerate(audit.bounds):
        try:
            yield from (f"audit.bounds.{index}.{problem}" for problem in _check_bound(bound))
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


def _check_bound(stated: AuditBound) -> Iterator[str]:
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
    for name, close in (("claimed", CLOSE), ("lower", solved), ("smallest_fault", CLOSE), ("p_value", solved)):
        value, expected = getattr(stated, name), getattr(again, name)
        if not _is_close(value, expected, close):
            yield f"{name}: {value!r} stated, the counts give {expected!r}"
    if stated.refuted is not stated.contradicted:
        yield "refuted: not what the bound says"
    if stated.refuted and stated.p_value is not None:
        yield f"refuted: {describe_chance(stated)}, where {1 - stated.confidence:.3g} is the least that is allowed"
    elif stated.refuted:
        yield f"refuted: the lower bound {stated.lower!r} exceeds the claimed {stated.claimed!r}"


def _check_claims(stated: Predicate, audit: Audit, plan: Plan) -> Iterator[str]:
    """Checks that the confidence, the sizes and the claims of all bounds are those of the recipe."""
    block = plan.audit
    for index, bound in enumerate(audit.bounds if block is not None else ()):
        path = f"audit.bounds.{index}"
        if block is not None and bound.confidence != block.confidence:
            yield f"{path}.confidence: not the recipe's"
        if bound.depth == "steps":
            yield from (f"{path}.{problem}" for problem in _check_step(bound, plan))
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


def _check_step(bound: AuditBound, plan: Plan) -> Iterator[str]:
    events = [charge.event for charge in plan.mechanism_plan.events]
    if bound.curve is not None:
        curve = [(point.epsilon, point.delta) for point in bound.curve]
        if not any(_are_close(curve, step_curve(event)) for event in dict.fromkeys(events)):
            yield "curve: not the profile of a step of this recipe"
        return
    if bound.measure != "mu" or bound.claimed not in {step_mu(event) for event in events}:
        yield "claimed: not what a step of this recipe claims"
        return
    relation, delta = plan.budget.neighbouring, plan.budget.delta
    implied = implied_epsilon(
        plan.stage_charges, plan.mechanism_plan.events, relation, delta, bound.claimed, bound.lower
    )
    if not _is_close(bound.implied_epsilon, implied):
        yield f"implied_epsilon: {bound.implied_epsilon!r} stated, the bound implies {implied!r}"


def _are_close(stated: Sequence[tuple[float, float]], expected: Sequence[tuple[float, float]]) -> bool:
    return len(stated) == len(expected) and all(
        _is_close(ours, theirs)
        for pair, other in zip(stated, expected, strict=True)
        for ours, theirs in zip(pair, other, strict=True)
    )


def _is_close(stated: float | None, expected: float | None, close: float = CLOSE) -> bool:
    if stated is None or expected is None:
        return stated is expected
    return math.isclose(stated, expected, rel_tol=close, abs_tol=1e-300)


TITLE = "The claim attacked"
NOT_AUDITED = (
    "Nobody attacked this claim: the recipe asks for no audit. The claim rests on its mathematics, on the checks and "
    "on what is declared"
)
LIMITS = (
    "An attack can show a fault, never its absence: a lower bound below the claim does not show that the claim holds, "
    "and a fault smaller than the one named beside it would probably not have been seen"
)
DEPTHS: dict[Depth, str] = {
    "program": "the compiled program on synthetic records",
    "steps": "a canary in or out of steps on synthetic records",
    "canaries": "canaries among the records of this run",
    "releases": "whole runs on synthetic records",
}
SYMBOLS = {"mu": "μ", "epsilon": "ε", "rate": "true-positive rate"}
HEAD = ("", "attack on", "counted", "lower bound", "claimed at most", "smallest fault", "implied ε")
AXES = ("lower bound", "share of the claim")
FAULT, CLAIM = "smallest fault", "the claim"
WIDTH = 0.4
"""Width of a bar, where each bound has a place of 1."""
MAX_SHARE = 3.0
"""Largest share of the claim that the figure shows."""


def summarise_audit(audit: Audit | None) -> str:
    """Returns one sentence for people, without a full stop."""
    return "; ".join(list_audit_lines(audit)) or NOT_AUDITED


def list_audit_lines(audit: Audit | None) -> list[str]:
    """Lists what was tried and what it showed, line by line; no lines where nothing was tried."""
    if audit is None:
        return []
    return [
        *([f"{len(audit.tests):,} tests of the program found no fault"] if audit.tests else []),
        *(describe_bound(bound) for bound in audit.bounds),
        *([] if audit.specification is None else [specification.describe_test(audit.specification)]),
    ]


def describe_bound(bound: AuditBound) -> str:
    """Returns a bound beside its claim, in words."""
    symbol, fault = SYMBOLS[bound.measure], bound.smallest_fault
    if bound.p_value is not None:
        return (
            f"an attack on {DEPTHS[bound.depth]}: {describe_chance(bound)}; of a program whose curve is a Gaussian's "
            f"it implies {symbol} >= {read_down(bound.lower)}, where at most {read_up(bound.claimed)} is claimed, at a "
            f"confidence of {bound.confidence:g}; it would probably see "
            + ("no fault at all" if fault is None else f"a fault from {symbol} = {read_up(fault)} on")
        )
    implied = "" if bound.implied_epsilon is None else f" (implied ε of the run: {bound.implied_epsilon:g})"
    return (
        f"an attack on {DEPTHS[bound.depth]} shows {symbol} >= {read_down(bound.lower)}{implied}, where at most "
        f"{read_up(bound.claimed)} is claimed, at a confidence of {bound.confidence:g}, and would probably see "
        + ("no fault at all" if fault is None else f"a fault from {symbol} = {read_up(fault)} on")
    )


def read_down(bound: float) -> str:
    """Returns a lower bound in few digits, never above it."""
    return f"{round_down(bound, 3):g}"


def render_audit(audit: Audit | None, figures: str) -> str:
    """Returns the section of a report; `figures`: its figure, drawn."""
    if audit is None:
        return render_section(TITLE, f"<p>{escape_html(NOT_AUDITED)}.</p>")
    body = f"<p>{escape_html(LIMITS)}.</p>{figures}"
    if audit.bounds:
        columns = HEAD if any(bound.implied_epsilon is not None for bound in audit.bounds) else HEAD[:-1]
        rows = [_bound_row(number, bound)[: len(columns)] for number, bound in enumerate(audit.bounds, 1)]
        body += render_table(columns, rows)
        body += f'<p class="small">{escape_html(_explain(audit.bounds))}</p>'
    if audit.specification is not None:
        body += specification.render_test(audit.specification)
    if audit.tests:
        rows = [
            (test.text, "passed" if test.passed else "failed", "" if test.level == 0 else f"{test.p_value:.2g}")
            for test in audit.tests
        ]
        table = render_table(("expected of a sound program", "result", "p-value"), rows)
        body += (
            f"<details><summary>{len(audit.tests):,} tests of the program on synthetic records: a sound program fails "
            f"any of them with probability at most {_error(audit.tests):g}</summary>{table}</details>"
        )
    return render_section(TITLE, body)


def _explain(bounds: Sequence[AuditBound]) -> str:
    levels = sorted({bound.confidence for bound in bounds})
    parts = [
        "A sound program gives a lower bound above its true value with probability at most one minus the confidence "
        f"({', '.join(f'{level:g}' for level in levels)}), for each of them. Smallest fault: the true value that "
        "attacks of these sizes call a fault with probability 0.8, in the case that theory expects."
    ]
    if any(bound.implied_epsilon is not None for bound in bounds):
        parts.append(
            "Implied ε: of the whole run at the claim's δ, if every step were as the bound of one says, and sampled as "
            "planned; it is no bound."
        )
    if any(bound.p_value is not None for bound in bounds):
        parts.append(
            "Canaries of a run: p bounds the probability of as many right names for any program that keeps to the "
            "claimed curve δ(ε), and refutes the claim below one minus the confidence. The lower bound beside it is "
            "implied: it holds of programs whose curve is a Gaussian's."
        )
    return " ".join(parts)


def _bound_row(number: int, bound: AuditBound) -> tuple[str, ...]:
    symbol = SYMBOLS[bound.measure]
    fault = "none" if bound.smallest_fault is None else f"{symbol} = {read_up(bound.smallest_fault)}"
    return (
        f"{number}",
        DEPTHS[bound.depth],
        describe_evidence(bound),
        f"{symbol} >= {read_down(bound.lower)}",
        f"{symbol} <= {read_up(bound.claimed)}",
        fault,
        "none" if bound.implied_epsilon is None else f"{bound.implied_epsilon:g}",
    )


def describe_evidence(bound: AuditBound) -> str:
    """Describes what was counted."""
    seen = bound.evidence
    if isinstance(seen, Guesses):
        named = seen.named_in + seen.named_out
        return f"{seen.correct:,} of {named:,} names right, of {seen.canaries:,} canaries; p <= {bound.p_value:.3g}"
    return (
        f"called in: {seen.positives_in:,} of {seen.trials_in:,} with the canary, {seen.positives_out:,} of "
        f"{seen.trials_out:,} without"
    )


def _error(tests: Sequence[AuditTest]) -> float:
    return float(f"{sum(test.level for test in tests):.3g}")


def list_audit_figures(audit: Audit | None) -> list[Figure]:
    """Draws lower bounds as shares of their claims; none where nothing was bounded."""
    bounds = [] if audit is None else [bound for bound in audit.bounds if bound.claimed > 0]
    if not bounds:
        return []
    shares = ", ".join(f"{bound.lower / bound.claimed:.0%}" for bound in bounds)
    return [
        Figure(
            "audit",
            "What attacks could show, as shares of what is claimed at most (the line), in the order of the table. "
            "Above the line the claim would be refuted."
            + (" A dot is the smallest fault that would probably be seen." if _list_faults(bounds) else ""),
            lambda axes: draw_bounds(axes, bounds),
            frozenset({*AXES, FAULT, CLAIM}),
            f"Lower bounds of {shares} of what is claimed.",
        )
    ]


def _list_faults(bounds: Sequence[AuditBound]) -> list[tuple[int, float]]:
    """Returns the numbers of bounds and their smallest faults, as shares of the claim, where they fit in the figure."""
    shares = ((number, bound, bound.smallest_fault) for number, bound in enumerate(bounds, 1))
    return [(n, fault / b.claimed) for n, b, fault in shares if fault is not None and fault <= MAX_SHARE * b.claimed]


def draw_bounds(axes: Axes, bounds: Sequence[AuditBound]) -> None:
    """Each lower bound, and the smallest fault that would probably have been seen, as shares of the claim."""
    shares = [bound.lower / bound.claimed for bound in bounds]
    faults = _list_faults(bounds)
    for number, share in enumerate(shares, 1):
        axes.draw_bars([number - WIDTH / 2, number + WIDTH / 2], [share])
        axes.write(f"{share:.0%}", (number, share), anchor="middle", shift=(0, -5))
    axes.draw_level(1.0)
    axes.write(CLAIM, (0.5, 1.0), CAP, shift=(4, -5))
    axes.plot([], SOFT, label=FAULT if faults else "")
    for number, share in faults:
        axes.mark(number, share, SOFT)
    axes.add_legend()
    top = max([1.0, *shares, *(share for _, share in faults)])
    axes.set(*AXES, (0.5, len(bounds) + 0.5), (0.0, 1.3 * top), whole_x=True)
