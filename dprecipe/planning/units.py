"""Who is protected, where that is not a record: the column that tells units apart, and what it is assumed to do."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.data.names import is_name, misnamed_finding, quote_name
from dprecipe.faults import Finding
from dprecipe.mechanisms.plan import Assumption
from dprecipe.recipe.root import Recipe


def check_unit_column(recipe: Recipe) -> Iterator[Finding]:
    """A unit other than the record needs a source with columns, and a column whose name can stand in the claim."""
    unit, source = recipe.data.unit, recipe.data.train
    if unit == "record":
        return
    if not source.has_names:
        yield Finding(
            "R303",
            f"source {source.source} has no column {unit.column!r} to tell units apart",
            "use a csv, parquet or npz source, or unit: record",
            "data.unit.column",
        )
    if not is_name(unit.column):
        yield misnamed_finding("data.unit.column", unit.column)


def assume_unit_column(recipe: Recipe) -> Iterator[Assumption]:
    """What only who made the file can know of the column."""
    unit = recipe.data.unit
    if unit != "record":
        name = quote_name(unit.column)
        yield Assumption(
            "unit",
            f"{name} tells apart who is to be protected: all records of one person, or of whatever it names, have one "
            "value of it; whoever has several values is protected in each of them, not in all together",
            "declaration",
        )
