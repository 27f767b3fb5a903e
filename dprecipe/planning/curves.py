"""Curves of ε around a plan, before any run: along the run by each accountant, over its noise, and over its batch size.

Each point of the last two is a plan of its own: the recipe with other values and a budget that is solved. A point that
no plan has is left out. Nothing here is a claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.comparison import compare_accountants
from dprecipe.privacy.events import count_events, take_first
from dprecipe.recipe.read import Loaded
from dprecipe.recipe.root import PointError, look_up, set_values

ALONG = 16
"""Points of a curve along the run."""
NOISE = tuple(2.0 ** (step / 4) for step in range(-4, 9))
"""Noise multipliers of a curve, over that of the plan."""
BATCH = tuple(2.0 ** (step / 2) for step in range(-6, 7))
"""Batch sizes of a curve, over that of the plan."""
MIN_POINTS = 3
"""Fewest points that make a curve."""
PRINTED = "strong_composition_as_printed"
"""The line of Abadi et al. 2016, figure 2: no guarantee."""
LEFT_OUT = ("basic_composition", "strong_composition", "optimal_composition", "rdp_classic")
"""Rows that are no lines: theorems far above all accountants, and what is next to the moments accountant."""
BATCH_KEYS = ("mechanism.sampling.batch_size", "mechanism.batch_size")

Point = tuple[float, float]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class EpsilonCurve:
    """A curve of ε over `what`, or the reason why there is none. `lines`: by name, of equal abscissas. `here`: the
    plan itself."""

    what: str
    lines: Mapping[str, Sequence[Point]]
    here: Point | None = None
    reason: str = ""
    is_log: bool = False


def trace_curves(loaded: Loaded, plan: Plan, report: Report) -> tuple[EpsilonCurve, ...]:
    """Returns the curves of a plan: over the length, the noise, and the batch size. `report` gets the work in hand."""
    return (
        trace_accountants(plan, report),
        trace_noise(loaded, plan, report),
        trace_batch(loaded, plan, report),
    )


def trace_accountants(plan: Plan, report: Report) -> EpsilonCurve:
    """Returns ε along the run by each accountant that has a bound on all of it (Abadi et al. 2016, figure 2)."""
    part, length = mechanism_of(plan.mechanism).certificate, plan.length
    nouns, claimed = part.progress[1], plan.guarantee.accountant
    if plan.tuning is not None:
        return EpsilonCurve(
            "epochs", {}, reason="one event covers all runs of a tuned run, so there is no ε along the way"
        )
    if part.hides_iterates:
        return EpsilonCurve("epochs", {}, reason="nothing is released before the end, so there is no ε along the way")
    per_unit = length.steps_per_epoch if nouns == "steps" else 1
    what = "epochs" if nouns == "steps" else nouns
    events, budget = count_events(plan.events), plan.budget
    lines: dict[str, list[Point]] = {}
    counts = sorted({max(1, round(events * share / ALONG)) for share in range(1, ALONG + 1)})
    for count in counts:
        report(f"ε after {count:,} of {events:,} events")
        prefix = take_first(plan.events, count)
        place = part.count_steps_charged(prefix) / per_unit
        for row in compare_accountants(prefix, budget.delta, budget.neighbouring):
            if row.epsilon is not None and (row.accountant not in LEFT_OUT or row.accountant == claimed):
                lines.setdefault(row.accountant, []).append((place, row.epsilon))
    last = part.count_steps_charged(plan.events) / per_unit
    whole = {name: points for name, points in lines.items() if points[-1][0] == last}
    if len(counts) < MIN_POINTS:
        return EpsilonCurve(what, {}, reason=f"the run has too few {nouns} for a curve")
    return EpsilonCurve(what, whole, (last, plan.guarantee.epsilon))


def trace_noise(loaded: Loaded, plan: Plan, report: Report) -> EpsilonCurve:
    """Returns ε over the noise multiplier, at the plan's length."""
    found = find_noise(loaded, plan)
    if found is None:
        return EpsilonCurve(
            "noise", {}, reason="the recipe has several noises, or one that moves, and no single number to vary"
        )
    key, multiplier = found
    values = [(value, {key: value}) for value in (float(f"{multiplier * factor:.4g}") for factor in NOISE)]
    return _trace(loaded, plan, key, values, multiplier, report)


def trace_batch(loaded: Loaded, plan: Plan, report: Report) -> EpsilonCurve:
    """Returns ε over the batch size, at the plan's noise multiplier and number of epochs (or steps)."""
    noise = find_noise(loaded, plan)
    written = loaded.recipe.model_dump(mode="json", by_alias=True)
    for key in BATCH_KEYS:
        try:
            size = look_up(written, key)
        except PointError:
            continue
        if type(size) is not int:
            continue
        fixed: dict[str, Any] = {} if noise is None else {noise[0]: noise[1]}
        sizes = sorted({min(plan.data.planned_units, max(1, round(size * factor))) for factor in BATCH})
        return _trace(loaded, plan, key, [(float(n), {key: n, **fixed}) for n in sizes], float(size), report)
    return EpsilonCurve(
        "batch size", {}, reason="the recipe has no batch size: every unit takes part, or the size moves"
    )


def _trace(
    loaded: Loaded,
    plan: Plan,
    key: str,
    values: Sequence[tuple[float, Mapping[str, Any]]],
    here: float,
    report: Report,
) -> EpsilonCurve:
    points: list[Point] = []
    reason = ""
    for number, (value, fixed) in enumerate(values, 1):
        report(f"ε at {key} = {value:g}, {number} of {len(values)}")
        try:
            recipe = set_values(loaded.recipe, {**plan.solved, **fixed, "budget.epsilon": "auto"})
            epsilon = make_plan(replace(loaded, recipe=recipe)).guarantee.epsilon
        except (Fault, PointError) as error:
            reason = str(error)
            continue
        if math.isfinite(epsilon):
            points.append((value, epsilon))
    if len(points) < MIN_POINTS:
        return EpsilonCurve(key, {}, reason=f"no plan has another {key.rpartition('.')[2]} at this length: {reason}")
    return EpsilonCurve(key, {"": points}, (here, plan.guarantee.epsilon), is_log=True)


def find_noise(loaded: Loaded, plan: Plan) -> tuple[str, float] | None:
    """Returns the key of the noise multiplier and its number; None where there are several, or it moves."""
    found = list(_list_noises(loaded, plan))
    return found[0] if len(found) == 1 else None


def _list_noises(loaded: Loaded, plan: Plan) -> Iterator[tuple[str, float]]:
    for key, written in loaded.recipe.mechanism.solvable.items():
        value = plan.solved.get(key, written)
        if key.endswith(".multiplier") and isinstance(value, int | float):
            yield key, float(value)
