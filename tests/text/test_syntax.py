"""Syntax errors name the line to change, which need not be the one where the parser stopped."""

from __future__ import annotations

import pytest

from dprecipe.faults import Place
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


NBSP = "\u00a0"


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        (f"a: 1\n{NBSP} b: 2\nc: {{d: 3}}", "Y117", 2, 1),
        (f"a:{NBSP}1\nb: 2", "Y117", 1, 3),
        (f"a:\n  - 1\n  -{NBSP}2", "Y117", 3, 4),
        (f"a: 1{NBSP}", "Y117", 1, 5),
        (f"a: 1{NBSP}\nb: 2", "Y117", 1, 5),
        (f"a: {{b: 1,{NBSP}c: 2}}", "Y117", 1, 10),
        ("a: \u20091", "Y117", 1, 4),
        ("a:\n  b:10\n  c: 2", "Y118", 2, 3),
        ("a:\n  b:10\n\n  # more\n  c: {d: 1}", "Y118", 2, 3),
        ("a: {b: 2,0, c: 1}", "Y119", 1, 8),
        ("a: {b: 2,0}", "Y119", 1, 8),
        ("a: {b: 2,05}", "Y119", 1, 8),
    ],
)
def test_the_slip_is_pointed_at(text: str, code: str, line: int, column: int) -> None:
    (finding,) = parse(text, "f.yaml")[1]
    assert (finding.code, finding.place and finding.place.line, finding.place and finding.place.column) == (
        code,
        line,
        column,
    )
    assert "\n" not in finding.message


@pytest.mark.parametrize(
    "text",
    [
        f"a: 10{NBSP}km",
        f"a: '{NBSP}1'",
        f"a: |\n  {NBSP}poem{NBSP}",
        f"# {NBSP}: a comment{NBSP}\na: 1",
        "a: {b: [0,5], c: 1}",
        "a: {b: [2, 0]}",
        "a: b:c",
        "a: http://example.org:80/x",
    ],
)
def test_what_is_meant_is_left_alone(text: str) -> None:
    assert parse(text, "f.yaml")[1] == ()


def test_the_two_halves_of_a_number_are_named_as_written() -> None:
    (finding,) = parse("a: {b: 12,050}", "f.yaml")[1]
    assert finding.remedy == "write `12.050`, or `12050`: the comma could be either"
    assert finding.place == Place("f.yaml", 1, 8, 6)


def test_an_error_far_below_is_not_blamed_on_a_slip_far_above() -> None:
    text = "a: b:c\n" + "\n".join(f"k{n}: {n}" for n in range(9)) + "\nz: [1, 2\n"
    assert [finding.code for finding in parse(text, "f.yaml")[1]] == ["Y104"]


def test_one_finding_for_an_anchor_and_all_its_uses() -> None:
    text = "a: &x 1\nb: *x\nc: [*x, *x, *x, *x, *x, *x]\nd: {<<: *x}\n"
    findings = parse(text, "f.yaml")[1]
    assert sorted(finding.code for finding in findings) == ["Y107", "Y108"]
    (anchor,) = (finding for finding in findings if finding.code == "Y107")
    assert "2:4, 3:5, 3:9, 3:13, 3:17 and at 2 more places" in anchor.message
