"""A small real run: the digits, a few steps, seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read
from tests.recipe_texts import DIGITS, DPSGD

RECIPE = f"""\
recipe: dprecipe/v1
name: small
{DIGITS}  preprocess: [{{clip_features: {{norm: 4.0}}}}]
model: {{kind: logistic_regression}}
{DPSGD}training:
  steps: 30
  optimizer: {{kind: sgd, lr: 1.0}}
release: {{report: false}}
"""


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Plan]:
    """The plan of the small recipe, with overrides; `more`: further blocks of it."""

    def make_plan(*overrides: str, more: str = "") -> Plan:
        recipe = tmp_path / "small.yaml"
        recipe.write_text(RECIPE + more, encoding="utf-8")
        return plan(read(recipe, overrides))

    return make_plan
