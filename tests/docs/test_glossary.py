"""docs/reference/glossary.md: every term once, in order, with a meaning and a source that the page lists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \*\*(.+?)\*\* \|\s*(.*?)\s*\| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


def test_every_term_stands_once_with_a_meaning_and_a_source() -> None:
    terms = [term for term, *_ in ROWS]
    assert len(terms) > 70
    assert len(terms) == len(re.findall(r"^\| \*\*", PAGE, re.MULTILINE)), "a row is not of four columns"
    assert len(set(terms)) == len(terms)
    assert all(meaning.strip() and source.strip() for _, _, meaning, source in ROWS)


def test_terms_are_in_alphabetical_order() -> None:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        here = re.findall(r"^\| \*\*(.+?)\*\* \|", part, re.MULTILINE)
        letters = [re.sub(r"[^\w ]", "", term).casefold() for term in here]
        assert letters[1:] == sorted(letters[1:]), part.splitlines()[0]


def test_every_source_that_is_named_is_listed() -> None:
    listed = PAGE.partition("## Sources")[2]
    for *_, sources in ROWS:
        for name, year in re.findall(r"([A-Z][a-zé]+)[^;]*? (\d{4})", sources):
            assert re.search(rf"^- [^\n]*{name}(?:.|\n  )*?{year}", listed, re.MULTILINE), f"{name} {year}"


def test_every_event_and_relation_is_a_term_or_a_symbol() -> None:
    from dprecipe.contract.table import MECHANISMS
    from dprecipe.privacy.adjacency import Neighbouring

    symbols = set(re.findall(r"`(?:kind: )?(\w+)`", PAGE))
    assert set(MECHANISMS) | {relation.value for relation in Neighbouring} <= symbols
