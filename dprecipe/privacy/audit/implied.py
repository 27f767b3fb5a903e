"""Claims to compare lower bounds with, and what the bound of a step implies for the whole run.

A step's claim is that of its noisy sum with one unit in it for certain: sampling is known to the audit. Where noise is
correlated over steps, the sums after it that the unit shows in belong to the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import lru_cache

import numpy as np

from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlation.series import column_of
from dprecipe.privacy.correlation.strategies import Strategy
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.rounding import round_down, round_up

LONGEST = 64
"""The most steps that an audit takes for one trial."""
FELT = 0.95
"""The share of a unit's distance after which it waits for no further step."""
_POINTS = 40
_RUN_POINTS = 20
_TAIL = 1e-6


def response_of(strategy: Strategy | None, steps: int = LONGEST) -> tuple[float, ...]:
    """Returns c_0 = 1, c_1, …: how a unit of one step shows in the whitened sums of this step and of those after it.

    Of independent noise it is c_0 alone. It ends after `steps` or `LONGEST` steps, or before, at `FELT` of their
    length.
    """
    return (1.0,) if strategy is None else _find_response(strategy, min(steps, LONGEST))


@lru_cache(maxsize=64)
def _find_response(strategy: Strategy, steps: int) -> tuple[float, ...]:
    column = column_of(strategy, steps)
    lengths = np.sqrt(np.cumsum(column**2))
    return tuple(column[: 1 + int(np.searchsorted(lengths, FELT * lengths[-1]))].tolist())


def step_response(event: Event) -> tuple[float, ...]:
    """Returns `response_of` the event's noise within the steps of one event: its claim is of these."""
    return response_of(event.strategy, event.steps)


def step_mu(event: Event) -> float | None:
    """Returns the μ that a step claims for a unit that is in its sum or not: ‖c‖/σ with `step_response` c, 1/σ for
    independent noise; None where its noise is not Gaussian. It is the same on every machine."""
    distribution = event.noise_distribution()
    if distribution is None or distribution.family != "gaussian" or len(event.multipliers) != 1:
        return None
    return math.sqrt(math.fsum(c * c for c in step_response(event))) / event.multipliers[0]


def step_curve(event: Event) -> tuple[tuple[float, float], ...]:
    """Returns points (ε, δ), rounded up, of the profile that a step claims for a unit that is in its sum or not.

    Raises:
        ValueError: no bound is known for adding or removing a unit.
    """
    certain = _without_sampling(event)
    charges = (Charge(certain, 1),)
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    top = min(accountants.epsilon(charges, _TAIL, relation, "pld"), certain.max_loss)
    if not math.isfinite(top):
        raise ValueError(f"an event of kind {event.kind} has no bound for adding or removing a unit")
    return _list_points(charges, relation, "pld", [round_up(top * k / _POINTS) for k in range(_POINTS + 1)])


def run_curve(
    charges: Sequence[Charge], neighbouring: Neighbouring, accountant: str, epsilon: float
) -> tuple[tuple[float, float], ...]:
    """Returns points (ε', δ), rounded up, of the profile of a run that claims this ε, for a canary: it keeps its place
    and contributes or not, which where batches have one size costs more than to join or to leave."""
    relation = Neighbouring(neighbouring)
    relation = Neighbouring.ZERO_OUT_ONE if relation is Neighbouring.ADD_OR_REMOVE_ONE else relation
    grid = [round_up(epsilon * k / _RUN_POINTS) for k in range(_RUN_POINTS + 1)] if epsilon > 0 else [0.0]
    return _list_points(charges, relation, accountant, grid)


def _list_points(
    charges: Sequence[Charge], neighbouring: Neighbouring, accountant: str, epsilons: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    points = accountants.profile(charges, neighbouring, accountant, epsilons)
    return tuple((e, min(1.0, round_up(d))) for e, d in points)


def implied_epsilon(
    stages: Sequence[Charge],
    steps: Sequence[Charge],
    neighbouring: Neighbouring,
    delta: float,
    claimed_mu: float,
    lower_mu: float,
) -> float | None:
    """Returns the ε at δ of a run in which every step has as little noise as a step's lower bound implies; None if that
    has no meaning. Not a bound: it presumes that all steps are like those that were audited, and sampled as planned.

    Args:
        stages: what is released before the steps; these events stay.
        steps: the planned steps.

    Source: Nasr et al. 2023, Section 5.
    """
    scaled: list[Charge] = []
    for charge in steps if lower_mu > 0 else ():
        event = charge.event.scale_noise(claimed_mu / lower_mu)
        if event is None:
            return None
        scaled.append(Charge(event, charge.count))
    value = accountants.epsilon((*stages, *scaled), delta, neighbouring, "pld")
    return round_down(value) if math.isfinite(value) else None


def _without_sampling(event: Event) -> Event:
    names = {field.name for field in fields(event)}  # type: ignore[arg-type]
    return replace(event, sampling_rate=1.0) if "sampling_rate" in names else event  # type: ignore[type-var]
