"""The loader: JSON is read as JSON, YAML's surprises are text or refused, and no text makes it raise anything else."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.faults import Finding, Place, RecipeError
from dprecipe.text.load import MAX_BYTES, MAX_NODES, parse, read_file, split_lines
from dprecipe.text.tree import Mapping, Scalar, find_node, to_plain
from tests.text.reading import load, walk_nodes

TEXT_WORDS = [
    "no",
    "yes",
    "on",
    "off",
    "y",
    "n",
    "True",
    "FALSE",
    "Null",
    "017",
    "0x1F",
    "0o17",
    "0b11",
    "1_000",
    "12:30:45",
    "2024-01-01",
    "2024-01-01T00:00:00Z",
    ".5",
    "5.",
    "+1",
    "=",
    "inf",
    "nan",
    "1.2.3",
    "e5",
    "--1",
]


def value_of(text: str) -> object:
    tree, findings = parse(f"a: {text}", "f.yaml")
    assert not findings, findings
    assert tree is not None
    return to_plain(tree)["a"]  # type: ignore[index, call-overload]


def codes_of(text: str) -> list[str]:
    return [finding.code for finding in parse(text, "f.yaml")[1]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("1E5", 1e5),
        ("1.0e+5", 1e5),
        ("-0", 0),
        ("12", 12),
        ("-3.5", -3.5),
        ("9223372036854775807", 2**63 - 1),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        *((word, word) for word in TEXT_WORDS),
        ('"1e-5"', "1e-5"),
        ("'true'", "true"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_what_a_word_means(text: str, value: object) -> None:
    read = value_of(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text", [".inf", "-.inf", "+.Inf", ".nan", ".NaN", "1e999", "-1e999", "1e-999", "9" * 20, "9" * 5000, "695e0514"]
)
def test_numbers_that_are_not_finite_are_refused(text: str) -> None:
    assert codes_of(f"a: {text}") == ["Y114"]


def test_zero_with_an_exponent_is_zero() -> None:
    assert value_of("0.0e-999") == 0.0


PRINTABLE = st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\ufeff\ufffe\uffff")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(PRINTABLE, max_size=20)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text("abcdefgh .-é", min_size=1, max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=8), JSON, max_size=4))
@settings(max_examples=150, deadline=None)
def test_json_is_read_as_json(value: dict[str, object]) -> None:
    """Oracle: the standard library's JSON writer. Characters that YAML forbids, and its odd line breaks, apart."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    tree, findings = parse(text, "f.json")
    assert not findings
    assert tree is not None
    assert to_plain(tree) == value


@given(st.text(max_size=200) | st.text("a:- \n\t{}[]&*!%@`'\"|>#,?<~0.e\\\ud800\x00", max_size=80))
@settings(max_examples=400, deadline=None)
def test_no_text_raises_anything_but_a_recipe_error(text: str) -> None:
    findings: tuple[Finding, ...] = ()
    try:
        load(text, "f.yaml")
    except RecipeError as error:
        findings = error.findings
    for finding in findings:
        assert finding.message
        assert finding.remedy
        assert finding.place is not None
        assert 1 <= finding.place.line <= len(split_lines(text)) + 1


def test_every_duplicate_cites_the_first() -> None:
    findings = parse("a: 1\nb: {c: 1, c: 2}\na: 3\n'a': 4\n", "f.yaml")[1]
    assert [(f.code, f.place) for f in findings] == [
        ("Y106", Place("f.yaml", 2, 11, 1)),
        ("Y106", Place("f.yaml", 3, 1, 1)),
        ("Y106", Place("f.yaml", 4, 1, 3)),
    ]
    assert [f.message.rpartition(" ")[2] for f in findings] == ["2:5", "1:1", "1:1"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: &x 1", "Y107"),
        ("a: *x", "Y107"),
        ("a: {<<: {b: 1}}", "Y108"),
        ("a: !!int 3", "Y109"),
        ("a: !!python/object/apply:os.system [ls]", "Y109"),
        ("a: ! x", "Y109"),
        ("%TAG ! tag:x,2000:\n---\na: 1", "Y109"),
        ("a: 1\n---\nb: 1", "Y110"),
        ("a: 1\n...\n---\nb: 1", "Y110"),
        ("1: a", "Y111"),
        ("true: a", "Y111"),
        ("? [a]\n: b", "Y111"),
        ("? {a: b}\n: c", "Y111"),
        ("'': b", "Y111"),
        ("a:\n\tb: 1", "Y105"),
        ('a: "\\U00110000"', "Y104"),
        ('a: "\\UFFFFFFFF"', "Y104"),
        ('a: "\\ud800"', "Y116"),
        ("a: \x00", "Y103"),
        ("a: \x1b[31m", "Y103"),
    ],
)
def test_refusals(text: str, code: str) -> None:
    assert codes_of(text) == [code]


def test_quoted_merge_key_and_number_keys_are_text() -> None:
    tree, findings = parse('"<<": 1\n"1": 2\n', "f.yaml")
    assert not findings
    assert tree is not None
    assert to_plain(tree) == {"<<": 1, "1": 2}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[" * 100_000, "Y112"),
        ("{a: " * 50_000, "Y112"),
        ("- " * 100_000, "Y112"),
        ("? " * 100_000, "Y112"),
        ("a: [" + "1," * (MAX_NODES + 1) + "1]", "Y113"),
        ("x" * (MAX_BYTES + 1), "Y102"),
    ],
)
def test_bounds_are_reached_quickly(text: str, code: str) -> None:
    start = time.process_time()
    assert codes_of(text) == [code]
    assert time.process_time() - start < 5


def test_places_count_characters_from_one() -> None:
    tree = load("é: {ü: 'x'}\nlist:\n  - a\n  - {b: 2}\nempty:\n", "f.yaml")
    assert [(path, place.line, place.column) for path, place, _ in walk_nodes(tree)] == [
        (("é",), 1, 1),
        (("é", "ü"), 1, 5),
        (("list",), 2, 1),
        (("list", 0), 3, 5),
        (("list", 1), 4, 5),
        (("list", 1, "b"), 4, 6),
        (("empty",), 5, 1),
    ]
    assert find_node(tree, "é.ü")[1] == Place("f.yaml", 1, 8, 3)
    assert find_node(tree, "list.1.b")[1] == Place("f.yaml", 4, 9, 1)
    assert find_node(tree, "list.7.b") == (("list",), Place("f.yaml", 2, 1, 4))
    assert find_node(tree, "empty")[1] == Place("f.yaml", 5, 1, 5)
    assert find_node(tree, "")[1] == tree.place


def test_a_key_with_dots_is_found() -> None:
    tree = load("columns: {a.b: {min: 1}}", "f.yaml")
    assert find_node(tree, "columns.a.b.min") == (("columns", "a.b", "min"), Place("f.yaml", 1, 22, 1))


def test_the_first_of_two_equal_keys_is_kept() -> None:
    tree, _ = parse("a: 1\na: 2", "f.yaml")
    assert isinstance(tree, Mapping)
    value = tree.entries["a"].value
    assert isinstance(value, Scalar)
    assert value.value == 1


def finding_of(path: str) -> tuple[str, str]:
    with pytest.raises(RecipeError) as caught:
        read_file(path)
    (finding,) = caught.value.findings
    assert finding.remedy
    assert finding.place is not None
    assert finding.place.file == path
    return finding.code, finding.message


def test_a_text_comes_back_verbatim(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes("a: é\r\nb: 1\n".encode())
    assert read_file(str(path)) == "a: é\r\nb: 1\n"


def test_missing_folder_device_and_odd_paths(tmp_path: Path) -> None:
    assert finding_of(str(tmp_path / "no.yaml")) == ("Y101", "there is no such file")
    assert finding_of(str(tmp_path)) == ("Y101", "it is a folder")
    assert finding_of("a\0b")[0] == "Y101"
    assert finding_of("a" * 5000)[0] == "Y101"
    assert finding_of(str(tmp_path / "no.yaml" / "below"))[0] == "Y101"


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert finding_of(str(tmp_path / "pipe")) == ("Y101", "it is not a regular file")


def test_large_and_binary_files(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.yaml", tmp_path / "binary.yaml"
    large.write_bytes(b"a: 1\n" * 2_000_000)
    binary.write_bytes(b"a: 1\nb: \xff\xfe")
    start = time.process_time()
    assert finding_of(str(large))[0] == "Y102"
    assert time.process_time() - start < 1
    assert finding_of(str(binary)) == ("Y103", "the file is not UTF-8 text")
