"""Rows as text: what is written is read back, and what no writer wrote is refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from dprecipe.data.columns import Columns
from dprecipe.data.counts import SourceCounts
from dprecipe.data.encoders import ColumnReport
from dprecipe.data.problems import Problems
from dprecipe.data.row_text import NoRow, RowText
from dprecipe.faults import DataFault

COLUMNS = TypeAdapter(dict[str, Columns]).validate_python(
    {
        "all": {
            "age": {"kind": "integer", "min": 0, "max": 120, "missing": 40},
            "score": {"kind": "numeric", "min": -1.5, "max": 1e18},
            "member": {"kind": "boolean", "values": ("no", "yes")},
            "stage": {"kind": "ordinal", "values": ("low", "high")},
            "day": {"kind": "date", "min": "2020-01-01", "max": "2024-12-31"},
            "at": {"kind": "date", "min": "2020-01-01", "max": "2024-12-31", "parts": ("hour",)},
            "label": {"kind": "category", "values": ("ham", "spam: x")},
            "text": {"kind": "text"},
        }
    },
    strict=False,
)["all"]
ROW = {
    "age": "7",
    "score": "0.25",
    "member": "yes",
    "stage": "low",
    "day": "2021-02-03",
    "at": "2021-02-03T04:05:06",
    "label": "spam: x",
    "text": " two\nlines\\n\t",
}
TEXT = (
    "age: 7\nscore: 0.25\nmember: yes\nstage: low\nday: 2021-02-03\nat: 2021-02-03T04:05\nlabel: spam: x\n"
    "text:  two\\nlines\\\\n\\t"
)


def write(rows: dict[str, list[Any]], counts: SourceCounts | None = None) -> list[str | None]:
    problems = Problems(private=False)
    names = list(rows)
    reports = {name: ColumnReport(name, lambda row: f"t.csv, line {row}", problems) for name in names}
    count = len(next(iter(rows.values())))
    texts = RowText(COLUMNS, names).write(rows, count, reports, counts or SourceCounts())
    problems.check()
    return texts


def test_a_row_is_written_in_lines_and_read_back() -> None:
    assert write({name: [value] for name, value in ROW.items()}) == [TEXT]
    fields = RowText(COLUMNS, list(ROW)).parse(TEXT)
    assert fields == {**ROW, "age": 7, "score": 0.25, "member": True, "at": "2021-02-03T04:05"}


def test_numbers_are_clamped_or_as_declared_and_counted() -> None:
    counts = SourceCounts()
    assert write({"age": ["", "500", "-3"]}, counts) == ["age: 40", "age: 120", "age: 0"]
    assert (counts.columns["age"].missing, counts.columns["age"].above, counts.columns["age"].below) == (1, 1, 1)


def test_every_number_and_every_text_comes_back() -> None:
    generator = np.random.default_rng(0)
    numbers = [
        *generator.normal(1, 0.4, 200).clip(-1.5, 9).tolist(),
        *(10.0 ** generator.uniform(-300, 18, 200)).tolist(),
    ]
    parser = RowText(COLUMNS, ["score"])
    for number, text in zip(numbers, write({"score": numbers}), strict=True):
        assert parser.parse(text or "") == {"score": number}
    chosen = random.Random(0)
    texts = ["x" + "".join(chosen.choices("ab \\nrt\n\r\t:é", k=12)) for _ in range(300)]
    parser = RowText(COLUMNS, ["text"])
    for text, written in zip(texts, write({"text": texts}), strict=True):
        assert "\n" not in (written or "\n")
        assert parser.parse(written or "") == {"text": text}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("label", "eggs", "not among the 2 declared values"),
        ("text", " ", "a text is empty"),
        ("text", 3, "no text"),
        ("age", "7.5", "fraction"),
        ("day", "soon", "no date"),
    ],
)
def test_a_field_that_is_not_declared_is_a_problem(name: str, value: Any, message: str) -> None:
    with pytest.raises(DataFault, match=message):
        write({name: [value]})


HOSTILE = {
    "age": ["", " 7", "7 ", "7.0", "121", "-1", "٧", "1e1", "nan", "0x7", "1_0", "9" * 5000, "+7"],
    "score": ["", "nan", "inf", "-inf", "1e999", "1e19", "-1.6", ".5", "5.", "1,5", "1__0", "٥", "0.5 "],
    "member": ["", "Yes", "true", "yes ", "1"],
    "stage": ["", "other", "LOW"],
    "day": ["", "2021-02-30", "2019-12-31", "2021-2-3", "20210203", "2021-02-03T00:00", "2021-W05-3", "0000-00-00"],
    "at": ["2021-02-03", "2021-02-03T24:61", "2021-02-03 04:05", "2021-02-03T04:05Z"],
    "label": ["", "spam", "other", "HAM"],
    "text": ["", "  ", "\\", "a\\x", "a\tb", "a\rb", "a\x00b", "a\u2028b", "a\ud800", "\\n \\t", "a\x85"],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_row_holds_is_refused(name: str) -> None:
    parser = RowText(COLUMNS, [name])
    for value in HOSTILE[name]:
        with pytest.raises(NoRow) as caught:
            parser.parse(f"{name}: {value}")
        assert value.strip() == "" or value not in str(caught.value) or len(value) < 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "age: 7",
        "age: 7\nage: 7",
        "score: 1\nage: 7",
        "age: 7\nscore: 1\n",
        "\nage: 7",
        "age:7\nscore: 1",
        "x" * 200_000,
    ],
)
def test_lines_are_those_of_the_columns_in_order(text: str) -> None:
    with pytest.raises(NoRow):
        RowText(COLUMNS, ["age", "score"]).parse(text)
