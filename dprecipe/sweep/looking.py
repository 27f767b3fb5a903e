"""The cost of looking at all scores of a sweep, and the sweeps that are refused.

A look at the scores of several private runs is a release of all of them: it costs more than one run, and no budget of
a single recipe covers it. A sweep is allowed where the training records are public, or where each run is charged to
an account, which holds all of them together.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from dprecipe.account.faults import AccountRefused
from dprecipe.account.opening import open_account
from dprecipe.account.standing import find_cost
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.nonprivate.plan import PublicPlan
from dprecipe.planning.accounts import check_plan
from dprecipe.privacy.filters.filter import admits, mixture_epsilon
from dprecipe.sweep.cells import PlannedCell

DECLARED = "--public"
NOTE = 'meta.sweep="one of several runs on training records that were declared public"'
"""The remark of a run about itself (in its recipe, and so in its certificate) where its records are declared public."""


def check_allowed(planned: Sequence[PlannedCell], declared: bool) -> None:
    """Checks, before any record is read, that all scores may be looked at. `declared`: the user declares that the
    training records are public or synthetic.

    Raises:
        UsageFault: they may not, or there are none to look at.
    """
    for plan in (each.plan for each in planned):
        if isinstance(plan, PublicPlan):
            if plan.data.held_out is None:
                raise _without_score("data.test is not there", "add data.test, with access: public")
            continue
        if plan.tuning is not None:
            raise UsageFault(
                "the recipe has a block `tuning`, which tries values itself",
                f"dprecipe tune {shlex.quote(plan.source.file)}",
            )
        if not plan.publishes_scores:
            raise _without_score(
                "data.test is not declared public, and scores on private records are not looked at for nothing",
                "name held-out records as data.test with access: public; or let `dprecipe tune` pay for the score",
            )
        if plan.runtime.processes > 1:
            raise UsageFault("runtime.processes divides one run, and a sweep makes many", "leave it out; see --jobs")
        if plan.budget.account is not None and declared:
            raise UsageFault(
                f"{DECLARED} declares the training records public, and their account protects them",
                f"leave {DECLARED} out",
            )
        if plan.budget.account is None and not declared and not plan.data.train.is_embedded:
            raise UsageFault(
                "this sweep would look at the scores of several runs on private records, which costs more than the ε "
                "of one run",
                "give the recipe a block `tuning` for `dprecipe tune`, which pays for the choice; or name "
                f"budget.account, to which each run is charged; or, if the records are public or synthetic, say so "
                f"with {DECLARED}",
            )


def _without_score(reason: str, remedy: str) -> UsageFault:
    return UsageFault(f"a sweep compares scores on public records, and there are none: {reason}", remedy)


def price_looking(planned: Sequence[PlannedCell], new: Sequence[PlannedCell], declared: bool) -> str:
    """Returns what looking costs, in words. `new`: the cells that have not begun; others are counted already.

    Raises:
        AccountRefused: the account can't hold all new runs.
        PlanRefused, UsageFault, AccountUnavailable: the account is for other runs, is not there or can't be reached.
    """
    first = planned[0].plan
    if isinstance(first, PublicPlan):
        return "price of looking: none, the recipe declares its records public (mechanism none)"
    if any(isinstance(each.plan, Plan) and each.plan.budget.account is not None for each in planned):
        return _price_in_account(new or planned, len(new))
    if declared:
        return f"price of looking: none, {DECLARED} declares the training records public or synthetic"
    return "price of looking: none, the training records come with dprecipe"


def _price_in_account(cells: Sequence[PlannedCell], count: int) -> str:
    plans = [each.plan for each in cells if isinstance(each.plan, Plan)]
    names = {plan.budget.account for plan in plans}
    (name, *others) = sorted(names, key=str)
    if others or name is None:
        raise UsageFault("the runs of a sweep are charged to one account", "leave budget.account out of --over")
    with closing(open_account(name, Path(plans[0].source.file).resolve().parent, read_only=True)) as account:
        state = account.state()
    facts, total = state.facts, state.spent
    for plan in plans:
        check_plan(plan, facts)
        total = total + find_cost(plan.events, facts.neighbouring, facts.cap)
    if not count:
        return f"price of looking: paid, account {facts.name} counts ε = {state.epsilon:.4g} of {facts.epsilon:g}"
    after = mixture_epsilon(total, facts.cap)
    if not admits(total, facts.cap):
        raise AccountRefused(
            f"account {facts.name} can't hold {count} more runs like these: it counts ε = {state.epsilon:.4g} of "
            f"{facts.epsilon:g}, and with them {after:.4g}",
            "ask for fewer values or seeds, or for smaller budgets: dprecipe account plan shows what fits",
        )
    return (
        f"price of looking: each of {count} runs is charged to account {facts.name}, which counts ε = "
        f"{state.epsilon:.4g} of {facts.epsilon:g}, and {after:.4g} after all of them"
    )
