"""What only a solved plan shows of a run and its account: P204. Rules of the recipe are in `test_rules.py`."""

from __future__ import annotations

import pytest

from dprecipe.account.facts import new_facts
from dprecipe.planning.accounts import check_account, check_facts, check_solved
from dprecipe.planning.make import plan
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import read_text
from tests.recipe_texts import DIGITS, DPSGD
from tests.training.tuning.conftest import TUNING

RECIPE = f"""\
recipe: dprecipe/v1
name: small
{DIGITS}model: {{kind: logistic_regression}}
{DPSGD}training: {{steps: 30, optimizer: {{kind: sgd, lr: 1.0}}}}
"""


def test_events_that_cost_too_much_at_every_order_are_in_no_account() -> None:
    facts = new_facts("digits", 4.0, 1e-5, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    held = plan(read_text(RECIPE, "small.yaml"))
    assert list(check_solved(held, facts)) == []
    loud = plan(read_text(RECIPE, "small.yaml", ["budget.epsilon=auto", "mechanism.noise.multiplier=0.01"]))
    assert [finding.code for finding in check_solved(loud, facts)] == ["P204", "P202"]


def test_a_column_by_the_name_of_record_is_not_the_unit_record() -> None:
    """An account of the column's units takes no run that protects single rows, nor the other way round."""
    rows = read_text(RECIPE, "small.yaml").recipe
    units = {
        column: read_text(RECIPE, "small.yaml", [f"data.unit={{column: {column}, max_records: 2}}"]).recipe
        for column in ("record", "column record", "column column record")
    }
    names = [recipe.data.unit_name for recipe in (rows, *units.values())]
    assert names == ["record", "column record", "column column record", "column column column record"]
    for name in names:
        facts = new_facts("digits", 4.0, 1e-5, name, Neighbouring.ADD_OR_REMOVE_ONE)
        fits = [[finding.code for finding in check_facts(recipe, facts)] for recipe in (rows, *units.values())]
        assert fits == [[] if each == name else ["P200"] for each in names]


CSV = "source: csv, columns: {age: {kind: numeric, min: 0, max: 9}}, label: {column: y, classes: 2}"


@pytest.mark.parametrize(
    ("train", "test", "is_charged"),
    [
        (f"{CSV}, path: a.csv", f"{CSV}, path: b.csv", False),
        (f"{CSV}, path: [a.csv, b.csv]", f"{CSV}, path: ./b.csv", True),
        (f"{CSV}, path: a.csv", f"{CSV}, path: [a.csv, b.csv]", False),
        (f"{CSV}, path: a.csv", "split: {by: age, share: 0.1}", True),
        ("source: digits, split: train", "source: digits, split: test", True),
        (f"{CSV}, path: a.csv", "source: digits, split: test", False),
        (  # arrays of one file, and splits that are files of their own
            "source: npz, path: a.npz, features: x, labels: y, shape: [3], classes: 2",
            "source: npz, path: a.npz, features: u, labels: v, shape: [3], classes: 2",
            True,
        ),
        (
            "source: datasets, path: a, split: train, columns: {age: {kind: numeric, min: 0, max: 9}}, "
            "label: {column: y, classes: 2}",
            "source: datasets, path: a, split: test, columns: {age: {kind: numeric, min: 0, max: 9}}, "
            "label: {column: y, classes: 2}",
            False,
        ),
    ],
)
def test_a_paid_score_reads_nobody_whom_the_account_does_not_count(train: str, test: str, is_charged: bool) -> None:
    terms = [
        f"data.train={{{train}}}",
        f"data.test={{{test}, access: private_internal}}",
        "budget.account=a.db",
        "tuning.score.noise_multiplier=12",
    ]
    codes = [finding.code for finding in check_account(read_text(RECIPE + TUNING, "small.yaml", terms).recipe)]
    assert codes == ([] if is_charged else ["P230"])
    free = read_text(RECIPE + TUNING, "small.yaml", [*terms[:3], "tuning.score.noise_multiplier=null"]).recipe
    assert not list(check_account(free))


QUERIED = """\
recipe: dprecipe/v1
name: held
data:
  train:
    source: duckdb
    tables: {t: visits.csv}
    query: "%s"
    columns: {age: {kind: numeric, min: 0, max: 99}}
    label: {column: y, values: [a, b]}
  size: 1437
  unit: {column: patient_id, max_records: 2}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: full_batch}
budget: {epsilon: 1.0, delta: 1e-6, account: own.db}
training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}
"""


@pytest.mark.parametrize(
    ("query", "rows", "codes"),
    [
        ("SELECT age, y, patient_id FROM t", "", []),
        ("SELECT * FROM t", "", []),
        ("SELECT age, y, visit_id AS patient_id FROM t", "", ["P200"]),
        ("SELECT age, y, concat(patient_id, visit_id) AS patient_id FROM t", "", ["P200"]),
        ("SELECT age, y, lower(patient_id) AS patient_id FROM t", "data.train.rows=declared", []),  # the remedy
    ],
)
def test_a_query_does_not_make_the_unit_of_an_account(query: str, rows: str, codes: list[str]) -> None:
    recipe = read_text(QUERIED % query, overrides=[rows] if rows else []).recipe
    facts = new_facts("own", 8.0, 1e-5, "patient_id", Neighbouring.ADD_OR_REMOVE_ONE)
    assert [finding.code for finding in check_facts(recipe, facts)] == codes
