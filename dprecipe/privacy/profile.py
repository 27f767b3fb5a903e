"""Privacy profiles of single releases, for events that do not compose with others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dprecipe.privacy.adjacency import Neighbouring

PositionRow = tuple[int, float, float]
"""A row (position, ε, δ) for the record at a place in the file, counted from 1."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An upper bound, and the accountant or the bound that actually gave it.

    `at_edge`: the best Rényi order was the first or the last of the list, so a longer list might do better.
    """

    value: float
    accountant: str
    at_edge: bool = False


class Profile(Protocol):
    """The profile δ(ε) of one release, for one relation. The accountants compose several equal ones by basic
    composition.

    Formal guarantee: the release is (ε, δ)-DP under `relation` for every pair that any method returns.

    It may wrap another: the profile of a tuned run, say, is a function of the profile of the run.
    """

    @property
    def relation(self) -> Neighbouring:
        """The only relation that the profile holds for."""

    def epsilon(self, delta: float) -> Answer:
        """Returns ε at δ, 0 < δ < 1, by the least of the bounds; infinite if there is none."""

    def delta(self, epsilon: float) -> Answer:
        """Returns δ at ε >= 0, by the least of the bounds; at most 1."""

    def renyi_epsilon(self, delta: float) -> float:
        """Returns ε at δ by Rényi curves alone: never below `epsilon`, to check it."""

    def renyi_delta(self, epsilon: float) -> float:
        """Returns δ at ε by Rényi curves alone: never below `delta`, to check it."""

    def mu(self) -> float | None:
        """Returns μ of a Gaussian mechanism whose δ(ε) is no less at any ε; None where none is known."""

    def epsilon_by_bound(self, delta: float) -> Mapping[str, float]:
        """Returns ε at δ by each of its bounds, the simplest first; infinite where one has none."""

    def delta_by_bound(self, epsilon: float) -> Mapping[str, float]:
        """Returns δ at ε by each of its bounds."""

    def by_position(self, delta: float, epsilon: float, max_rows: int, fewer: int) -> tuple[PositionRow, ...]:
        """Returns ε at δ and δ at ε of the records at each position, if the position matters: of all if there are up to
        `max_rows` records, of `fewer` positions if there are more; otherwise nothing."""
