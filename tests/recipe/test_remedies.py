"""Whoever follows a remedy gets further: each remedy of each golden finding is followed, by its words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dprecipe.faults import Finding, RecipeError
from dprecipe.recipe.read import read, read_text
from dprecipe.screen import make_printable
from dprecipe.text.load import read_file, split_lines

from .follow import findings_of, follow, written

FOLDER = Path(__file__).parents[1] / "golden" / "recipes"


def structural() -> list[tuple[str, int]]:
    cases = []
    for path in sorted(FOLDER.glob("*.yaml")):
        if re.search(r"-chain-\d", path.name):
            continue
        try:
            read(path)
        except RecipeError as error:
            if all(finding.code[0] != "Y" for finding in error.findings):
                cases += [(path.stem, index) for index in range(len(error.findings))]
    return cases


CASES = structural()


def read_findings(stem: str) -> tuple[str, tuple[Finding, ...]]:
    text = read_file(str(FOLDER / f"{stem}.yaml"))
    with pytest.raises(RecipeError) as caught:
        read_text(text, "a.yaml")
    return text, caught.value.findings


def test_there_are_many() -> None:
    assert len(CASES) >= 250


@pytest.mark.parametrize(("stem", "index"), CASES)
def test_the_remedy_gets_further(stem: str, index: int) -> None:
    """The finding is gone, and what the remedy made is not found fault with: nothing new stands at its place."""
    text, before = read_findings(stem)
    finding = before[index]
    followed = follow(text, finding)
    after = findings_of(written(followed))
    known = {(each.code, each.path, each.message) for each in before}
    new = [each for each in after if (each.code, each.path, each.message) not in known]
    assert (finding.code, finding.path, finding.message) not in {(e.code, e.path, e.message) for e in after}
    assert [each for each in new if each.path == followed.target and each.is_error] == []


# What a person changes in the text itself, as the remedies say, where no tree could be read; the last is what remains.
EDITS: dict[str, tuple[tuple[str, str], ...]] = {
    "y103-control-character": (("\x0c", ""),),
    "y104-bare-line": (("training\n", "training:\n"),),
    "y104-colon-in-text": (("note: this", '"note: this"'),),
    "y104-deeper-key": (("\n epochs", "\n  epochs"),),
    "y104-indentation": (("   size:", "  size:"),),
    "y104-open-bracket": (("[32", "[32]}"),),
    "y104-open-quote": (('"example', '"example"'),),
    "y104-percent": (("%3", "3"),),
    "y105-tab": (("\tsize", "  size"),),
    "y106-duplicate-key": (("budget: {epsilon: 8.0, delta: 1e-5}\n", ""),),
    "y107-anchor-and-alias": (("&b ", ""), ("*b", "{epsilon: 3.0, delta: 1e-5}")),
    "y107-shared": (
        ("*name", "name"),
        ("x-budget: &b {epsilon: 3.0}\n", ""),
        ("  <<: *b\n", "  epsilon: 3.0\n"),
    ),
    "y109-tags-and-directives": (("%YAML 1.1\n---\n", ""), ("!!int ", ""), ("!python/name:os.system ", "")),
    "y111-keys-that-are-not-text": (
        ("{1:", "{'1':"),
        ("true:", "'true':"),
        ("null:", "'null':"),
        ("1e-5: tiny", "'1e-5': tiny"),
        ("[a]:", "'[a]':"),
    ),
    "y114-numbers-without-bound": (
        ("1e999", "1.0"),
        (".inf", "3.0"),
        ("1e-999", "1e-5"),
        (".nan", "0.5"),
        ("695e0514", "'695e0514'"),
        ("123456789012345678901234567890", "'123456789012345678901234567890'"),
    ),
    "y116-escapes": (("\\e", ""), ("\\ud800", ""), ("\\0", "")),
    "y117-after-the-colon": (("\u00a0", " "),),
    "y117-at-the-end": (("3.0\u00a0", "3.0"), ("20\u00a0", "20")),
    "y117-no-break-space": (("\u00a0", " "),),
    "y118-in-braces": (("epsilon:3.0", "epsilon: 3.0"),),
    "y118-no-space": (("epochs:20", "epochs: 20"),),
    "y119-comma": (("2,0", "2.0"),),
    "y120-extends-absolute": (("/etc/passwd", "fine.yaml"),),
    "y120-extends-list": (("[a.yaml, b.yaml]", "fine.yaml"),),
    "y120-extends-url": (("https://example.org/base.yaml", "fine.yaml"),),
    "y120-extends": (("nowhere.yaml", "fine.yaml"),),
    "y121-circle": (("extends: y121-circle.yaml\n", ""),),
}


def of_text() -> list[str]:
    every = [path.stem for path in sorted(FOLDER.glob("y*.yaml")) if not re.search(r"-chain-\d", path.name)]
    structure = {stem for stem, _ in CASES}
    return [stem for stem in every if stem not in structure and stem != "y103-not-utf8"]


@pytest.mark.parametrize("stem", of_text())
def test_the_text_is_repaired(stem: str, tmp_path: Path) -> None:
    """After the edits that its remedies name, a text reads as a recipe, or its findings are of another kind."""
    before = (FOLDER / f"{stem}.yaml").read_text("utf-8")
    text = repair(stem, before)
    assert text != before
    (tmp_path / "fine.yaml").write_text((FOLDER / "fine.yaml").read_text("utf-8"), encoding="utf-8")
    (tmp_path / "mended.yaml").write_text(text, encoding="utf-8")
    assert read(tmp_path / "mended.yaml").recipe.recipe == "dprecipe/v1"


def repair(stem: str, text: str) -> str:
    fine = (FOLDER / "fine.yaml").read_text("utf-8")
    match stem:
        case "y108-merge-key":
            return text.replace("<<: {mode: flat}", "mode: flat")
        case "y110-two-documents":
            return text.partition("\n---\n")[0] + "\n"
        case "y112-deep":
            return re.sub(r"\n {0,4}\S*\s*\{a: \{a: .*", "\n", re.sub(r"meta:.*(\n .*)*", "", text))
        case "y115-empty" | "y115-list":
            return fine
        case "y122-chain":
            return fine.replace("name: example", "name: merged")
    for old, new in EDITS[stem]:
        assert old in text, (stem, old)
        text = text.replace(old, new)
    return text


def test_a_file_of_another_encoding_is_repaired_by_saving_it_as_utf8(tmp_path: Path) -> None:
    raw = (FOLDER / "y103-not-utf8.yaml").read_bytes()
    (tmp_path / "a.yaml").write_text(raw.decode("latin-1"), encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        read(tmp_path / "a.yaml")
    assert {finding.code for finding in caught.value.findings} <= {"R109"}


PAGE = Path(__file__).parents[2] / "docs" / "project" / "mistakes.md"
HEAD = """# Mistakes, their findings and remedies

`tests/recipe/test_remedies.py` takes the first recipe of each code in `tests/golden/recipes`, follows its remedy, and
generates this page (`pytest --update-golden`).

| line with the mistake | finding | remedy |
|---|---|---|
"""


def rows() -> dict[str, str]:
    """Returns a row of the page for each code: its first recipe."""
    lines: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        if re.search(r"-chain-\d|terminal|not-utf8|r113|control", path.name):
            continue
        try:
            read(path)
        except RecipeError as error:
            finding, texts = error.findings[0], error.texts
        else:
            continue
        if finding.code in lines:
            continue
        place = finding.place
        assert place is not None
        line = split_lines(texts[place.file])[place.line - 1].strip()
        cells = [
            f"`{_cell(line, 60)}`" if line else "(nothing)",
            f"[{finding.code}](../reference/findings/{finding.code}.md)",
            _cell(finding.remedy, 90),
        ]
        lines[finding.code] = f"| {' | '.join(cells)} |"
    return lines


def _cell(text: str, max_length: int) -> str:
    text = make_printable(text).replace(f"{FOLDER}/", "").replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def test_the_page_of_mistakes(update_golden: bool) -> None:
    lines = rows()
    assert len(lines) >= 25
    page = HEAD + "\n".join(lines[code] for code in sorted(lines)) + "\n"
    if update_golden:
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text("utf-8") == page
