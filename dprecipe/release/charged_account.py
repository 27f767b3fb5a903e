"""A certificate's statement of the account that its run was charged to, and its checks.

A run's own claim is unchanged by its account: it holds for that run's output, conditionally on everything before it.
The account's cap is another claim, for all its runs together; `docs/how-to/account.md` has the theorem.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints

from dprecipe.account.facts import NAME
from dprecipe.contract.facts import Digest, Probability, Word
from dprecipe.contract.plan import Plan
from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.rounding import round_up_finite

if TYPE_CHECKING:
    from dprecipe.privacy.filters.cap import Cap, Spent

Hex128 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]


class AccountCost(Block):
    """A Rényi cost at the account's orders, and the δ at which it does not hold."""

    rdp: Annotated[tuple[NonNegativeFloat | None, ...], Field(min_length=1, max_length=32)] = Field(
        description="null: infinite"
    )
    delta: Probability


class ChargedAccount(Block):
    """The data set's account that the run was charged to, as it was once the run was settled there."""

    name: Annotated[str, StringConstraints(pattern=f"^{NAME}$")]
    id: Hex128
    epsilon: PositiveFloat = Field(description="the cap: all runs together are (ε, δ)-DP")
    delta: Annotated[float, Field(gt=0, lt=1)]
    unit: Word
    neighbouring: Literal["add_or_remove_one", "replace_one", "zero_out_one"]
    run: Hex128 = Field(description="as the account calls this run")
    position: PositiveInt = Field(description="entries of the account, this run's settlement being the last")
    entries: Digest = Field(description="of that entry, and through it of all before")
    reserved: AccountCost = Field(description="what the account held for this run while it ran")
    counted: AccountCost = Field(description="what the account counts for this run")
    after: AccountCost = Field(description="what all runs of the account count, open reservations included")
    epsilon_so_far: NonNegativeFloat | None = Field(
        description="of `after`, at the cap's δ: what the account compares with its cap; null: infinite"
    )
    odometer: NonNegativeFloat | None = Field(
        description="odometer, ex post: with probability 1 - δ, the realised loss of all that is counted is at "
        "most this, now and at all other times; no (ε, δ) claim; null: infinite"
    )

    @property
    def cap(self) -> Cap:
        """The account's cap. Raises `ValueError`."""
        from dprecipe.privacy.filters.cap import Cap

        return Cap(self.epsilon, self.delta)


NOTE = (
    "the account's other entries are not here: what it counted before this run, and their digest, are taken from the "
    "certificate alone; --account-statement FILE compares them with the account's own statement"
)
SENTENCE = (
    "the other runs that are charged to the same account: this run is one of several, and the account's cap, stated "
    "under `account`, holds for all of them together"
)


def to_curve(spent: Spent) -> AccountCost:
    """Returns a cost as a certificate states it."""
    return AccountCost(rdp=tuple(None if math.isinf(value) else value for value in spent.rdp), delta=spent.delta)


def to_spent(curve: AccountCost) -> Spent:
    """Returns a cost as the filter takes it. Raises `ValueError`."""
    from dprecipe.privacy.filters.cap import Spent

    return Spent(tuple(math.inf if value is None else value for value in curve.rdp), curve.delta)


def compute_epsilons(after: Spent, cap: Cap) -> tuple[float | None, float | None]:
    """Computes `epsilon_so_far` and `odometer` of all that an account counts, rounded up; None where infinite."""
    from dprecipe.privacy.filters.filter import mixture_epsilon, odometer

    return round_up_finite(mixture_epsilon(after, cap)), round_up_finite(odometer(after, cap))


def find_contradictions(stated: ChargedAccount | None, plan: Plan) -> list[str]:
    """Finds what is wrong with the account of a certificate, by the plan of its recipe alone."""
    if (stated is None) != (plan.budget.account is None):
        return ["account: expected exactly for recipes that name one"]
    if stated is None:
        return []
    from dprecipe.privacy.filters.cost import NotInAccount, check_relation

    problems = []
    if stated.unit != plan.data.unit_name:
        problems.append("account.unit: not the recipe's; an account protects one unit")
    try:
        check_relation(plan.budget.neighbouring, Neighbouring(stated.neighbouring))
    except NotInAccount as refused:
        problems.append(f"account.neighbouring: {refused.message}")
    return problems


def check_costs(stated: ChargedAccount | None, charges: Sequence[Charge]) -> list[str]:
    """Finds what is wrong with the numbers of an account: recomputed from the run's events and the account's cap."""
    from dprecipe.privacy.filters.cost import NotInAccount, cost_of
    from dprecipe.privacy.filters.filter import admits

    if stated is None:
        return []
    try:
        cap = stated.cap
        reserved, counted, after = map(to_spent, (stated.reserved, stated.counted, stated.after))
        cost = cost_of(charges, Neighbouring(stated.neighbouring), cap.orders)
        if {len(curve.rdp) for curve in (reserved, counted, after)} != {len(cap.orders)}:
            return [f"account: expected costs at the {len(cap.orders)} orders of the cap"]
        problems = []
        if not counted.covers(cost):
            problems.append("account.counted: less than what the run's events cost")
        if not reserved.covers(counted):
            problems.append("account.reserved: less than what was counted")
        if not after.covers(counted):
            problems.append("account.after: less than what this run alone counts")
        if not admits(after, cap):
            problems.append("account.after: more than the account's cap holds")
        both = zip(("epsilon_so_far", "odometer"), compute_epsilons(after, cap), strict=True)
        for name, expected in both:
            value = getattr(stated, name)
            if value is not None and (expected is None or value < expected * (1 - 1e-9)):
                problems.append(f"account.{name}: expected at least {expected}, computed from what is counted")
    except NotInAccount as refused:
        return [f"account: no account can hold these events: {refused}"]
    except (ValueError, ArithmeticError) as error:
        return [f"account: the costs can't be read: {error}"]
    return problems


def stopped_it(stated: ChargedAccount | None, charges: Sequence[Charge]) -> bool:
    """Returns True if the run's reservation can't hold all these events."""
    from dprecipe.privacy.filters.cost import cost_of

    if stated is None:
        return False
    try:
        cost = cost_of(charges, Neighbouring(stated.neighbouring), stated.cap.orders)
        return not to_spent(stated.reserved).covers(cost)
    except (ValueError, ArithmeticError):
        return False  # `check_costs` reports this
