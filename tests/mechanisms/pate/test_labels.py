"""`labels.csv` holds answers of the run and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.contract.plan import Plan, RecipeSource
from dprecipe.mechanisms.pate import labels
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_source

RECIPE = Path(__file__).parents[3] / "recipes" / "pate-digits.yaml"
GOOD = "record,label\n1000,3\n1001,7\n1437,3\n"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(read_source(RecipeSource(RECIPE.read_text(encoding="utf-8"), "r.yaml")))


def list_problems(plan: Plan, content: bytes, answers: int = 3, data: str = "recipe") -> list[str]:
    return labels.find_differences(content, plan, answers, data == "python")


def test_answers_pass(plan: Plan) -> None:
    assert list_problems(plan, GOOD.encode()) == []
    assert list_problems(plan, b"record,label\n") == []
    assert labels.label_lines([(1000, "3"), (1001, "7"), (1437, "3")]) == GOOD


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"name,diagnosis\nAda Lovelace,HIV+\n",
        b"record,label,note\n1000,3,x\n",
        b"label,record\n3,1000\n",
        b"record,label\nAda,3\n",
        b"record,label\n1000,HIV+\n",
        b"record,label\n1000,10\n",
        b"record,label\n999,3\n",
        b"record,label\n1438,3\n",
        b"record,label\n1000,3\n1000,4\n",
        b"record,label\n1001,3\n1000,4\n",
        b"record,label\n01000,3\n",
        b'record,label\n"1000",3\n',
        b"record,label\r\n1000,3\r\n",
        b"record,label\n\n1000,3\n",
        b"record,label\n1000,3",
        b"\xff\xfe",
        b"record,label\n" + b"9" * 5000 + b",3\n",
    ],
)
def test_anything_else_is_found(content: bytes, plan: Plan) -> None:
    assert list_problems(plan, content)


def test_more_rows_than_answers_are_found(plan: Plan) -> None:
    assert any("more rows than answers" in line for line in list_problems(plan, GOOD.encode(), answers=2))


def test_records_from_python_have_no_declared_range(plan: Plan) -> None:
    assert list_problems(plan, b"record,label\n5,3\n", data="python") == []
