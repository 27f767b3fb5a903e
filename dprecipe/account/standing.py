"""What an account says: how much is counted, what a run may draw, what became of a reservation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dprecipe.account.facts import AccountFacts
from dprecipe.account.groups import RunSlots
from dprecipe.account.state import Totals
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap, Spent
from dprecipe.privacy.filters.filter import mixture_epsilon, odometer


@dataclass(frozen=True, slots=True)
class AccountState:
    """What an account has counted, at one moment."""

    facts: AccountFacts
    totals: Totals

    @property
    def spent(self) -> Spent:
        """Every open reservation in full."""
        return self.totals.sums.to_spent()

    @property
    def filter_epsilon(self) -> float:
        """ε of all runs that take no slots, at the filter's δ, for who stops now: what is held against its cap."""
        return mixture_epsilon(self.spent, self.facts.cap)

    @property
    def epsilon(self) -> float:
        """ε of all that is counted, at the account's δ: of the filter, and of every group of slots, used or not."""
        return self.filter_epsilon + self.totals.groups.epsilon

    @property
    def odometer(self) -> float:
        """ε so that, with chance 1 - δ, the loss of all runs that take no slots is at most this, now and at all other
        times."""
        return odometer(self.spent, self.facts.cap)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a run may draw. `position`: entries of the account, this one being the last; `entries`: their digest;
    `slots`: what it holds of a group, if it takes slots."""

    facts: AccountFacts
    run: str
    attempt: int
    reserved: Spent
    position: int
    entries: str
    slots: RunSlots | None = None

    def holds(self, charges: Sequence[Charge]) -> bool:
        """Whether all these together, of all attempts of the run, are within it.

        Raises:
            NotInAccount: an event that no account can hold.
        """
        if self.slots is not None and not self.slots.cover(tuple(charges), self.facts.neighbouring):
            return False
        cap = self.facts.cap_of(None if self.slots is None else self.slots.group)
        return self.reserved.covers(find_cost(tuple(charges), self.facts.neighbouring, cap))


@dataclass(frozen=True, slots=True)
class SlotsTaken:
    """What a run holds of a group: `counted`, slots that dominate what it drew, of those that it had `reserved`. All
    that runs take of the group together is (`epsilon`, `delta`)-DP."""

    group: str
    epsilon: float
    delta: float
    reserved: tuple[Charge, ...]
    counted: tuple[Charge, ...]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a reservation. `after`: what all runs of the account count under the filter once it is settled;
    `groups_epsilon`: of all groups of slots. `slots`: what the run holds of one, if it takes slots; then `counted` is
    what it would have counted under the filter."""

    facts: AccountFacts
    run: str
    attempt: int
    reserved: Spent
    counted: Spent
    after: Spent
    position: int
    entries: str
    slots: SlotsTaken | None = None
    groups_epsilon: float = 0.0


@lru_cache(maxsize=512)
def find_cost(charges: tuple[Charge, ...], neighbouring: Neighbouring, cap: Cap) -> Spent:
    """The upper bound on these charges at the cap's orders. Raises `NotInAccount`."""
    from dprecipe.privacy.filters.cost import cost_of

    return cost_of(charges, neighbouring, cap.orders) if charges else Spent((0.0,) * len(cap.orders))
