"""Every golden recipe of the rules gives exactly its golden findings; every code of the rules is shown, with a page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dprecipe.cli import render
from dprecipe.cli.validate import check
from dprecipe.planning import rules
from dprecipe.recipe.read import read_text

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "golden" / "rules"
CASES = sorted(FOLDER.glob("*.yaml"))


def outcome(path: Path) -> str:
    findings, texts = check(path)
    return render.as_text(findings, texts).replace(f"{FOLDER}/", "") or "no findings\n"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path, update_golden: bool) -> None:
    expected = path.with_suffix(".out")
    if update_golden:
        expected.write_text(outcome(path), encoding="utf-8")
    assert outcome(path) == expected.read_text(encoding="utf-8")


def test_every_code_of_the_rules_is_shown_and_has_a_page() -> None:
    sources = [ROOT / "dprecipe" / "planning" / "rules.py", ROOT / "dprecipe" / "mechanisms" / "dpsgd" / "account.py"]
    used = {code for source in sources for code in re.findall(r'"([PR]\d{3})"', source.read_text("utf-8"))}
    shown = set(re.findall(r"\[([PR]\d{3})\]", "".join(p.read_text("utf-8") for p in FOLDER.glob("*.out"))))
    assert len(used) >= 14
    assert used - {"P107"} <= shown  # P107 needs the plan: tests/mechanisms/dpsgd/test_account.py
    assert all((ROOT / "docs" / "findings" / f"{code}.md").exists() for code in used)
    assert len(CASES) == len(list(FOLDER.glob("*.out"))) >= 25


@pytest.mark.parametrize("size", [1, 7, 100, 999, 1438, 60_000, 10**9])
def test_the_delta_that_a_remedy_names_raises_no_finding(size: int) -> None:
    text = (FOLDER / "p103-error.yaml").read_text("utf-8")
    text = text.replace("size: 1438", f"size: {size}").replace("batch_size: 256", "batch_size: 1")
    (finding,) = rules.delta_against_size(read_text(text.replace("delta: 0.01", "delta: 0.99999999"), "a.yaml").recipe)
    named = finding.remedy.rsplit(" ", 1)[1]
    assert (
        list(rules.delta_against_size(read_text(text.replace("delta: 0.01", f"delta: {named}"), "a.yaml").recipe)) == []
    )
