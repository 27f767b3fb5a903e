"""Every golden recipe gives exactly its golden findings; every code occurs in one, and has a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dprecipe.faults import CODES, RecipeError
from dprecipe.recipe.read import read
from tests.text.reading import show

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden" / "recipes"
# A link of a chain is read through the first one; `elsewhere` says where the other codes are shown.
CASES = sorted(path for path in FOLDER.glob("*.yaml") if not re.search(r"-chain-\d", path.name))
ELSEWHERE = {
    "Y101": "tests/text/test_load.py",
    "Y102": "tests/text/test_load.py",
    "Y113": "tests/text/test_load.py",
    "Y130": "tests/golden/overrides.out",
    "Y131": "tests/golden/overrides.out",
    "Y132": "tests/golden/overrides.out",
    "R120": "tests/cli/test_validate.py",
    "R121": "tests/golden/rules/r121-variable.out",
    "R122": "tests/golden/rules/r122-workbook.out",
    "R123": "tests/golden/rules/r123-no-warning.out",
    "R124": "tests/golden/rules/r124-not-met.out",
    "R199": "tests/recipe/test_wording.py",
}
PYDANTIC = re.compile(
    r"Input should|Field required|Extra inputs|pydantic|further information|validation error|Value error|String should"
    r"|type=|function-|tagged-union|<lambda>|form\(\)|Discriminator|valid (?:dictionary|integer|number|string|tuple)",
    re.IGNORECASE,
)


def outcome(path: Path) -> str:
    """What `validate` prints about the structure of a golden recipe, with paths relative to its folder."""
    try:
        read(path)
    except RecipeError as error:
        return show(error.findings, error.texts).replace(f"{FOLDER}/", "")
    return "no findings\n"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path, update_golden: bool) -> None:
    expected = path.with_suffix(".out")
    if update_golden:
        expected.write_text(outcome(path), encoding="utf-8")
    assert outcome(path) == expected.read_text(encoding="utf-8")


def test_the_set_is_as_large_as_the_folder_says() -> None:
    assert len(CASES) >= 40
    assert {path.stem for path in CASES} == {path.stem for path in FOLDER.glob("*.out")}


def test_every_code_is_shown_and_no_unknown_one() -> None:
    shown = set(re.findall(r"\[([YRP]\d{3})\]", "".join(p.read_text("utf-8") for p in FOLDER.glob("*.out"))))
    assert shown | set(ELSEWHERE) >= set(CODES)
    assert shown <= set(CODES)
    for code, where in ELSEWHERE.items():
        assert code in (ROOT / where).read_text("utf-8"), f"{where} does not show {code}"


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page(code: str) -> None:
    page = (ROOT / "docs" / "reference" / "findings" / f"{code}.md").read_text("utf-8")
    assert page.startswith(f"# {code}: {CODES[code]}\n")
    assert "\n## Example\n" in page
    assert "\n## Remedy\n" in page


def test_no_sentence_of_pydantic_in_any_golden_output() -> None:
    for path in FOLDER.glob("*.out"):
        assert not PYDANTIC.search(path.read_text("utf-8")), path.name
