"""Checks of held-out records that are cut out of the training source: what a split may divide by, and the relations and
mechanisms for which it is bounded. The proof is in `dprecipe.data.split`."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import unit_name
from dprecipe.contract.plan import Assumption, Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.names import is_name, misnamed_finding
from dprecipe.data.schema import Data
from dprecipe.data.split import describe_split, split_column
from dprecipe.faults import Finding
from dprecipe.recipe.root import Recipe

OWN_FILES = "write the two parts to files of their own, and name them as data.train and data.test"


def check_split(recipe: Recipe) -> Iterator[Finding]:
    """Checks that all records of a unit are on one side, that neighbours differ in one unit of one side, and that
    nothing needs to know how many units train."""
    if recipe.data.split is None:
        return
    findings = [*check_column(recipe.data), *_check_access(recipe)]
    yield from findings
    if not findings:
        yield from _check_relation(recipe)
    yield from _check_mechanism(recipe)


def check_column(data: Data) -> Iterator[Finding]:
    """Checks that the column that a split divides by exists, is not the label, and leaves all records of a unit on one
    side."""
    split = data.split
    column, path = split_column(data), "data.test.split.by"
    if split is None or column is None or split.by == "unit":
        return  # data.unit.column has its own rules
    source, unit = data.train, data.unit
    if not source.has_names:
        by_number = "by: unit, which counts its records" if unit == "record" else "by: unit"
        yield Finding(
            "R230",
            f"source {source.source} has no column {column!r} to divide records by",
            f"write {by_number}, or use a csv, parquet or npz source",
            path,
        )
    elif column in source.label_columns:
        yield Finding(
            "R230",
            f"{column!r} is the label: each class would be on one side as a whole",
            "divide by a column that names people or places"
            + ("" if unit == "record" else f", or write by: unit, which is {unit.column!r}"),
            path,
        )
    elif unit != "record" and column != unit.column:
        yield Finding(
            "R230",
            f"divided by {column!r}, records of one {unit.column!r} may be on both sides: the model would be tested on "
            "those it has learned from",
            "write by: unit, or protect what you divide by: "
            f"data.unit: {{column: {column}, max_records: {unit.max_records}}}",
            path,
        )
    elif not is_name(column):
        yield misnamed_finding(path, column)


def _check_access(recipe: Recipe) -> Iterator[Finding]:
    test = recipe.data.test
    if test is not None and test.access == "public":
        yield Finding(
            "P113",
            "data.test is declared public but cut out of data.train, whose records are private: its scores would "
            "publish them outside the budget",
            "remove data.test.access, or name other records as data.test",
            "data.test.access",
        )


def _check_relation(recipe: Recipe) -> Iterator[Finding]:
    """Checks that, under the relation, T(D) and T(D') are neighbours or equal."""
    relation, kind = recipe.budget.neighbouring, recipe.mechanism.kind
    if relation not in mechanism_of(kind).relations:
        return  # P169
    path = "budget.neighbouring" if "neighbouring" in recipe.budget.model_fields_set else "data.test.split"
    column, unit = split_column(recipe.data), unit_name(recipe)
    if column is None and recipe.data.train.selection is not None:
        yield Finding(
            "P128",
            "data.test.split divides by the number of each record, and the rows of a query have no fixed order",
            "name a column of the result that identifies people: data.test.split.by",
            "data.test.split",
        )
        return
    if column is None and relation == "add_or_remove_one":
        yield Finding(
            "P128",
            "data.test.split divides by the number of each record, and a record that leaves the file renumbers all "
            "later ones: they change sides, which add_or_remove_one does not count",
            "name a column that identifies people: data.test.split.by; or set budget.neighbouring to zero_out_one: one "
            "record is blanked out in its place, others keep their numbers",
            path,
        )
    elif column is not None and relation == "replace_one":
        yield Finding(
            "P128",
            f"data.test.split divides by {column!r}, and another {unit} may be on the other side: training then has "
            "one more or one less, which replace_one does not count",
            f"{OWN_FILES}; or set budget.neighbouring to zero_out_one or add_or_remove_one, which promise less",
            path,
        )


def _check_mechanism(recipe: Recipe) -> Iterator[Finding]:
    kind = recipe.mechanism.kind
    if not mechanism_of(kind).can_split:
        ranges = recipe.data.unit == "record" and recipe.data.train.records is None
        yield Finding(
            "P128",
            f"{kind} is accounted for a known number of training records, and data.test.split leaves a number that "
            "depends on them",
            OWN_FILES
            + ("; or divide by place: data.train.records and data.test.records of the same file" if ranges else ""),
            "data.test.split",
        )


def assume_split(recipe: Recipe) -> Iterator[Assumption]:
    """Yields the assumption of how the held-out records were chosen."""
    text = describe_split(recipe.data)
    if text is not None:
        yield Assumption(
            "split",
            f"held-out records were {text}; training reads none of them, and nothing that is released depends on how "
            "many there are other than through noise",
            "code",
        )


def not_protected(plan: Plan) -> tuple[str, ...]:
    """Returns the exceptions that a split makes to the claim, in words; empty where there is none."""
    if plan.data.split is None:
        return ()
    return (
        f"on which side of the split a {plan.guarantee.unit} is: anyone who knows what it is divided by can work it "
        "out from the recipe",
    )
