"""A certificate compared with a stranger's statement of its account."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.release.account_statement import hold_statement
from dprecipe.release.verify import verify
from tests.account.hostile import write_costly_statement
from tests.release.test_charged_account import account_of


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers there")
def test_a_strangers_statement_costs_no_more_than_is_allowed(
    tmp_path: Path, finish: Any, plan_of: Callable[..., Plan], facts_of: Any
) -> None:
    plan = plan_of(overrides=("budget.account=accounts/admissions.db",))
    verified = verify(finish(tmp_path / "run", plan, facts_of(account=account_of(plan))).release)
    write_costly_statement(tmp_path / "statement.json")
    with pytest.raises(CertificateInvalid) as caught:
        hold_statement(verified, tmp_path / "statement.json", max_seconds=0.5)
    (failure,) = caught.value.failures
    assert failure.startswith("account statement: recomputing it needs more than the allowed 0.5 s of processor time")
