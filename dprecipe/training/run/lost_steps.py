"""Steps that were charged and are not in the model: a crash has taken them, or a file that is gone."""

from __future__ import annotations

from dprecipe.contract.plan import Plan
from dprecipe.faults import BudgetSpent
from dprecipe.progress import report_progress


def check_trained(plan: Plan, unit: str, charged: int, trained: int, files: str, accepted: bool) -> None:
    """Refuses an attempt that goes on with a model that lacks more than half of the steps planned, unless that is
    `accepted`: it would be published as a model, and hold next to nothing. Fewer lost steps are no hindrance.

    `unit`: steps or queries. `files`: where those are that the model has.

    Raises:
        BudgetSpent: it lacks more, and that was not accepted.
    """
    missing, planned = charged - trained, plan.length.steps
    if missing <= 0:
        return
    text = f"{charged:,} of {planned:,} {unit} are charged, and the model has {trained:,} of them"
    if 2 * missing <= planned or accepted:
        report_progress(f"{text}: the certificate says so")
        return
    raise BudgetSpent(
        f"{text}: what can be released is hardly trained",
        f"put {files} back, if there is a copy; or publish the model as it is with --resume --accept-lost-steps: card "
        "and certificate say what it lacks (a new run on the same records spends a second budget)",
    )
