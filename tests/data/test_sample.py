"""What is drafted of a column fits every field that it was drafted from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from dprecipe.data.columns import Column, ColumnBlock
from dprecipe.data.counts import ColumnCounts
from dprecipe.data.encoders import ColumnReport, encode_column
from dprecipe.data.problems import Problems
from dprecipe.data.sample import draft_column, draft_label, round_outward

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(FINITE, FINITE)
def test_ranges_are_rounded_outward(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    first, last = round_outward(low, high)
    assert first <= low <= high <= last
    assert first < last
    if low < high:
        assert last - first <= 3.2 * (high - low) + abs(low) * 1e-9


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (17, 90, (0, 90)),
        (37, 121, (0, 130)),
        (1.3, 11.2, (0, 12)),
        (1950, 2003, (1950, 2010)),
        (-0.03, 0.91, (-0.1, 1)),
        (5, 5, (5, 6)),
        (0, 0, (0, 1)),
        (-40, -12, (-40, -10)),
    ],
)
def test_ranges_are_round(low: float, high: float, expected: tuple[float, float]) -> None:
    assert round_outward(low, high) == expected


def gap(fill: object) -> dict[str, object]:
    return {"fill": fill, "indicator": True}


@pytest.mark.parametrize(
    ("fields", "kind", "declared"),
    [
        (["1", "2", "", "17", "NA"], "numeric", {"min": 0, "max": 17, "missing": gap(2)}),
        (["1.5", "2", "9.25"], "numeric", {"min": 0, "max": 10}),
        (
            ["1.5", "<0.5", "9.25", "3"],
            "numeric",
            {"min": 0, "max": 10, "missing": gap(3.0), "marks": ["<0.5"]},
        ),
        (["13,5", "1.234,5", "2,25"], "numeric", {"min": 0, "max": 1300, "decimal": "comma"}),
        (["45%", "12%", "7.5%"], "numeric", {"min": 0, "max": 50, "affixes": ["%"]}),
        (["€ 12", "€ 1,000"], "numeric", {"min": 0, "max": 1000, "decimal": "point", "affixes": ["€"]}),
        (["0123", "4711", "0815"], "name", {}),
        (["4111111111111111", "5500000000000004"], "name", {}),
        (["1", "2", "3"], "row_number", {}),
        (["7", "7"], "empty", {}),
        (["0", "1", "1"], "boolean", {}),
        (["Yes", "no", ""], "boolean", {"missing": gap(False)}),
        (["2021-03-01", "2023-04-30"], "date", {"min": "2021-01-01", "max": "2023-12-31"}),
        (
            ["2021-03-01T10:30", ""],
            "date",
            {"min": "2021-01-01", "max": "2021-12-31", "missing": gap("2021-03-01")},
        ),
        (["31.12.2021", "01.02.2023"], "date", {"min": "2021-01-01", "max": "2023-12-31", "format": "%d.%m.%Y"}),
        (["red", "blue", "red", "blue", "red", ""], "category", {"values": ["blue", "red"]}),
        (["a1", "b2", "c3"], "name", {}),
        (["one note", "another note"], "text", {}),
        (["", "NA", "-"], "empty", {}),
    ],
)
def test_kinds(fields: list[str], kind: str, declared: dict[str, object]) -> None:
    made = draft_column(fields)
    assert (made.kind, made.declared) == (kind, declared)


def test_dates_that_fit_two_formats_are_remarked() -> None:
    assert "%m/%d/%Y" in draft_column(["01/02/2023", "03/04/2023"]).remark
    assert draft_column(["01/02/2023", "13/04/2023"]).remark == ""


@pytest.mark.parametrize(
    ("fields", "declared"),
    [
        (["0", "1", "1", ""], {"classes": 2}),
        (["0", "2", "1"], {"classes": 3}),
        (["1", "2", "1"], {"values": ["1", "2"]}),
        (["3", "1", "2"] * 20, {"values": ["1", "2", "3"]}),
        (["-1", "1", "1"], {"values": ["-1", "1"]}),
        (["0.0", "1.0", "1.0"], {"values": ["0.0", "1.0"]}),
        (["EU", "NA", "EU"], {"values": ["EU", "NA"]}),
        (["True", "False"], {"values": ["False", "True"]}),
        (["10", "9", "8"] * 9, {"values": ["8", "9", "10"]}),
        ([str(age) for age in range(17, 91)], {"range": [0, 90]}),
        (
            [str(n % 7 * (n % 5 == 0) + n % 2) for n in range(30)] + ["40"] + list("123456789") * 9,
            {"count": {"max": 40}},
        ),
        (["red"] * 4, {}),
        (["one", "of", "many", "notes"], {}),
        (["no", "yes"], {"values": ["no", "yes"]}),
        (["1.5", "2.25", "9"], {"range": [0, 9]}),
        (["120", "4000", "777"], {"range": [0, 4000]}),
    ],
)
def test_labels(fields: list[str], declared: dict[str, object]) -> None:
    assert draft_label(fields) == declared


def test_fields_of_several_names_are_drafted_as_such() -> None:
    fields = ["fever;cough", "cough", "", "rash; fever", "rash"]
    assert draft_label(fields) == {"several": ["cough", "fever", "rash"], "empty": "none"}
    assert draft_label(["a|b", "b", "a"]) == {"several": ["a", "b"], "separator": "|"}
    assert draft_label(["a;b;", "b;", "a;"]) == {"several": ["a", "b"]}  # a separator at the end divides nothing
    assert draft_label(["a;b", "a", "c"] * 3 + ["d"]) == {"values": ["a", "a;b", "c", "d"]}  # d is there once


def test_a_column_that_ends_large_takes_no_memory() -> None:
    assert draft_column(["0", "5", "999999999"]).kind == "numeric"


def test_whole_numbers_are_drafted_so_that_a_later_fraction_is_read() -> None:
    made = draft_column([str(number % 9) for number in range(90)], "children")
    column = TypeAdapter[ColumnBlock](Column).validate_python({"kind": made.kind, **made.declared})
    part, problems = np.zeros((1, 1), np.float32), Problems(private=True)
    encode_column(["1.5"], column, part, ColumnReport("children", str, problems), ColumnCounts(made.kind))
    problems.check()
    assert part[0, 0] == np.float32(1.5 / 8)


def test_dates_with_and_without_a_zone_are_dates() -> None:
    made = draft_column(["2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00"])
    assert (made.kind, made.declared) == ("date", {"min": "2024-01-01", "max": "2024-12-31"})


def test_a_few_far_values_do_not_set_a_range() -> None:
    made = draft_column([*map(str, range(10, 410)), "250000"])
    assert made.declared == {"min": 0, "max": 500}
    assert made.remark == "1 of 401 values lie outside, to 10 and 250000: they are clamped"
    assert draft_label([*(f"{number}.5" for number in range(400)), "250000.5"]) == {"range": [0, 400]}


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("patient_id", [str(1000 + number // 2) for number in range(200)], "name"),
        ("customerNo", [str(1000 + number // 2) for number in range(200)], "name"),
        ("ID", [f"x{number % 90}y" for number in range(200)], "name"),
        ("ward_id", [str(number % 7) for number in range(200)], "numeric"),
        ("ward_id", ["AB"[number % 2] for number in range(200)], "category"),
        ("humid", [str(1000 + number // 2) for number in range(200)], "numeric"),
        ("case", [f"P{number // 2:04d}" for number in range(200)], "name"),
        ("case", [f"P{number // 2}" for number in range(200)], "name"),
        ("ICD", [f"E{number}.{number % 3}" for number in range(60)] * 2 + ["I10.0"] * 300, "text"),
        ("diagnosis", [f"E{number % 140}" if number % 2 else "healthy" for number in range(300)], "text"),
        ("product", [f"{'abcdefgh'[number % 8]}{number % 5}" for number in range(300)], "category"),
    ],
)
def test_columns_that_name_someone_are_no_features(name: str, fields: list[str], kind: str) -> None:
    assert draft_column(fields, name).kind == kind
