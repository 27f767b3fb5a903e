"""Which tests of depth `program` accuse a plan: shared by the mechanisms that have an audit of their own."""

from __future__ import annotations

from collections.abc import Callable

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.privacy.audit.verdicts import is_deterministic, judge_test
from dprecipe.training.audit.request import AuditEvidence, AuditRequest

LEVEL = 1e-8
"""Of each statistical test."""


def find_accusers(audit: Callable[[Plan, AuditRequest], AuditEvidence], plan: Plan, fewest: int) -> set[str]:
    """The tests that fail; there are more than `fewest`, and all that a certificate must have."""
    tests = audit(plan, AuditRequest(("program",), 0, 0, 0.95)).tests
    assert len({test.id for test in tests}) == len(tests) > fewest
    assert mechanism_of(plan.mechanism).certificate.audit_tests <= {test.id for test in tests}
    levels = [0.0 if is_deterministic(test.evidence) else LEVEL for test in tests]
    judged = [judge_test(t.depth, t.id, t.text, t.evidence, level) for t, level in zip(tests, levels, strict=True)]
    return {test.id for test in judged if not test.passed}
