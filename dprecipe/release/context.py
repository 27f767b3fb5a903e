"""What a reader needs to know around a claim: who answers for it, whom to ask, and which other runs count."""

from __future__ import annotations

from dprecipe.language.statement import QUESTIONS, ReleaseStatement, quote_words
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.schema import Predicate

TITLE = "Whom to ask, and what else was run"


def list_context(predicate: Predicate) -> list[tuple[str, str]]:
    """Each question, and what the recipe declares or the account says; or that nobody says it."""
    stated = dict((predicate.statement or ReleaseStatement()).list_rows())
    declared = [
        (
            question,
            f"{quote_words(stated[question])} (declared)"
            if question in stated
            else f"the recipe does not say (release.statement.{key})",
        )
        for key, question in QUESTIONS.items()
        if key in ("curators", "contact")
    ]
    return [*declared, ("other runs on the same data", describe_other_runs(predicate.account))]
