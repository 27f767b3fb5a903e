"""What each kind of column makes of its fields, and what it says of fields that it can't read."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from dprecipe.data.columns import Column, ColumnBlock
from dprecipe.data.counts import ColumnCounts
from dprecipe.data.encoders import ColumnReport, encode_column
from dprecipe.data.problems import Problems
from dprecipe.data.values import Values
from dprecipe.faults import DataFault

ADAPTER: TypeAdapter[ColumnBlock] = TypeAdapter(Column)
INTEGER = {"kind": "integer", "min": 0, "max": 10}
ORDINAL = {"kind": "ordinal", "values": ["low", "mid", "high"]}
DATE = {"kind": "date", "min": "2020-01-01", "max": "2020-12-31"}


def column_of(block: dict[str, Any]) -> ColumnBlock:
    return ADAPTER.validate_json(json.dumps(block))


def encoded(block: dict[str, Any], values: Values) -> tuple[np.ndarray, ColumnCounts]:
    column = column_of(block)
    problems, counts = Problems(private=True), ColumnCounts(column.kind)
    part = np.zeros((len(values), column.width), np.float32)
    encode_column(values, column, part, ColumnReport("c", lambda row: f"t.csv, line {row}", problems), counts)
    problems.check()
    return part, counts


def test_integers() -> None:
    part, counts = encoded({**INTEGER, "missing": 5}, ["0", " 4 ", "12", "", "7.0"])
    np.testing.assert_allclose(part[:, 0], [0, 0.4, 1, 0.5, 0.7])
    assert (counts.missing, counts.above) == (1, 1)


def test_truth_values() -> None:
    words = ["Yes", "no", "TRUE", "f", "1", "0", "", "y", "N"]
    part, counts = encoded({"kind": "boolean", "missing": True}, words)
    assert part[:, 0].tolist() == [1, 0, 1, 0, 1, 0, 1, 1, 0]
    assert counts.missing == 1
    part, _ = encoded({"kind": "boolean"}, [True, False, 1, 0.0])
    assert part[:, 0].tolist() == [1, 0, 1, 0]
    part, _ = encoded({"kind": "boolean", "values": ["nein", "ja"]}, ["ja", "nein "])
    assert part[:, 0].tolist() == [1, 0]


def test_ordinals() -> None:
    part, counts = encoded({**ORDINAL, "missing": "mid", "marks": ["?!"]}, ["high", " low", "mid", "NA", "?!"])
    assert part[:, 0].tolist() == [1, 0, 0.5, 0.5, 0.5]
    assert counts.missing == 2


def test_dates() -> None:
    part, counts = encoded({**DATE, "missing": "2020-12-31"}, ["2020-01-01", "2021-05-05", "2020-07-01T12:00", ""])
    np.testing.assert_allclose(part[:, 0], [0, 1, 182.5 / 365, 1], rtol=1e-6)
    assert (counts.missing, counts.above) == (1, 1)
    parts = ["weekday", "time", "month", "hour"]
    part, _ = encoded({**DATE, "format": "%d.%m.%Y %H:%M", "parts": parts}, ["17.05.2020 23:59"])  # a Sunday
    assert part.shape == (1, 7 + 1 + 12 + 24)
    assert np.flatnonzero(part[0] == 1).tolist() == [6, 8 + 4, 20 + 23]
    # The clock on the wall, whatever its zone; dates as other readers print them.
    part, _ = encoded({**DATE, "parts": ["hour"]}, ["2020-05-17 01:00:00+02:00", "2020-05-17 01:00:00.000000000"])
    assert part.argmax(1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("block", "value", "says"),
    [
        (INTEGER, "1.5", "a number with a fraction"),
        (INTEGER, "x", "not a finite number"),
        (INTEGER, "", "a field is empty"),
        ({"kind": "boolean"}, "vielleicht", "none of values for no and yes"),
        ({"kind": "boolean"}, "NA", "a mark for a missing value"),
        ({"kind": "boolean", "values": ["nein", "ja"]}, "yes", "none of the declared values for no and yes"),
        (ORDINAL, "highest", "not among the 3 declared values"),
        (ORDINAL, "", "a field is empty"),
        (DATE, "17.05.2020", "no date in ISO 8601"),
        (DATE, "2020-02-30", "no date in ISO 8601"),
        ({**DATE, "format": "%d.%m.%Y"}, "2020-05-17", "no date as %d.%m.%Y"),
        (DATE, "", "a field is empty"),
    ],
)
def test_fields_that_cannot_be_read(block: dict[str, Any], value: str, says: str) -> None:
    good = {"integer": "1", "boolean": "ja" if "values" in block else "yes", "ordinal": "low", "date": "2020-01-01"}
    first = "01.01.2020" if "format" in block else good[block["kind"]]
    with pytest.raises(DataFault) as caught:
        encoded(block, [first, value])
    assert says in caught.value.message
    assert "column 'c'" in caught.value.message
    assert caught.value.private == "line 1"
    assert len(value) < 5 or value not in caught.value.message + caught.value.remedy


@pytest.mark.parametrize(
    ("values", "remedy"),
    [
        (["2020-05-17", "", "2020-05-18 10:30:00.000000001+00:00"], "remove format"),
        (["2020-05-17", "18.05.2020"], "declare how dates are written"),
        (["2020-05-17", "x"], "declare how dates are written"),
    ],
)
def test_a_format_of_what_is_all_in_iso_8601_is_removed(values: list[str], remedy: str) -> None:
    block = {**DATE, "missing": "2020-01-01", "format": "%d.%m.%Y"}
    with pytest.raises(DataFault) as caught:
        encoded(block, values)
    assert caught.value.remedy.startswith(remedy)
    if remedy == "remove format":
        encoded({**block, "format": None}, values)


def test_the_remedy_of_a_large_integer_is_a_whole_number() -> None:
    with pytest.raises(DataFault) as caught:
        encoded({"kind": "integer", "min": 1234567, "max": 7654321}, ["1234567", ""])
    remedy = "{kind: integer, min: 1234567, max: 7654321, missing: {fill: 4444444, indicator: true}}"
    assert remedy in caught.value.remedy


GAPS = [
    ({**INTEGER, "max": 1}, "{fill: 0, indicator: true}"),
    ({"kind": "numeric", "min": 0, "max": 30}, "{fill: 15, indicator: true}"),
    ({"kind": "numeric", "min": 30.1, "max": 30.2}, "{fill: 30.15, indicator: true}"),
    ({"kind": "numeric", "min": -1.7e308, "max": 1.7e308}, "{fill: 0, indicator: true}"),
    ({"kind": "numeric", "min": 0, "max": 1e-6}, "{fill: 5e-07, indicator: true}"),
    ({"kind": "boolean"}, "{fill: false, indicator: true}"),
    (ORDINAL, "mid"),
    (DATE, "{fill: 2020-07-01, indicator: true}"),
]


@pytest.mark.parametrize(("block", "proposed"), GAPS)
def test_the_remedy_of_a_gap_is_a_usual_value(block: dict[str, Any], proposed: str) -> None:
    """No end of a range is proposed, and what is proposed is read as a recipe has it."""
    with pytest.raises(DataFault) as caught:
        encoded(block, [""])
    assert f"missing: {proposed}}}" in caught.value.remedy
    text = re.sub(r"(\d{4}-\d\d-\d\d)", r"'\1'", re.sub(r"(\w+): ", r'"\1": ', proposed)).replace("'", '"')
    written = json.loads(text) if text.startswith("{") else text
    part, counts = encoded({**block, "missing": written}, [""])
    assert counts.missing == 1
    assert 0 <= part[0, 0] <= 1


INDICATED = [
    ({**INTEGER, "missing": {"fill": 5, "indicator": True}}, ["7", "", "NA"], [[0.7, 0], [0.5, 1], [0.5, 1]]),
    (
        {"kind": "numeric", "min": 0, "max": 1, "missing": {"fill": 0.25, "indicator": True}, "marks": ["<1"]},
        np.ma.MaskedArray([1.0, 0.0, np.nan], [False, True, False]),
        [[1, 0], [0.25, 1], [0.25, 1]],
    ),
    ({"kind": "boolean", "missing": {"fill": True, "indicator": True}}, ["no", "", "yes"], [[0, 0], [1, 1], [1, 0]]),
    (
        {**DATE, "parts": ["time", "weekday"], "missing": {"fill": "2020-12-31", "indicator": True}},
        ["2020-01-01", "-"],
        [[0, 0, 0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0, 1]],
    ),
    ({**INTEGER, "missing": {"fill": 5}}, ["7", ""], [[0.7], [0.5]]),
]


@pytest.mark.parametrize(("block", "values", "expected"), INDICATED)
def test_a_feature_says_that_a_field_was_missing(
    block: dict[str, Any], values: Any, expected: list[list[float]]
) -> None:
    part, _ = encoded(block, values)
    np.testing.assert_allclose(part, expected)


def test_a_field_that_is_outside_the_range_or_wrong_is_not_missing() -> None:
    block = {**INTEGER, "missing": {"fill": 5, "indicator": True}}
    part, counts = encoded(block, ["12", "-3"])
    assert part.tolist() == [[1, 0], [0, 0]]
    assert counts.missing == 0
    with pytest.raises(DataFault, match="not a finite number"):
        encoded(block, ["x"])


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({**INTEGER, "min": 10}, "c.min"),
        ({**INTEGER, "marks": ["x"]}, "c.marks"),
        ({"kind": "boolean", "values": ["ja", "ja "]}, "c.values"),
        ({**ORDINAL, "missing": "none"}, "c.missing"),
        ({**ORDINAL, "values": ["a", "a"]}, "c.values"),
        ({**DATE, "min": "2021-01-01"}, "c.min"),
        ({**DATE, "parts": ["month", "month"]}, "c.parts"),
        ({**DATE, "format": "%d.%m.%y"}, "c.format"),
        ({**DATE, "format": "%d.%m.%Y %d"}, "c.format"),
        ({**DATE, "format": "%d.%m.%Y %"}, "c.format"),
    ],
)
def test_contradictions(block: dict[str, Any], path: str) -> None:
    assert [finding.path for finding in column_of(block).contradictions("c")] == [path]


@pytest.mark.parametrize(
    "block", [INTEGER, {"kind": "boolean"}, ORDINAL, DATE, {**DATE, "format": "%Y-%m-%d %H:%M:%S.%f"}]
)
def test_what_is_right_has_no_finding(block: dict[str, Any]) -> None:
    assert list(column_of(block).contradictions("c")) == []
