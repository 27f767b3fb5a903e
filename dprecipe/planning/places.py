"""Checks of records selected by their place in a file: no neighbouring data set may shift the places."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import unit_name
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Finding
from dprecipe.recipe.root import Recipe


def check_record_range(recipe: Recipe) -> Iterator[Finding]:
    """Refuses a range of records where a neighbour can move a record to another place.

    A record that leaves the file moves all later ones up, and one that was outside of `records` comes in: the sum of
    clipped gradients moves by two clip norms, not by one. The same holds where a replaced unit may have a different
    number of records.
    """
    records, unit, relation = recipe.data.train.records, recipe.data.unit, recipe.budget.neighbouring
    if records is None or relation not in mechanism_of(recipe.mechanism.kind).relations:
        return
    path = "budget.neighbouring" if "neighbouring" in recipe.budget.model_fields_set else "data.train.records"
    blanked = "set budget.neighbouring to zero_out_one: one {} is blanked out in its place, others stay in theirs"
    if relation == "add_or_remove_one":
        others = "; or to replace_one" if unit == "record" else ""
        yield Finding(
            "P119",
            f"data.train.records takes [{records[0]}, {records[1]}) by place, and a record that leaves the file moves "
            "a later record in: that is a replacement, which add_or_remove_one does not count",
            f"{blanked.format(unit_name(recipe))}{others}; "
            "or remove data.train.records and name a file that holds these records alone",
            path,
        )
    elif relation == "replace_one" and unit != "record":
        yield Finding(
            "P119",
            f"data.train.records takes [{records[0]}, {records[1]}) by place, and another {unit_name(recipe)} may have "
            "more records or fewer: later records would move in or out",
            "remove data.train.records and name a file that holds these records alone; or "
            f"{blanked.format(unit_name(recipe))}",
            path,
        )


def not_protected(plan: Plan) -> tuple[str, ...]:
    """Returns the exceptions that a selection by place makes to the claim, in words; empty where there is none."""
    records = plan.data.train.records
    if records is None:
        return ()
    return (
        f"a file in which later records move up: the records used are those at the places {records[0]} to "
        f"{records[1] - 1} of the source, counted from 0, which is part of what the data set is; neighbours differ in "
        "one of them, and all others keep their places",
    )
