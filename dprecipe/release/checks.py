"""The checks that this version makes on a program before it sees a record: exactly these, in these words."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.release.facts import CheckResult
from dprecipe.release.schema import CheckFacts
from dprecipe.release.untrusted import one_line

MAX_MEASURED, MAX_DEVICE = 400, 120
"""Characters of what a check measured, and of a device's name."""


def record_text(text: str, most: int) -> str:
    """What a run says of itself, as a certificate has it: one line without control characters, at most this long."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: most - 1]}…"


def check_facts(found: CheckResult, plan: Plan) -> CheckFacts:
    """A check as a certificate of the plan has it, in the words of the plan's mechanism."""
    text = mechanism_of(plan.mechanism).certificate.list_checks(plan).get(found.id, found.text)
    return CheckFacts(id=found.id, text=text, passed=found.passed, measured=record_text(found.measured, MAX_MEASURED))


def find_check_differences(stated: Sequence[CheckFacts], plan: Plan) -> list[str]:
    """Checks that are missing, do not belong to runs of this plan, stand twice, or did not pass."""
    expected, named = mechanism_of(plan.mechanism).certificate.list_checks(plan), [check.id for check in stated]
    problems = [f"checks: {name} was not made" for name in sorted(set(expected) - set(named))]
    problems += [f"checks: {name!a} is no check of such a run" for name in dict.fromkeys(named) if name not in expected]
    problems += ["checks: one stands twice"] if len(set(named)) != len(named) else []
    return problems
