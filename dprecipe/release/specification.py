"""The test of the specification in a release: which runs have one, its check in a certificate, and its words.

It refutes no claim, and ends no run: one sound run in twenty (at a confidence of 0.95) raises an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from dprecipe.contract.plan import Plan
from dprecipe.page import escape_html
from dprecipe.planning.audit import canaries_of
from dprecipe.privacy.audit.results import SpecificationTest
from dprecipe.privacy.audit.specification import judge_specification, specified_mu, squared_separation
from dprecipe.privacy.events import Charge
from dprecipe.release.facts import Origin
from dprecipe.release.tensors import count_trained

CLOSE = 3e-6
"""Largest relative difference of two computations of one printed number."""
MEANING = (
    "Scores that are inconsistent with the specification say that the guarantee or the Gaussian model of the noise is "
    "broken: either way the program is not the one specified. They bound no ε, and consistent ones rule out no fault"
)


def find_reason_untested(plan: Plan, model: Origin) -> str | None:
    """Returns the reason why the scores of a run's canaries are not Gaussian by its plan, as a clause; None: they are,
    and are tested. `model`: "python" for a module whose weights the plan does not know."""
    if not canaries_of(plan, "gradient"):
        return "for what a model tells of a record has no specified distribution"
    events = [charge.event for charge in plan.mechanism_plan.events]
    if not plan.mechanism_plan.has_one_norm:
        return "for a canary lies in several layers, which may have fewer weights than there are canaries"
    if any(squared_separation(event, plan.budget.neighbouring) is None for event in events):
        return "for scores are Gaussian only with Gaussian noise on full batches"
    if model == "python" or canaries_of(plan) > count_trained(plan):
        return "for no more canaries than trained weights are known to have a coordinate each"
    return None


def charged_mu(plan: Plan, charges: Sequence[Charge]) -> float:
    """Returns the most by which the charged steps of a run separate its canaries. Steps whose scores a crash has lost
    count, and so do events of preprocessing that are equal to a step: fewer alarms."""
    steps = {charge.event for charge in plan.mechanism_plan.events}
    return specified_mu((charge for charge in charges if charge.event in steps), plan.budget.neighbouring)


def find_contradictions(
    stated: SpecificationTest | None, plan: Plan, model: Origin, has_canaries: bool
) -> Iterator[str]:
    """Finds what is wrong with the test by its own numbers and the plan. `has_canaries`: the certificate has them."""
    path = "audit.specification"
    if (stated is not None) is not (has_canaries and find_reason_untested(plan, model) is None):
        yield f"{path}: expected exactly where scores of canaries are Gaussian"
    if stated is None:
        return
    seen = stated.evidence
    if seen.inside + seen.outside != canaries_of(plan):
        yield f"{path}.evidence: not the number of canaries in the recipe"
    if plan.audit is not None and stated.confidence != plan.audit.confidence:
        yield f"{path}.confidence: not the recipe's"
    again = judge_specification(seen, stated.specified_mu, stated.confidence)
    for name in ("lower_mu", "p_value"):
        value, expected = getattr(stated, name), getattr(again, name)
        if not math.isclose(value, expected, rel_tol=CLOSE, abs_tol=1e-300):
            yield f"{path}.{name}: {value!r} stated, the scores give {expected!r}"
    if stated.consistent is not (stated.p_value >= 1 - stated.confidence):
        yield f"{path}.consistent: not what the p-value says"


def describe_test(test: SpecificationTest) -> str:
    """Returns the finding in words: never a bound of ε."""
    level = 1 - test.confidence
    verdict = (
        "consistent with the specification"
        if test.consistent
        else "inconsistent with the specification (the guarantee or the Gaussian model of the noise is broken, or this "
        f"is among the {100 * level:.2g} % of sound runs that raise this alarm; it bounds no ε)"
    )
    return f"the scores of this run's canaries are {verdict}: p = {test.p_value:.3g} at level {level:.2g}"


def render_test(test: SpecificationTest) -> str:
    """Returns the paragraphs of a report."""
    seen, finding = test.evidence, describe_test(test)
    counted = (
        f"{seen.inside:,} canaries in and {seen.outside:,} out: their mean scores differ by {seen.difference:.3g} "
        f"standard deviations, where the specification has at most {test.specified_mu:.3g}; at this level, scores that "
        f"are Gaussian agree with {test.lower_mu:.3g} or more"
    )
    return (
        f"<p>{escape_html(finding[:1].upper() + finding[1:])}.</p>"
        f'<p class="small">{escape_html(counted)}. {escape_html(MEANING)}.</p>'
    )
