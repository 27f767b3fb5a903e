"""Checks that the set of a recipe fits its parameters."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.data.facts import describe_data
from dprecipe.faults import Finding
from dprecipe.mechanisms.pnsgd.constants import Provable, count_parameters
from dprecipe.mechanisms.pnsgd.schema import (
    BallConstraint,
    Coordinates,
    IntervalConstraint,
    Pnsgd,
    SimplexConstraint,
    list_coordinates,
)

PATH = "mechanism.constraint"


def check_set(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that lists have a number for each parameter, that intervals have a length, and that a simplex is more than
    a point (P175)."""
    if not isinstance(facts.model, Provable):
        return  # other rules say so
    described, constraint = describe_data(facts.data), spec.constraint
    parameters = count_parameters(facts.model, described.width, described.outputs)
    lists: dict[str, Coordinates | None] = {}
    if isinstance(constraint, BallConstraint):
        lists = {"centre": constraint.centre}
    elif isinstance(constraint, IntervalConstraint):
        lists = {"low": constraint.low, "high": constraint.high}
    lengths = {name: len(value) for name, value in lists.items() if isinstance(value, tuple)}
    wrong = {name: length for name, length in lengths.items() if length != parameters}
    for name, length in wrong.items():
        yield Finding(
            "P175",
            f"{name} has {length:,} numbers, the model {parameters:,} parameters",
            f"write {parameters:,} numbers, one for each parameter, or one number for all",
            f"{PATH}.{name}",
        )
    if isinstance(constraint, IntervalConstraint) and not wrong:
        pairs = zip(
            list_coordinates(constraint.low, parameters), list_coordinates(constraint.high, parameters), strict=True
        )
        if not all(low < high for low, high in pairs):
            yield Finding(
                "P175",
                "an interval has no length: low is not below high for each parameter",
                "lower low, or raise high; a parameter that must not move is best left out of the features",
                f"{PATH}.high",
            )
    if isinstance(constraint, SimplexConstraint) and parameters < 2:
        yield Finding(
            "P175",
            "the model has one parameter, and a simplex of one parameter is a point: there is nothing to learn",
            "use constraint: {kind: intervals, low: 0, high: 1}, or a ball",
            f"{PATH}.kind",
        )
