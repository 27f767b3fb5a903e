"""`dprecipe account plan` and `account settle`."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account, open_account
from dprecipe.cli.main import app
from dprecipe.planning.make import plan
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import read
from tests.recipe_texts import DIGITS, DPSGD

RECIPE = f"""\
recipe: dprecipe/v1
name: small
{DIGITS}model: {{kind: logistic_regression}}
{DPSGD}training: {{steps: 30, optimizer: {{kind: sgd, lr: 1.0}}}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    facts = new_facts("digits", 4.0, 1e-4, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    create_account(tmp_path / "digits.db", facts).close()
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.replace("epsilon: 3.0", "epsilon: 2.0, account: digits.db"), encoding="utf-8")
    return path


def test_plan_tells_the_cap_that_ten_runs_need(recipe: Path) -> None:
    told = CliRunner().invoke(app, ["account", "plan", str(recipe)])
    assert told.exit_code == 0, told.output
    needed = re.search(
        r"10 runs like this at δ = 0\.0001 take a cap of ε = ([0-9.]+), each chosen in view", told.output
    )
    assert needed is not None
    assert float(needed[1]) == pytest.approx(5.182, abs=0.01)


@pytest.mark.slow
def test_plan_tells_what_is_left_and_what_would_fit(recipe: Path) -> None:
    told = CliRunner().invoke(app, ["account", "plan", str(recipe), "--runs", "12"])
    assert told.exit_code == 0, told.output
    assert "counted    ε = 0 of 4" in told.output
    found = re.search(r"12 runs like this: budget.epsilon ([0-9.]+), mechanism.noise.multiplier ([0-9.]+)", told.output)
    assert found is not None
    fits = re.search(r"that fit, .*: (\d+)\n", told.output)
    assert fits is not None
    assert 1 <= int(fits[1]) < 12
    assert "12 runs like this at δ = 0.0001 take a cap of ε = " in told.output
    solved = plan(read(recipe, [f"budget.epsilon={found[1]}"]))
    with closing(open_account(recipe.with_name("digits.db"))) as account:
        account.bind(b"data")
        for number in range(12):
            account.reserve(f"run{number}", 1, solved.events, "a run of the advice")
    full = CliRunner().invoke(app, ["account", "plan", str(recipe)])
    assert "it does not fit" in full.output
    assert "12 of them open" in full.output


def test_what_names_no_account_is_told_so(recipe: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(RECIPE, encoding="utf-8")
    for arguments in (["account", "plan", str(other)], ["account", "settle", str(tmp_path)]):
        told = CliRunner().invoke(app, arguments)
        assert told.exit_code == 2, told.output
    assert "  account " not in CliRunner().invoke(app, ["plan", str(other)]).output


def test_plan_of_a_recipe_says_where_it_would_leave_its_account(recipe: Path) -> None:
    told = CliRunner().invoke(app, ["plan", str(recipe)])
    assert "account digits: ε = 0 of 4 is counted, with this run" in told.output
    recipe.with_name("digits.db").unlink()
    assert "account:" in CliRunner().invoke(app, ["plan", str(recipe)]).output


def test_a_recipe_without_privacy_has_no_account(tmp_path: Path) -> None:
    text = RECIPE.replace(DPSGD, "mechanism: {kind: none}\nbudget: {account: digits.db}\n")
    (tmp_path / "none.yaml").write_text(text, encoding="utf-8")
    told = CliRunner().invoke(app, ["validate", str(tmp_path / "none.yaml")])
    assert told.exit_code == 1
    assert "R309" in told.output
