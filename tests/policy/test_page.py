"""docs/how-to/policy.md shows policies that are right, and every key of a rule."""

from __future__ import annotations

import re
from pathlib import Path

from dprecipe.policy.read import read_policy_text
from dprecipe.policy.schema import PolicyRule

DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_are_right() -> None:
    page = (DOCS / "how-to" / "policy.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(policy:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    policy = read_policy_text(example).policy
    assert len(policy.rules) == 3
    table = page[page.index("| key |") : page.index("Who accepts a warning")]
    keys = {field.alias or name for name, field in PolicyRule.model_fields.items()} - {"name", "data", "except"}
    assert {key for key in keys if f"`{key}" not in table} == set()


def test_the_examples_of_the_findings_are_right() -> None:
    pages = sorted((DOCS / "reference" / "findings").glob("Q*.md"))
    assert len(pages) == 15
    for page in pages:
        (example,) = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        assert read_policy_text(f"policy: dprecipe/v1\nname: example\n{example}").policy.rules
