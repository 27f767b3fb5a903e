"""What only a solved plan shows of a run and its account: P204. Rules of the recipe are in `test_rules.py`."""

from __future__ import annotations

from dprecipe.account.facts import new_facts
from dprecipe.planning.accounts import check_solved
from dprecipe.planning.make import plan
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import read_text
from tests.recipe_texts import DIGITS, DPSGD

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
