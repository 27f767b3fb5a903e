"""What an account says: how much is counted, what a run may draw, what became of a reservation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dprecipe.account.facts import AccountFacts
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
    def epsilon(self) -> float:
        """ε of all that is counted, at the account's δ, for who stops now: what the filter holds against the cap."""
        return mixture_epsilon(self.spent, self.facts.cap)

    @property
    def odometer(self) -> float:
        """ε so that, with chance 1 - δ, the loss of all that is counted is at most this, now and at all other times."""
        return odometer(self.spent, self.facts.cap)


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a run may draw. `position`: entries of the account, this one being the last; `entries`: their digest."""

    facts: AccountFacts
    run: str
    attempt: int
    reserved: Spent
    position: int
    entries: str

    def holds(self, charges: Sequence[Charge]) -> bool:
        """Whether all these together, of all attempts of the run, are within it.

        Raises:
            NotInAccount: an event that no account can hold.
        """
        return self.reserved.covers(find_cost(tuple(charges), self.facts.neighbouring, self.facts.cap))


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a reservation. `after`: what all runs of the account count once it is settled."""

    facts: AccountFacts
    run: str
    attempt: int
    reserved: Spent
    counted: Spent
    after: Spent
    position: int
    entries: str


@lru_cache(maxsize=512)
def find_cost(charges: tuple[Charge, ...], neighbouring: Neighbouring, cap: Cap) -> Spent:
    """The upper bound on these charges at the cap's orders. Raises `NotInAccount`."""
    from dprecipe.privacy.filters.cost import cost_of

    return cost_of(charges, neighbouring, cap.orders) if charges else Spent((0.0,) * len(cap.orders))
