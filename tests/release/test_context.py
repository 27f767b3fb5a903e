"""Whom to ask and which other runs count: declared or from the account, the same in each document, never left open."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.cli.verify import verified_lines
from dprecipe.language.statement import ReleaseStatement
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.context import list_context
from dprecipe.release.exports import EXPORTS
from dprecipe.release.verify import Verified, verify


@pytest.fixture(scope="module")
def verified(finished: Any) -> Verified:
    return verify(finished.release)


def test_what_the_recipe_does_not_say_is_said_to_be_missing(verified: Verified) -> None:
    rows = dict(list_context(verified.statement.predicate))
    assert rows["who answers for it"] == "the recipe does not say (release.statement.curators)"
    assert rows["whom to ask"] == "the recipe does not say (release.statement.contact)"


def test_what_it_says_is_marked_as_declared(verified: Verified) -> None:
    stated = ReleaseStatement(curators=("St Mary", "The university"), contact="privacy@stmary.example")
    rows = dict(list_context(verified.statement.predicate.model_copy(update={"statement": stated})))
    assert rows["who answers for it"] == "St Mary, The university (declared)"
    assert rows["whom to ask"] == "privacy@stmary.example (declared)"


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
