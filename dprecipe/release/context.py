"""The context of a claim: who answers for it, whom to ask, and which other runs count."""

from __future__ import annotations

from dprecipe.language.statement import QUESTIONS, ReleaseStatement, quote_words
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.schema import Predicate

TITLE = "Whom to ask, and what else was run"


def list_context(predicate: Predicate) -> list[tuple[str, str]]:
    """Returns each question, and its answer by the recipe or the account; or that the recipe does not say it."""
    stated = dict((predicate.statement or ReleaseStatement()).list_rows())
    rows = []
    for key in ("curators", "contact"):
        question = QUESTIONS[key]
        if question in stated:
            rows.append((question, f"{quote_words(stated[question])} (declared)"))
        else:
            rows.append((question, f"the recipe does not say (release.statement.{key})"))
    return [*rows, ("other runs on the same data", describe_other_runs(predicate.account))]
