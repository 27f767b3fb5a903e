"""Records that a query makes: refused, shown, or declared; and what the plan says of it."""

from __future__ import annotations

import pytest

from dprecipe.contract.table import MECHANISMS
from dprecipe.planning.make import plan
from dprecipe.planning.rules import check
from dprecipe.recipe.read import read_text

RECIPE = """\
recipe: dprecipe/v1
name: wards
data:
  train:
    source: duckdb
    tables: {visits: "visits/*.parquet", labs: labs.csv}
    query: SELECT patient, age, ill FROM visits
    columns: {age: {kind: numeric, min: 0, max: 110}}
    label: {column: ill, values: ["no", "yes"]}
  size: 4000
  unit: {column: patient, max_records: 2}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 128}
budget: {epsilon: auto, delta: 1e-6}
training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}
"""
FILTERED = "SELECT patient, age, ill FROM visits WHERE age > 17"
JOINED = "SELECT v.patient, age, ill FROM visits v JOIN labs USING (patient)"


def recipe_of(**changes: object):  # type: ignore[no-untyped-def]
    import json

    overrides = [f"{key.replace('__', '.')}={json.dumps(value)}" for key, value in changes.items()]
    return read_text(RECIPE, "wards.yaml", overrides)


CODES: dict[str, tuple[dict[str, object], list[str]]] = {
    "each row of one row": ({}, []),
    "a filter": ({"data__train__query": FILTERED}, []),
    "a join": ({"data__train__query": JOINED}, ["P144"]),
    "a join, declared": ({"data__train__query": JOINED, "data__train__rows": "declared"}, []),
    "a needless declaration": ({"data__train__rows": "declared"}, ["R243"]),
    "replaced rows": ({"budget__neighbouring": "replace_one"}, []),
    "blanked rows": ({"budget__neighbouring": "zero_out_one"}, []),
    "replaced, and a filter": ({"data__train__query": FILTERED, "budget__neighbouring": "replace_one"}, ["P145"]),
    "blanked, and a filter": ({"data__train__query": FILTERED, "budget__neighbouring": "zero_out_one"}, ["P145"]),
    "replaced, and declared": (
        {"data__train__query": JOINED, "data__train__rows": "declared", "budget__neighbouring": "replace_one"},
        ["P145"],
    ),
}


@pytest.mark.parametrize("name", CODES)
def test_which_queries_are_refused(name: str) -> None:
    changes, codes = CODES[name]
    findings = check(recipe_of(**changes).recipe)
    assert [finding.code for finding in findings if finding.code[1] == "1" or finding.code == "R243"] == codes
    if "P144" in codes:
        assert "data.train.rows: declared" in findings[0].remedy
        assert "'join' follows the table" in findings[0].message


def test_held_out_records_of_a_query_are_private_too() -> None:
    test = f"test: {{tables: {{visits: other.parquet, labs: l.csv}}, query: '{JOINED}'}}"
    text = RECIPE.replace("  size: 4000\n", f"  {test}\n  size: 4000\n")
    assert "P144" in [f.code for f in check(read_text(text, "wards.yaml").recipe)]
    public = text.replace("query: 'SELECT v", "access: public, query: 'SELECT v")
    assert "P144" not in [f.code for f in check(read_text(public, "wards.yaml").recipe)]


def test_the_plan_says_what_the_data_set_is_and_who_says_so() -> None:
    def assumed(**changes: object) -> tuple[str, str]:
        (found,) = [a for a in plan(recipe_of(**changes)).assumptions if a.id == "query_rows"]
        return found.checked_by, found.text

    by, text = assumed()
    assert by == "code"
    assert "each of them is made of one row of a table" in text
    by, text = assumed(data__train__query=JOINED, data__train__rows="declared")
    assert by == "declaration"
    assert "each of them was made of rows of one group of records with the same 'patient' alone" in text


def test_every_mechanism_has_the_rule() -> None:
    """It is a rule of recipes, not of a mechanism's own."""
    from dprecipe.planning import records, rules

    assert records.check_query in rules.RULES
    assert len(MECHANISMS) >= 4
