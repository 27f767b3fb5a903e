"""Warnings that the author accepts: told with the reason, declared in the plan, and never more than that."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.contract.plan import Plan
from dprecipe.faults import RecipeError
from dprecipe.planning import accept, rules
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text

PACKAGE = Path(__file__).parents[2] / "dprecipe"
RECIPE = (Path(__file__).parents[1] / "golden" / "rules" / "p112-private-metrics.yaml").read_text("utf-8")
REASON = "consent of 2024,\nform 7 \u202etxet"


def accepting(*lines: str) -> str:
    return RECIPE + "accept:\n" + "".join(f"  {line}\n" for line in lines)


def planned(*lines: str) -> Plan:
    return plan(read_text(accepting(*lines)))


def test_the_table_is_every_warning_about_a_recipe() -> None:
    codes: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and any(
                keyword.arg == "severity" and ast.unparse(keyword.value) == "Severity.WARNING"
                for keyword in node.keywords
            ):
                codes.add(ast.literal_eval(node.args[0]))
    # P188 is about recipes beside each other, R120 and R322 about files, R124 about acceptances: none can be accepted.
    assert codes - {"R120", "R124", "R322", "P188"} == set(accept.WARNINGS)
    assert set(accept.WARNINGS) >= accept.PLAN_WARNINGS


def test_the_page_lists_the_table() -> None:
    page = (
        (PACKAGE.parent / "docs" / "reference" / "findings" / "README.md")
        .read_text("utf-8")
        .partition("## Accepted warnings")[2]
    )
    assert re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE) == list(accept.WARNINGS.items())


def test_the_reason_is_in_plan_assumptions_and_digest() -> None:
    accepted = planned(f"P112: {json.dumps(REASON)}")
    (warning,) = accepted.warnings
    assert (warning.code, warning.accepted) == ("P112", REASON)
    (declared,) = (a for a in accepted.assumptions if a.id == "accepted_P112")
    assert declared.checked_by == "declaration"
    assert declared.text.endswith(r'for the reason "consent of 2024,\nform 7 \u202etxet"')
    assert declared.text.isprintable()
    assert accepted.digest != plan(read_text(RECIPE)).digest


def test_errors_and_unknown_codes_are_refused() -> None:
    loaded = read_text(accepting("P101: a", "R101: b", "X1: c", "P999: d", "P112: ' '"))
    errors = {f.path: f.code for f in rules.check(loaded.recipe) if f.is_error}
    assert errors == {f"accept.{code}": "R123" for code in ("P101", "R101", "X1", "P999", "P112")}


def test_an_accepted_error_stays_an_error() -> None:
    text = accepting("P103: we know").replace("delta: 1e-5", "delta: 0.5")
    (finding,) = (f for f in rules.check(read_text(text).recipe) if f.code == "P103")
    assert finding.is_error
    assert finding.accepted == ""


def test_what_did_not_occur_is_a_warning() -> None:
    loaded = read_text(accepting("P112: a", "P108: b"))
    assert [(f.code, f.accepted) for f in rules.check(loaded.recipe)] == [("P112", "a"), ("R124", "")]
    assert [f.code for f in plan(loaded).warnings if not f.accepted] == ["R124"]


def test_what_only_the_plan_knows_is_not_missed_before() -> None:
    loaded = read_text(accepting("P112: a", "P173: b"))
    assert [f.code for f in rules.check(loaded.recipe)] == ["P112"]
    assert sorted(f.code for f in plan(loaded).warnings) == ["P112", "R124"]


@pytest.mark.parametrize("line", ["P112: ''", "P112: 3", "P112: " + "x" * 301, "P112: null"])
def test_a_reason_is_a_bounded_text(line: str) -> None:
    with pytest.raises(RecipeError):
        read_text(accepting(line))


@pytest.mark.parametrize("name", ["r123-no-warning", "r124-not-met"])
def test_removing_the_line_is_the_remedy(name: str) -> None:
    text = (Path(__file__).parents[1] / "golden" / "rules" / f"{name}.yaml").read_text("utf-8")
    before = {f.code for f in rules.check(read_text(text).recipe)}
    after = {f.code for f in rules.check(read_text(re.sub("(?m)^accept: .*\n", "", text)).recipe)}
    assert name[:4].upper() in before
    assert after <= {"P112"}


def test_how_many_can_be_accepted_is_bounded() -> None:
    with pytest.raises(RecipeError, match="R108"):
        read_text(accepting(*(f"P{number}: x" for number in range(100, 121))))


@pytest.mark.parametrize("output", ["text", "json", "github", "sarif"])
def test_every_format_tells_the_reason_and_passes(output: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(accepting(f"P112: {json.dumps(REASON)}"), encoding="utf-8")
    result = CliRunner().invoke(app, ["validate", str(file), "--format", output])
    assert result.exit_code == 0
    assert "consent of 2024," in result.stdout
    assert "\u202e" not in result.stdout
    expected = {
        "text": "accepted[P112]",
        "json": '"severity": "warning"',
        "github": "::notice file=",
        "sarif": '"kind": "inSource"',
    }
    assert expected[output] in result.stdout
    if output in ("text", "github"):
        assert "1 accepted warning" in result.stdout
