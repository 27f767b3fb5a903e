"""Answers of an account: how much is counted, what a run may draw, what became of a reservation."""

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
    """The state of an account at one moment: all that it has counted."""

    facts: AccountFacts
    totals: Totals

    @property
    def spent(self) -> Spent:
        """The sum of all that is counted, every open reservation in full."""
        return self.totals.sums.to_spent()

    @property
    def epsilon(self) -> float:
        """ε of all that is counted, at the account's δ, if no run follows: what is compared with the cap."""
        return mixture_epsilon(self.spent, self.facts.cap)

    @property
    def odometer(self) -> float:
        """An ε such that, with probability 1 - δ, the loss of all runs is at most this, now and at all other times."""
        return odometer(self.spent, self.facts.cap)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation: what a run may draw. `position`: the number of entries of the account, with this one as the last;
    `entries`: their digest."""

    facts: AccountFacts
    run: str
    attempt: int
    reserved: Spent
    position: int
    entries: str

    def holds(self, charges: Sequence[Charge]) -> bool:
        """Returns True if these charges, of all attempts of the run together, are within the reservation.

        Raises:
            NotInAccount: an event that no account can hold.
        """
        return self.reserved.covers(find_cost(tuple(charges), self.facts.neighbouring, self.facts.cap))


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of a reservation. `after`: what all runs of the account count once it is settled."""

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
    """Returns the upper bound on these charges at the cap's orders. Raises `NotInAccount`."""
    from dprecipe.privacy.filters.cost import cost_of

    return cost_of(charges, neighbouring, cap.orders) if charges else Spent((0.0,) * len(cap.orders))
