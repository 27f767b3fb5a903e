"""Syntax errors name the line to change, which need not be the one where the parser stopped."""

from __future__ import annotations

import pytest

from dprecipe.text.load import parse


@pytest.mark.parametrize(
    ("text", "line", "column", "message", "remedy"),
    [
        ("a:\n  columns\n    age: 1\n", 2, 3, "no colon after the key `columns`", "write `columns:`"),
        ("training\n\n  epochs: 1\n", 1, 1, "no colon after the key `training`", "write `training:`"),
        ("a: 1\n  b: 2\n", 2, 1, "the indentation differs from line 1", "indent the keys"),
        ("t:\n epochs: 5\n  rate: {x: 1}\n", 3, 1, "the indentation differs from line 2", "indent the keys"),
        ("a: b: c\n", 1, 5, "a second `:`", "quote the text"),
        ("t:\n  a: b: c\n", 2, 7, "a second `:`", "quote the text"),
        ("a: 1\nb: c: d\n", 2, 5, "a second `:`", "quote the text"),
        ("a:\n  [1, 2\nb: 3\n", 2, 3, "", "close the bracket"),
    ],
)
def test_the_cause_is_named(text: str, line: int, column: int, message: str, remedy: str) -> None:
    tree, (finding,) = parse(text, "f.yaml")
    assert tree is None
    assert finding.place is not None
    assert finding.code == "Y104"
    assert (finding.place.line, finding.place.column) == (line, column)
    assert message in finding.message
    assert remedy in finding.remedy


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
@pytest.mark.parametrize("text", ["a\n b: 1", "a: x\n b: 1", "-\n a: 1\n  b: 2", ":\n :", "\ufeffa\n b: 1"])
def test_short_texts_never_fail(text: str, end: str) -> None:
    for stop in range(len(text) + 1):
        parse(text[:stop] + end, "f.yaml")
