"""The checks that this version runs on a program before it sees a record: exactly these, with these texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dprecipe.contract.certificate import STAGE_NOISE
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.release.facts import CheckResult
from dprecipe.release.schema import CheckFacts
from dprecipe.release.untrusted import one_line

MAX_MEASURED, MAX_DEVICE = 400, 120
"""Characters of what a check measured, and of a device's name."""


def list_checks(plan: Plan) -> Mapping[str, str]:
    """Lists exactly the checks that a certificate of the plan lists: its mechanism's, and those of paid steps."""
    own = mechanism_of(plan.mechanism).certificate.list_checks(plan)
    return {**own, **STAGE_NOISE} if plan.stages else own


def shorten_record(text: str, max_length: int) -> str:
    """Returns a run's own text as a certificate holds it: one line without control characters, cut to `max_length`."""
    line = one_line(text)
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def check_facts(result: CheckResult, plan: Plan) -> CheckFacts:
    """Returns a check as a certificate of the plan states it, with this version's text."""
    text = list_checks(plan).get(result.id, result.text)
    return CheckFacts(
        id=result.id, text=text, passed=result.passed, measured=shorten_record(result.measured, MAX_MEASURED)
    )


def find_check_differences(stated: Sequence[CheckFacts], plan: Plan) -> list[str]:
    """Checks that are missing, that runs of this plan don't make, or that appear twice."""
    expected, ids = list_checks(plan), [check.id for check in stated]
    problems = [f"checks: {name} is missing" for name in sorted(set(expected) - set(ids))]
    problems += [
        f"checks: {name!a} is not a check of this kind of run" for name in dict.fromkeys(ids) if name not in expected
    ]
    problems += ["checks: one appears twice"] if len(set(ids)) != len(ids) else []
    return problems
