"""Text written by us is read back as the same values, by us and by a stock YAML reader."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.faults import UsageFault
from dprecipe.text.dump import dump, dump_inline
from dprecipe.text.load import parse
from dprecipe.text.tree import to_plain

WORDS = [
    "no",
    "yes",
    "on",
    "off",
    "y",
    "N",
    "null",
    "~",
    "true",
    "1e-5",
    "1_000",
    "017",
    "0x1F",
    "0b1",
    "12:30:45",
    "2024-01-01",
    ".inf",
    ".nan",
    "inf",
    "-.inf",
    "=",
    "<<",
    "-",
    "?",
    ":",
    "a:",
    "#b",
    "'c'",
    '"d"',
    ".5",
    "+1",
    "1.",
    "e5",
    "1e5",
]
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"), max_size=12
) | st.sampled_from(WORDS)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(bool), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@given(st.dictionaries(TEXT.filter(bool), VALUE, max_size=4))
@settings(max_examples=300, deadline=None)
def test_round_trip(values: dict[str, object]) -> None:
    tree, findings = parse(dump(values), "f.yaml")
    assert not findings, dump(values)
    assert tree is not None
    assert to_plain(tree) == values
    assert yaml.safe_load(dump(values)) == values


@given(VALUE)
@settings(max_examples=200, deadline=None)
def test_inline_round_trip(value: object) -> None:
    tree, findings = parse(f"a: {dump_inline(value)}", "f.yaml")
    assert not findings, dump_inline(value)
    assert tree is not None
    assert to_plain(tree) == {"a": value}
    assert "\n" not in dump_inline(value)


def test_comments_end_the_lines_of_values() -> None:
    text = dump({"a": {"b": 1, "c": [1, 2]}, "d": [{"e": "x"}]}, lambda path: ".".join(map(str, path)))
    assert text == "a:\n  b: 1  # a.b\n  c: [1, 2]  # a.c\nd:\n  - e: x  # d.0.e\n"


def test_what_no_recipe_can_hold_is_refused() -> None:
    with pytest.raises(UsageFault, match="object"):
        dump_inline(object())
