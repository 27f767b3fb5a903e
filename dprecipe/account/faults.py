"""Faults that end a command that uses an account."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.faults import BudgetSpent, Fault, RunFailed
from dprecipe.screen import make_printable


class AccountRefused(BudgetSpent):
    """A refusal by the account: the cap would be exceeded, or its rules forbid the step. Exit code 3.

    `room`: the share of the run's cost that would still fit, where the cap is the reason; None otherwise.
    """

    def __init__(self, message: str, remedy: str = "", affordable_share: float | None = None) -> None:
        super().__init__(message, remedy)
        self.affordable_share = affordable_share


class AccountUnavailable(RunFailed):
    """A failure to reach, read or write the account's database; nothing is half-written. Exit code 4."""


class AccountInvalid(Fault):
    """An account or a statement that does not verify; `failures` names each thing that does not hold. Exit code 3."""

    exit_code = 3

    def __init__(self, subject: str, failures: Sequence[str]) -> None:
        self.failures = tuple(failures)
        super().__init__(
            f"{subject} does not verify:\n" + "\n".join(f"- {make_printable(f)}" for f in self.failures),
            "admit no run to it; go back to a copy that verifies, or make a new account (docs/how-to/account.md)",
        )
