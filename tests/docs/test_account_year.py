"""The worked example of docs/how-to/account.md: its table is what the year comes to, and what it shows is typed
again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from dprecipe.cli.validate import validate
from tests.docs.test_first_days import ROOT, read_section, type_again

EXAMPLE = ROOT / "examples" / "account"


def load_year() -> ModuleType:
    spec = importlib.util.spec_from_file_location("account_year", EXAMPLE / "year.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_table() -> list[tuple[str, ...]]:
    lines = read_section("docs/how-to/account.md", "A year of a hospital").splitlines()
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line.startswith("| ")]
    return rows[2:]


@pytest.mark.slow
def test_the_year_of_the_page_is_lived_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    year = load_year()
    rows = list(year.live(tmp_path / "year"))
    assert rows == read_table()
    assert (len(rows), sum("refused" in row[3] for row in rows)) == (12, 2)
    monkeypatch.chdir(tmp_path / "year")
    said = type_again(read_section("docs/how-to/account.md", "A year of a hospital"))
    for line in read_section("docs/how-to/account.md", "A year of a hospital").splitlines():
        if line.startswith(("account admissions", "  counted", "  this run", "  2 runs")):
            assert line in said


def test_its_recipes_and_its_policy_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    assert validate([Path("readmission.yaml"), Path("stay.yaml"), Path("triage.yaml")]) == 0
    shown = read_section("docs/how-to/account.md", "A year of a hospital")
    assert (EXAMPLE / "dprecipe.policy.yaml").read_text(encoding="utf-8") in shown
