"""Checks of records that a query makes of tables: no neighbour may change a record of another unit.

Neighbours differ in the rows of one unit. Where each record is made of one row, the query's results differ in that
unit's records alone. The author may declare the same of any other query.
"""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import unit_name
from dprecipe.contract.plan import Assumption
from dprecipe.faults import Finding
from dprecipe.recipe.root import Recipe


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
