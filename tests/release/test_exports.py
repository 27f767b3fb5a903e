"""The statement of a recipe, and the forms in which `verify` exports a certificate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dprecipe.faults import RecipeError
from dprecipe.recipe.read import read_text
from dprecipe.release.card import render_markdown
from dprecipe.release.exports import EXPORTS
from dprecipe.release.nist import PARTS, list_answers
from dprecipe.release.registry import write_slug
from dprecipe.release.verify import Verified, verify

SCHEMA = yaml.safe_load((Path(__file__).parent / "registry" / "deployments-schema.yaml").read_text(encoding="utf-8"))
RECIPE = """\
recipe: dprecipe/v1
name: stated
description: A test with <script>alert(1)</script>
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1437
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 2.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 2.0, delta: 1e-5}
training: {steps: 60, optimizer: {kind: sgd, lr: 0.5}}
"""
STATEMENT = """\
release:
  statement:
    curators: ["<b>St Mary</b> | hospital", The university]
    intended_use: "[Click](javascript:alert(1)), and $x$"
    region: Switzerland
    sector: healthcare
    published: 2026-03-01
    deployment_model: central
    actors: The curator sees all records.
    releases: many
    future_releases: One a year, in one account.
    data_changes: true
    data_source: Admissions.
    security: An encrypted disk.
    justification: |
      Two lines
      of reasons.
    authors: [A. Author]
"""


@pytest.fixture(scope="module")
def stated(tmp_path_factory: pytest.TempPathFactory, plan_of: Any, facts_of: Any, finish: Any) -> Any:
    return finish(tmp_path_factory.mktemp("stated") / "run", plan_of(RECIPE + STATEMENT), facts_of())


@pytest.fixture(scope="module")
def both(stated: Any, finished: Any) -> dict[bool, Verified]:
    """Verified certificates, with a statement and without."""
    return {True: verify(stated.release), False: verify(finished.release)}


def test_the_statement_is_in_certificate_card_and_report(stated: Any, both: dict[bool, Verified]) -> None:
    statement = both[True].statement.predicate.statement
    assert statement is not None
    assert statement.region == "Switzerland"
    card = (stated.release / "card.md").read_text(encoding="utf-8")
    assert "declared, and checked by nobody" in card
    assert "&lt;b&gt;St Mary&lt;/b&gt; \\| hospital, The university" in card
    assert "| why this ε and δ | Two lines of reasons. |" in card
    report = (stated.release / "report.html").read_text(encoding="utf-8")
    assert "Statement of the curator" in report
    assert "<b>St Mary</b>" not in report


def test_without_a_statement_nothing_is_made_up(finished: Any, both: dict[bool, Verified]) -> None:
    assert both[False].statement.predicate.statement is None
    assert "The recipe says no more about intended use" in render_markdown(
        finished.plan, both[False].statement.predicate
    )


def test_a_changed_statement_is_found(
    stated: Any, tampering: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes((stated.release / "certificate.json").read_bytes())
    seen, wrong = tampering.find_unnoticed(tmp_path, "statement", ())
    assert seen >= 14
    assert wrong == []


def test_a_statement_that_is_not_made_is_no_part_of_the_digest(plan_of: Any) -> None:
    plan = plan_of(RECIPE)
    assert plan.resolved["release"] == {"report": True, "labels": False, "sign": None}
    assert plan_of(RECIPE + STATEMENT).digest != plan.digest


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("curators: []", "R108"),
        ("curator: [x]", "R101"),
        ("published: soon", "R103"),
        ("deployment_model: local", "R106"),
        ("region: ''", "R108"),
        (f"security: {'x' * 4001}", "R108"),
    ],
)
def test_a_statement_that_is_wrong_is_refused_at_its_place(line: str, code: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_text(f"{RECIPE}release:\n  statement:\n    {line}\n")
    assert [finding.code for finding in caught.value.findings] == [code]


@pytest.mark.parametrize("has_statement", [True, False])
def test_the_registry_takes_the_entry(both: dict[bool, Verified], has_statement: bool) -> None:
    text = EXPORTS["registry"](both[has_statement])
    entry = yaml.safe_load(text)
    jsonschema.validate(entry, SCHEMA, format_checker=jsonschema.FormatChecker())
    claim, basic = both[has_statement].claim, entry["deployment"]["basic"]
    assert entry["status"] == "Draft"
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": claim.epsilon, "delta": claim.delta}
    assert "<" not in text.replace("&lt;", "").replace("<=", "")
    assert entry["tier"] == (3 if has_statement else 1)
    if has_statement:
        assert basic["publication_date"] == "2026-03-01"
        assert basic["data_product_sector"] == "Healthcare"
        assert "](javascript" not in text.replace("\\](", "")
        assert entry["deployment"]["deployment_model"]["data_source_type"] == "Dynamic"
    else:
        assert basic["data_curators"] == ["Not stated."]
        assert "data_product_sector" not in basic
        assert "data_source_type" not in entry["deployment"]["deployment_model"]


def test_an_address_is_of_words_alone() -> None:
    assert write_slug("A b/../c_D", "2026-01-02") == "a-b-c-d-2026"
    assert write_slug("...", "2026-01-02") == "model-2026"


def test_every_line_of_the_checklist_is_answered_or_says_that_it_is_not(both: dict[bool, Verified]) -> None:
    full, bare = (list_answers(both[has]) for has in (True, False))
    assert len(full) == len(bare) == sum(map(len, PARTS.values())) > 20
    unanswered = {line.question: line for line in bare if line.basis == "not answered"}
    assert "Why these parameters?" in unanswered
    assert "release.statement.justification" in unanswered["Why these parameters?"].answer
    # What a program can't know stays open, whatever the statement says.
    assert {line.question for line in full if line.basis == "not answered"} == {
        "Were systemic, human and statistical bias examined?",
        "Can a reader know that this program ran as stated?",
    }
    page = EXPORTS["nist"](both[True])
    assert repr(both[True].claim.epsilon) in page
    assert "<b>" not in page
    assert f"{len(full)} lines, 2 of them not answered" in page


def test_json_holds_the_claim_and_the_statement(both: dict[bool, Verified]) -> None:
    content = json.loads(EXPORTS["json"](both[True]))
    assert content["schema"] == "dprecipe.verified/v1"
    assert content["claim"]["epsilon"] == both[True].claim.epsilon
    assert content["statement"]["authors"] == ["A. Author"]
    assert any("not signed" in note for note in content["not_shown"])
    assert json.loads(EXPORTS["json"](both[False]))["statement"] is None


def test_a_number_in_a_checklist_is_rounded_up(both: dict[bool, Verified]) -> None:
    """δ = 1e-5 of 1,437 records is 0.01437: 0.014 would be too little."""
    text = next(line.answer for line in list_answers(both[False]) if "how large is δ" in line.question)
    assert "δ times the declared size of 1,437 is 0.015" in text


@pytest.mark.parametrize("has_statement", [True, False])
def test_one_is_singular_and_a_colon_explains_once(has_statement: bool, both: dict[bool, Verified]) -> None:
    """The unit's words have colons of their own."""
    for form in ("registry", "nist"):
        text = " ".join(EXPORTS[form](both[has_statement]).split())
        assert not re.search(r"\b1 (attempts|events)\b", text), form
        assert not re.search(r"by itself: not all records of one person together:", text), form
        assert "units (each record)" not in text, form
