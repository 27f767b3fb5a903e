"""Checks of the private records: no neighbouring data set may change a record of another unit.

- Units that are not records: the column that tells units apart, and the assumptions about it.
- Records that a query makes of tables. Neighbours differ in the rows of one unit. Where each record is made of one row,
  the query's results differ in that unit's records alone. The author may declare the same of any other query.
- Records selected by their place in a file: no neighbouring data set may shift the places.
"""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import unit_name
from dprecipe.contract.plan import Assumption, Plan
from dprecipe.contract.table import mechanism_of
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


def check_query(recipe: Recipe) -> Iterator[Finding]:
    """Checks that each private record depends on rows of its own unit, and that the query keeps the number of records
    where the relation does."""
    for role, source in (("train", recipe.data.train), ("test", recipe.data.test_source)):
        selection = None if source is None or source.access == "public" else source.selection
        if selection is None or (role == "test" and recipe.data.split is not None):
            continue
        path = f"data.{role}.{selection.path}"
        if selection.reason and not selection.declared:
            yield Finding(
                "P144",
                f"a row of the query's result may depend on the rows of several units: {selection.reason}",
                "write SELECT … FROM one table WHERE …, with functions of a row's own values; or declare "
                f"data.{role}.rows: declared, if each depends on rows of one {unit_name(recipe)} alone",
                path,
            )
        elif role == "train" and (selection.filters or selection.declared):
            yield from _check_relation(recipe, path)


def _check_relation(recipe: Recipe, path: str) -> Iterator[Finding]:
    relation = recipe.budget.neighbouring
    if relation != "add_or_remove_one":
        yield Finding(
            "P145",
            f"under {relation} a {unit_name(recipe)} is replaced or blanked out, and the query may then leave it out "
            "or take it in: the number of records would change, which that relation does not count",
            "write the query's result to a file and name that; or set budget.neighbouring to add_or_remove_one",
            "budget.neighbouring" if "neighbouring" in recipe.budget.model_fields_set else path,
        )


def assume_query(recipe: Recipe) -> Iterator[Assumption]:
    """Yields the assumptions about a query's result: what the data set is, and why a record is its unit's own."""
    selection = recipe.data.train.selection
    if selection is None:
        return
    unit = unit_name(recipe)
    subject = f"the training records are the rows of the query's result (data.train.{selection.path})"
    if selection.reason:
        yield Assumption(
            "query_rows",
            f"{subject}, and each of them was made of rows of one {unit} alone: without it, its rows are "
            "missing from the result, and all others are as they were",
            "declaration",
        )
    else:
        yield Assumption(
            "query_rows",
            f"{subject}, and each of them is made of one row of a table, by constants and functions of that row's "
            "values alone",
            "code",
        )


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
