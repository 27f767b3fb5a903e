"""Accounting of releases that do not compose with others (`Event.profile`): equal ones by basic composition."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from dprecipe.privacy import gdp, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.profile import Answer, PositionRow, Profile
from dprecipe.privacy.workload import summarise_charges

ALL_POSITIONS = 1000
"""The most positions that are all listed; of more, only `SOME_POSITIONS` are."""
SOME_POSITIONS = 100


def profile_mu(profile: Profile, count: int) -> float | None:
    """Returns μ of `count` equal releases together, as Gaussian mechanisms compose; None where no single μ bounds one
    for every ε."""
    mu = profile.mu()
    return None if mu is None else math.sqrt(count) * mu


def profile_epsilon(profile: Profile, count: int, delta: float, accountant: str) -> Answer:
    """Returns ε of `count` equal releases by basic composition in equal parts: `count` times ε at δ / `count`.

    Source: Dwork & Roth 2014, Theorem 3.16.
    """
    if accountant == "gdp":
        mu = profile_mu(profile, count)
        return Answer(math.inf if mu is None else gdp.epsilon(mu, delta), "gdp")
    if accountant == "pld":
        epsilon = profile.epsilon(delta / count)
        return Answer(count * epsilon.value, epsilon.accountant)
    return Answer(count * profile.renyi_epsilon(delta / count), "rdp")


def profile_delta(profile: Profile, count: int, epsilon: float, accountant: str) -> Answer:
    """Returns δ of `count` equal releases, like `profile_epsilon`: `count` times δ at ε / `count`."""
    if accountant == "gdp":
        mu = profile_mu(profile, count)
        return Answer(1.0 if mu is None else gdp.delta(mu, epsilon), "gdp")
    if accountant == "pld":
        delta = profile.delta(epsilon / count)
        return Answer(min(1.0, count * delta.value), delta.accountant)
    return Answer(min(1.0, count * profile.renyi_delta(epsilon / count)), "rdp")


def by_position(
    charges: Iterable[Charge], delta: float, neighbouring: Neighbouring, epsilon: float
) -> tuple[PositionRow, ...]:
    """Returns (position, ε at δ, δ at ε) for a release whose protection of a record depends on its place in the file;
    empty for any other events.

    Guarantees: upper bounds, of six digits, for the records at the position.
    """
    lone_profile = summarise_charges(charges, neighbouring).lone_profile
    if lone_profile is None or lone_profile[1] > 1 or not epsilon < math.inf:
        return ()
    rows = lone_profile[0].by_position(delta, epsilon, ALL_POSITIONS, SOME_POSITIONS)
    return tuple((position, rounding.round_up(e), min(1.0, rounding.round_up(d))) for position, e, d in rows)


def epsilon_by_bound(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring) -> Mapping[str, float]:
    """Returns ε at δ by each bound of a release that does not compose, infinity if δ can't be met; nothing for any
    other events."""
    lone_profile = summarise_charges(charges, neighbouring).lone_profile
    if lone_profile is None:
        return {}
    profile, count = lone_profile
    return {name: count * value for name, value in profile.epsilon_by_bound(delta / count).items()}


def delta_by_bound(charges: Iterable[Charge], epsilon: float, neighbouring: Neighbouring) -> Mapping[str, float]:
    """Returns δ at ε by each bound of a release that does not compose; nothing for any other events."""
    lone_profile = summarise_charges(charges, neighbouring).lone_profile
    if lone_profile is None:
        return {}
    profile, count = lone_profile
    return {name: min(1.0, count * value) for name, value in profile.delta_by_bound(epsilon / count).items()}
