"""Checks of units that are not records: the column that tells units apart, and the assumptions about it."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.plan import Assumption
from dprecipe.data.names import is_name, is_noun, misnamed_finding, quote_name, unfit_noun_finding
from dprecipe.faults import Finding
from dprecipe.recipe.root import Recipe


def check_unit_column(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a unit other than the record has a source with columns, and a column whose name can stand in the
    claim."""
    unit, source = recipe.data.unit, recipe.data.train
    if unit == "record":
        return
    if not source.has_names:
        yield Finding(
            "R303",
            f"source {source.source} has no column {unit.column!r} to tell units apart",
            "use a csv, parquet, image_folder, datasets or npz source",
            "data.unit.column",
        )
    if not is_name(unit.column):
        yield misnamed_finding("data.unit.column", unit.column)
    if unit.name is not None and not is_noun(unit.name):
        yield unfit_noun_finding("data.unit.name", unit.name)


def assume_unit_column(recipe: Recipe) -> Iterator[Assumption]:
    """Yields the assumption about the column that only the author of the file can check."""
    unit = recipe.data.unit
    if unit != "record":
        one = "one unit" if unit.name is None else f"one {unit.name}"
        spelling = (
            ". Names that differ in their spelling alone (such as 101 and 0101) were taken for different units, as the "
            "recipe says"
            if unit.spelling == "exact"
            else ""
        )
        yield Assumption(
            "unit",
            f"{quote_name(unit.column)} identifies the units to be protected: all records of {one} have the same "
            f"value. Someone with several values is protected for each value by itself, not for all of them{spelling}",
            "declaration",
        )
