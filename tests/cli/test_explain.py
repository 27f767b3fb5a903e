"""`dprecipe explain`: every page, in every terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.cli import explain, render
from dprecipe.faults import Finding, RunFailed, UsageFault

PAGES = sorted((Path(__file__).parents[2] / "docs" / "reference" / "findings").glob("[A-Z][0-9]*.md"))


def test_a_page_is_printed_whatever_the_case_of_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    explain.explain("p111")
    said = capsys.readouterr().out
    assert said.startswith("P111: training records declared public\n\nThe budget protects `data.train`;")
    assert "\n    data:\n      train: {source: digits, split: train, access: public}\n" in said
    assert said.endswith("Remedy\n\nRemove `data.train.access`.\n")


def test_the_list_has_every_code_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    explain.explain(None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(PAGES) > 180
    assert "P111  training records declared public" in lines
    assert all(len(line) > len("P111  ") for line in lines)
    explain.explain("P111", listed=True)
    assert capsys.readouterr().out.splitlines() == lines


@pytest.mark.parametrize(
    ("code", "near"), [("P1111", "P111: training"), ("Pl11", "P111"), ("p11", "P110"), ("111", "P111")]
)
def test_a_typo_is_told_the_nearest_codes(code: str, near: str) -> None:
    with pytest.raises(UsageFault, match=f"there is no finding {code}") as unknown:
        explain.explain(code)
    assert f"did you mean {near}" in unknown.value.remedy or near in unknown.value.remedy
    assert "--list" in unknown.value.remedy


def test_a_word_finds_titles(capsys: pytest.CaptureFixture[str]) -> None:
    explain.explain("declared public")
    assert "P111  training records declared public" in capsys.readouterr().out.splitlines()
    explain.explain("delta")
    assert "P103  δ too large for the number of records" in capsys.readouterr().out.splitlines()
    with pytest.raises(UsageFault):
        explain.explain("quantum")


@pytest.mark.parametrize("width", [40, 100])
def test_every_page_is_rendered_without_loss(width: int) -> None:
    for path in PAGES:
        text = path.read_text("utf-8")
        lines = explain.render_terminal(text, width)
        assert "".join(lines).strip(), path.name
        assert not [line for line in lines if line.startswith(("```", "#"))], path.name
        shown = " ".join(lines).split()
        kept = [word for word in explain._plain(text).split() if not word.startswith(("```", "#", "|", "-"))]
        assert [word for word in kept if word not in shown] == [], path.name


def test_what_can_be_broken_is_broken_at_the_width() -> None:
    text = "One [link](a.md) and words\nthat go on.\n\n- first item of\n  a list\n- second"
    page = f"# P000: title\n\n{text}\n\n```yaml\nkept: as it is\n```\n"
    assert explain.render_terminal(page, 18) == [
        "P000: title", "", "One link and words", "that go on.", "", "- first item of a", "  list", "- second", "",
        "    kept: as it is",
    ]  # fmt: skip


def test_without_pages_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "PLACES", (tmp_path / "nowhere",))
    with pytest.raises(RunFailed, match="not installed"):
        explain.explain("P111")


def test_findings_name_the_command_once_and_in_a_terminal_alone() -> None:
    findings = [Finding("P111", "m", "r"), Finding("R101", "m", "r"), Finding("P111", "again", "r")]
    assert render.hint_at_pages(findings, True) == ["  more: dprecipe explain P111 (or R101)"]
    assert render.hint_at_pages(findings, False) == []
    assert render.hint_at_pages([Finding("P108", "m", "r", accepted="a test")], True) == []
