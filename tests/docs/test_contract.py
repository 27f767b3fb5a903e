"""docs/reference/contract.md shows the JSON that the commands write."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import dprecipe

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_of_a_plan_is_that_of_its_recipe() -> None:
    page = (ROOT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
    (shown,) = (json.loads(text) for text in re.findall(r"```json\n(.*?)```", page, re.DOTALL) if "plan/v1" in text)
    plan = dprecipe.plan(dprecipe.load(ROOT / "recipes" / f"{shown['recipe']['name']}.yaml"))
    differences = list(_list_differences(shown, json.loads(json.dumps(plan.to_json()))))
    assert differences == []


def _list_differences(shown: Any, real: Any, path: str = "") -> list[str]:
    """Where the two differ. A list may be shown up to any length; a shown text with `…` or `|` stands for any."""
    if isinstance(shown, dict) and isinstance(real, dict):
        pairs = [(shown[key], real[key], f"{path}.{key}") for key in shown.keys() & real.keys()]
        missing = [f"{path}.{key}" for key in shown.keys() ^ real.keys()]
        return missing + [each for pair in pairs for each in _list_differences(*pair)]
    if isinstance(shown, list) and isinstance(real, list):
        items = [(value, real[index], f"{path}.{index}") for index, value in enumerate(shown)]
        return [each for item in items for each in _list_differences(*item)]
    if isinstance(shown, str) and re.search("…|\\|", shown):
        return []
    return [] if shown == real else [f"{path}: {shown!r} for {real!r}"]
