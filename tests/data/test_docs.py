"""The examples of docs/reference/data.md are recipes' data blocks without a finding, and every code has its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.schema import Data
from dprecipe.recipe.read import inherit_records
from dprecipe.text.load import parse
from dprecipe.text.tree import Mapping, to_plain

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall((ROOT / "docs" / "reference" / "data.md").read_text(encoding="utf-8"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_are_sound(text: str) -> None:
    tree, findings = parse(text, "data.md")
    assert findings == ()
    assert isinstance(tree, Mapping)
    data = Data.model_validate_json(json.dumps(to_plain(inherit_records(tree))["data"]))
    assert check_data(data) == []


def test_every_code_has_a_page() -> None:
    sources = ("dprecipe/data/checks.py", "dprecipe/models/checks.py", "dprecipe/models/modules/inspection.py")
    codes = {
        code for file in sources for code in re.findall(r'"([RP]\d{3})"', (ROOT / file).read_text(encoding="utf-8"))
    }
    assert len(codes) >= 20
    missing = [
        code for code in sorted(codes) if not (ROOT / "docs" / "reference" / "findings" / f"{code}.md").is_file()
    ]
    assert missing == []
