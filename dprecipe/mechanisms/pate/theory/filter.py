"""The Gaussian privacy filter: a limit set in advance, whatever earlier answers make of the events to come.

Guarantees: a run that asks `holds` before every event, and stops or asks for less where it answers no, is as private as
one Gaussian of parameter √limit, although which events it runs is decided by what earlier ones released.

The reason in one sentence: Gaussians whose squared parameters sum up to at most the limit can be read off a Brownian
motion with drift that is observed for that long, whoever chooses the next one and by what.

Source: fully adaptive composition of Gaussian differential privacy, Smith & Thakurta 2022; Koskela, Tobaben & Honkela
2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dprecipe.mechanisms.pate.events import FilterRest
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import summarise_charges

_ROUNDING = 1e-12
_SHORT = 1e-14
"""Part of the limit by which the rest is understated, so that rounded sums can't lead beyond it.

It is more than sums round by, and less than `gdp.delta` rounds up, so the claim still is the cost of the limit.
"""


@dataclass(frozen=True, slots=True)
class GaussianFilter:
    """`limit` is the largest μ² of all events together."""

    limit: float

    @staticmethod
    def of(charges: Iterable[Charge]) -> GaussianFilter:
        """The filter that holds these events and nothing more.

        Raises:
            ValueError: one of them is not Gaussian.
        """
        return GaussianFilter(sum_filter(charges))

    def holds(self, charges: Iterable[Charge]) -> bool:
        """Tells if all these events together stay within the limit (up to rounding, 1e-12 of it)."""
        return sum_filter(charges) <= self.limit * (1 + _ROUNDING)

    def rest(self, charges: Iterable[Charge]) -> FilterRest | None:
        """Returns what is left after these events, as an event; None if nothing is, up to rounding, as after a rest."""
        left = self.limit * (1 - _SHORT) - sum_filter(charges)
        return None if left <= self.limit * _SHORT else FilterRest(1 / math.sqrt(left))


def sum_filter(charges: Iterable[Charge]) -> float:
    """μ² of Gaussian events of votes together.

    Raises:
        ValueError: one of them is not Gaussian.
    """
    work = summarise_charges(charges, Neighbouring.ADD_OR_REMOVE_ONE)
    if not work.gaussian:
        raise ValueError("a Gaussian filter can't hold events of other kinds")
    return work.mu**2
