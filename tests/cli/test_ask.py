"""Questions of `init --private`: answers are the person's words, and what is not answered stays open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dprecipe.cli import init as module
from dprecipe.cli.ask import ask_answers
from dprecipe.cli.init import init
from dprecipe.cli.validate import check
from dprecipe.data.sample_files import Arrays, Table
from dprecipe.faults import UsageFault
from dprecipe.recipe.draft import Declarations

TABLE = Table(
    "csv",
    {
        "patient": ["p", "q", "q"],
        "age": ["71", "", "73"],
        "ward": ["Zebra", "Zebra", "Gnu"],
        "day": ["13.05.2024", "14.05.2024", "15.05.2024"],
        "key": ["a1", "a2", "a3"],
        "y": ["no", "yes", "no"],
    },
    3,
    False,
)
ASKED: list[str] = []


def answer(*said: str) -> Callable[[str], str | None]:
    """Returns a person who answers with these words, and then ends the input."""
    ASKED.clear()
    words: Iterator[str] = iter(said)

    def ask(question: str) -> str | None:
        ASKED.append(question)
        return next(words, None)

    return ask


def test_each_answer_has_its_place() -> None:
    said = [
        "",
        "0",
        "110",
        "50",
        "category",
        "A, B",
        "",
        "2020-01-01",
        "2024-12-31",
        "%d.%m.%Y",
        "",
        "-",
        "",
        "home, transfer",
    ]
    found = ask_answers(TABLE, "y", "patient", answer(*said, "", "400", "4", "St. Mary", "", "triage"))
    assert found.columns == {
        "age": {"kind": "numeric", "min": 0, "max": 110, "missing": 50},
        "ward": {"kind": "category", "values": ["A", "B"]},
        "day": {"kind": "date", "min": "2020-01-01", "max": "2024-12-31", "format": "%d.%m.%Y"},
        "key": None,
    }
    assert (found.label, found.size, found.max_records) == ({"values": ["home", "transfer"]}, 400, 4)
    assert found.statement == {"curators": ["St. Mary"], "intended_use": "triage"}


def test_what_a_columns_type_says_is_not_asked() -> None:
    typed = replace(TABLE, typed={"day": "date", "y": "boolean"})
    said = ["-", "-", "", "2020-01-01", "2024-12-31", "", "-", "400", "4"]
    found = ask_answers(typed, "y", "patient", answer(*said))
    assert found.columns["day"] == {"kind": "date", "min": "2020-01-01", "max": "2024-12-31"}
    assert (found.label, found.size, found.max_records) == ({}, 400, 4)


def test_no_value_of_the_file_is_suggested() -> None:
    ask_answers(TABLE, "y", "patient", answer(*[""] * 40))
    told = " ".join(ASKED)
    values = {field for texts in TABLE.columns.values() for field in texts} - {"no", "yes", ""}
    assert not [value for value in values if value in told.split() or (len(value) > 2 and value in told)]


def test_what_is_not_answered_stays_open() -> None:
    assert ask_answers(TABLE, "y", None, answer()) == Declarations()
    found = ask_answers(TABLE, "y", "patient", answer("", "0"))
    assert found.columns == {"age": {"kind": "numeric", "min": 0}}


@pytest.mark.parametrize(
    ("kind", "wrong", "right", "label"),
    [
        ("values", "a", "a, 'b', \"c, d\"", {"values": ["a", "'b'", "c, d"]}),
        ("classes", "0", "3", {"classes": 3}),
        ("range", "9, 1", "0, 2.5", {"range": [0, 2.5]}),
        ("range", "0, 10.000", "0, 10000", {"range": [0, 10000]}),  # ten, or thousands?
        ("count", "many", "10", {"count": {"max": 10}}),
        ("several", "a,,b", "a, b", {"several": ["a", "b"]}),
        ("range", "", "", {"range": None}),
    ],
)
def test_labels(kind: str, wrong: str, right: str, label: dict[str, object]) -> None:
    table = Table("csv", {"y": ["1", "2"]}, 2, False)
    assert ask_answers(table, "y", None, answer("whatever", kind, *([wrong] if wrong else []), right)).label == label


def test_a_label_that_some_records_lack() -> None:
    table = Table("csv", {"a": ["1"], "y": ["0"]}, 1, False)
    found = ask_answers(table, "y", None, answer("-", "classes", "2", "yes", "omit", "30"))
    assert (found.label, found.size) == ({"classes": 2, "missing": "omit"}, 30)


def test_arrays_have_a_label_and_a_size() -> None:
    arrays = Arrays({"features": (4,), "labels": ()}, {})
    found = ask_answers(arrays, "labels", None, answer("", "3", "900"))
    assert (found.label, found.size) == ({"classes": 3}, 900)


@pytest.mark.parametrize(("last", "errors"), [(("400",), 0), ((), 1)])
def test_a_draft_of_answers_validates_or_names_its_blanks(
    last: tuple[str, ...], errors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = tmp_path / "t.csv", tmp_path / "r.yaml"
    file.write_text("age,y\n71,no\n72,yes\n")
    monkeypatch.setattr(module, "can_ask", lambda: True)
    monkeypatch.setattr(module, "ask_line", answer("y", "", "", "0", "110", "50", "range", "0, 10", "", *last))
    init(path, sample=file, private=True)
    findings = [finding for finding in check(path)[0] if finding.is_error]
    assert len(findings) == errors
    text = path.read_text("utf-8")
    assert "age: {kind: numeric, min: 0, max: 110, missing: 50}" in text
    assert "model: {kind: linear}" in text
    assert "# statement:" in text


def test_nothing_is_asked_without_input_or_for_a_path_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = tmp_path / "t.csv", tmp_path / "r.yaml"
    file.write_text("age,y\n71,no\n72,yes\n")
    monkeypatch.setattr(module, "can_ask", lambda: True)
    monkeypatch.setattr(module, "ask_line", answer())
    init(path, sample=file, private=True, label="y", no_input=True)
    assert "min: FILL_IN" in path.read_text("utf-8")
    with pytest.raises(UsageFault, match="already exists"):
        init(path, sample=file, private=True, label="y")
    assert ASKED == []


def test_an_answer_that_a_recipe_can_not_have_is_asked_for_again(capsys: pytest.CaptureFixture[str]) -> None:
    said = ["", "110", "0", "120", "", "-", "date", "2024-12-31", "2020-01-01", "2025-01-31"]
    said += ["dd.mm.yyyy", "%d.%m.%Y %z", "%d.%m.%Y", "", "-", "", "no, yes", "", "about 900", "400"]
    found = ask_answers(TABLE, "y", "patient", answer(*said))
    assert found.columns["age"] == {"kind": "numeric", "min": 110, "max": 120}
    assert found.columns["day"] == {"kind": "date", "min": "2024-12-31", "max": "2025-01-31", "format": "%d.%m.%Y"}
    assert found.size == 400
    told = capsys.readouterr().err
    for remedy in ("more than 110", "more than 2024-12-31", '"%d.%m.%Y"', "need no format", "size: {max}"):
        assert remedy in told
