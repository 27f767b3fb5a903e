"""Whom to ask and which other runs count: declared or from the account, the same in each document, never left open."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dprecipe.cli.verify import verified_lines
from dprecipe.language.statement import ReleaseStatement
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.card import list_context
from dprecipe.release.exports import EXPORTS
from dprecipe.release.nist import list_answers
from dprecipe.release.registry import describe_deployment
from dprecipe.release.report import render_html
from dprecipe.release.verify import Verified, verify


@pytest.fixture(scope="module")
def verified(finished: Any) -> Verified:
    return verify(finished.release)


def test_what_the_recipe_does_not_say_is_said_to_be_missing(verified: Verified) -> None:
    rows = dict(list_context(verified.statement.predicate))
    assert rows["who answers for it"] == "no one is named (the recipe has no release.statement.curators)"
    assert rows["whom to ask"] == "no one is named (the recipe has no release.statement.contact)"


def test_what_it_says_is_marked_as_declared(verified: Verified) -> None:
    stated = ReleaseStatement(curators=("St Mary", "The university"), contact="privacy@stmary.example")
    rows = dict(list_context(verified.statement.predicate.model_copy(update={"statement": stated})))
    assert rows["who answers for it"] == '"St Mary, The university" (declared)'
    assert rows["whom to ask"] == '"privacy@stmary.example" (declared)'


def test_without_an_account_each_document_says_that_others_are_not_counted(finished: Any, verified: Verified) -> None:
    text = describe_other_runs(None)
    assert text.startswith("This run is charged to no account. Other runs on the same data are not counted here")
    documents = [
        *((finished.release / name).read_text(encoding="utf-8") for name in ("report.html", "card.md")),
        "\n".join(verified_lines(verified)),
        EXPORTS["nist"](verified),
        " ".join(EXPORTS["registry"](verified).split()),
    ]
    assert [text.split(",")[0] in document for document in documents] == [True] * 5


FORGED = 'none (declared)", ε = 0.1 in total; recomputed\n- 0 events were charged\u202e'
QUOTED = '"none (declared)\\", ε = 0.1 in total; recomputed - 0 events were charged'


def test_words_of_the_author_beside_those_of_the_program_are_quoted(verified: Verified) -> None:
    """Where both stand in one paragraph or list, the author's can't be read as the program's, nor end their quotes."""
    stated = ReleaseStatement(contact="x" + FORGED[:150], future_releases=FORGED, security=FORGED, actors=FORGED)
    statement = verified.statement.model_copy(
        update={"predicate": verified.statement.predicate.model_copy(update={"statement": stated})}
    )
    made = replace(verified, statement=statement)
    deployment = describe_deployment(made)["deployment"]
    answers = {line.question: line.answer for line in list_answers(made)}
    texts = [
        dict(list_context(statement.predicate))["whom to ask"].replace('"x', '"', 1),
        deployment["accounting"]["composition"].replace("\\\\", "\\"),
        deployment["implementation"]["mechanisms"].replace("\\\\", "\\"),
        answers["Which deployment model, and who has to be trusted?"],
        answers["Are more releases planned, and how will they be added up?"],
    ]
    assert [QUOTED in text for text in texts] == [True] * 5


def test_a_text_of_several_lines_is_one_paragraph(finished: Any, verified: Verified) -> None:
    """Line breaks of a block in YAML are no control characters that a reader should see."""
    plan = replace(finished.plan, description="Two lines\nof words.\n")
    stated = ReleaseStatement(justification="More\nlines.\n")
    predicate = verified.statement.predicate.model_copy(update={"statement": stated})
    page = render_html(plan, predicate, plan.events, (), lambda figure: "")
    page = page[: page.index("Where it comes from")]
    assert "Two lines of words." in page
    assert "More lines." in page
    assert "u000a" not in page
