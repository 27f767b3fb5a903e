"""docs/reference/glossary.md: every term once, in order, with a meaning."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| \*\*(.+?)\*\* \|\s*(.*?)\s*\| (.+?) \|$", PAGE, re.MULTILINE)


def test_every_term_stands_once_with_a_meaning() -> None:
    terms = [term for term, *_ in ROWS]
    assert len(terms) > 50
    assert len(terms) == len(re.findall(r"^\| \*\*", PAGE, re.MULTILINE)), "a row is not of three columns"
    assert len(set(terms)) == len(terms)
    assert all(meaning.strip() for *_, meaning in ROWS)


def test_terms_are_in_alphabetical_order() -> None:
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        here = re.findall(r"^\| \*\*(.+?)\*\* \|", part, re.MULTILINE)
        letters = [re.sub(r"[^\w ]", "", term).casefold() for term in here]
        assert letters[1:] == sorted(letters[1:]), part.splitlines()[0]


def test_every_mechanism_and_relation_is_explained() -> None:
    from dprecipe.contract.table import MECHANISMS
    from dprecipe.privacy.adjacency import Neighbouring

    named = set(re.findall(r"`(?:kind: )?(\w+)`", PAGE))
    assert set(MECHANISMS) | {relation.value for relation in Neighbouring} <= named
