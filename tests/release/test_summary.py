"""The report's first screen answers those who decide, and no sentence of the page stands on it twice."""

from __future__ import annotations

import html
import re
from collections import Counter
from datetime import date
from typing import Any

import pytest

from dprecipe.language.statement import QUESTIONS, ReleaseStatement
from dprecipe.release import report, summary
from tests.release.test_audit import audit_of
from tests.release.test_charged_account import account_of
from tests.release.test_one_answer import CASES, release_of

WORDS = 5
"""Words of the shortest text that counts as a sentence where it has no full stop."""
BLOCKS = "p|h1|h2|li|th|td|b|span|figcaption|summary"
STATEMENT = ReleaseStatement(
    curators=("St Mary's hospital", "The university"),
    contact="privacy@stmary.example",
    intended_use="To rank admissions by risk. Not for single decisions.",
    region="Norway",
    sector="Healthcare",
    published=date(2026, 1, 2),
    deployment_model="central",
    releases="many",
    future_releases="Another model each spring.",
    data_changes=True,
    data_source="Admissions of 2020 to 2024, with the consent of the patients.",
    security="Raw records are on one machine.",
    justification="The ethics committee asked for it.",
    authors=("A. Statistician",),
)


def list_sentences(page: str) -> list[str]:
    """Lists the sentences of a page's visible text, without the recipe."""
    page = re.sub(r"<style>.*?</style>|<pre>.*?</pre>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    sentences = []
    for block in re.findall(rf"<(?:{BLOCKS})[ >][^<]*", page):
        text = html.unescape(block.split(">", 1)[1]).strip()
        parts = [part.rstrip(".") for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", text)]
        sentences += [part for part in parts if len(re.findall("[a-z]+", part)) >= WORDS]
    return sentences


def find_repeated(page: str) -> list[str]:
    return [sentence for sentence, count in Counter(list_sentences(page)).items() if count > 1]


def render(name: str, **changes: Any) -> str:
    made = release_of(name)
    predicate = made.verified.statement.predicate
    changes = {
        key: getattr(predicate, key).model_copy(update=value) if isinstance(value, dict) else value
        for key, value in changes.items()
    }
    history = [{"step": step, "accuracy": 0.5} for step in (1, 2)]
    stated = predicate.model_copy(update=changes)
    return report.render_html(made.plan, stated, made.plan.events, history, lambda figure: "<svg></svg>")


VARIANTS: dict[str, dict[str, Any]] = {
    "stated": {"statement": STATEMENT},
    "audited": {"audit": audit_of()},
    "void": {"randomness": {"insecure_seed": 1}},
    "lost": {"budget": {"stop_reason": "no_model"}},
    "crashed": {"budget": {"events_reserved_unsettled": 2, "attempts": 2}},
}


@pytest.mark.parametrize("name", CASES)
def test_no_sentence_stands_twice(name: str) -> None:
    assert len(list_sentences(render(name))) > 30
    assert find_repeated(render(name)) == []


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["full", "named", "tuned"])
def test_no_sentence_stands_twice_of_rarer_releases(name: str, variant: str) -> None:
    assert find_repeated(render(name, **VARIANTS[variant])) == []


def test_no_sentence_stands_twice_of_a_run_with_an_account() -> None:
    assert find_repeated(render("full", account=account_of(release_of("full").plan))) == []


def test_a_sentence_that_stands_twice_is_found() -> None:
    said = "<p>This is said once more. And this is said once.</p><td>This is said once more</td>"
    assert find_repeated(said) == ["This is said once more"]


def read_screen(page: str) -> str:
    """Reads the text up to the sentence that ends it."""
    text = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "\n", page, flags=re.DOTALL))
    assert text.count(summary.STOP) == 1
    return text[: text.index(summary.STOP)]


def test_the_first_screen_answers_what_boards_ask() -> None:
    screen = read_screen(render("named"))
    for text in (
        "each patient (all records with the same 'Patient ID', together; at most 64 of them are used)",
        "Ponomareva et al. 2023",
        "Several of them, such as a family, are protected less than one alone.",
        "The model stays as it is, and so does its guarantee",
        "about any one patient, also about one that is deleted later",
        "the recipe does not say (it has no release.statement.data_source)",
        "no one is named (the recipe has no release.statement.curators)",
        "no one is named (the recipe has no release.statement.contact)",
        "This run is charged to no account.",
        "facts about a population",
    ):
        assert text in screen
    for word in ("δ", "clip", "gradient", "gaussian"):
        assert word not in screen.split("What is not protected")[0]


def test_what_the_curator_says_is_marked_on_it_and_not_said_again() -> None:
    page = render("named", statement=STATEMENT)
    for text in ("St Mary's hospital, The university", "privacy@stmary.example", str(STATEMENT.data_source)):
        assert f'"{text}" (declared)' in read_screen(page)
        assert html.unescape(page).count(text) == 1
    assert "Not for single decisions." in page
    few = render("named", statement=ReleaseStatement(contact="privacy@stmary.example"))
    assert "Statement of the curator" not in few
    assert QUESTIONS.keys() >= set(summary.DECLARED)


def test_of_a_run_for_a_test_nothing_is_said_to_be_protected() -> None:
    screen = read_screen(render("full", randomness={"insecure_seed": 1})).split("What is not protected")[0]
    for text in ("what is protected", "guarantee", "are protected", "An attacker who"):
        assert text not in screen


def test_of_a_run_without_a_model_nothing_is_said_to_stay() -> None:
    page = render("full", budget={"stop_reason": "no_model"})
    assert "The model stays" not in page
