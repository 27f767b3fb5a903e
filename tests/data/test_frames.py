"""Tables in memory become the columns that a reader of files passes."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from dprecipe.data.frames import chunk_table
from dprecipe.data.values import as_list, parse_numbers, texts_of
from dprecipe.faults import DataFault

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

COLUMNS = {
    "age": [50, None, 7.5],
    "sex": ["m", None, "f"],
    "ill": [True, False, None],
    "day": [date(2024, 5, 17), None, date(2024, 1, 2)],
    "unused": [object(), object(), object()],
}
NAMES = ("age", "sex", "ill", "day")
USED = {name: COLUMNS[name] for name in NAMES}
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
TABLES = {
    "rows": ROWS,
    "columns": COLUMNS,
    "arrays": {name: np.array(values, dtype=object) for name, values in COLUMNS.items()},
    "pandas": pandas.DataFrame(COLUMNS),
    "pandas, nullable": pandas.DataFrame(USED).convert_dtypes(),
    "series": {name: pandas.Series(values, index=[9, 8, 7]) for name, values in USED.items()},
    "arrow": pyarrow.table(USED),
    "batch": pyarrow.record_batch(USED),
    "arrow, chunked": pyarrow.concat_tables([pyarrow.table(USED).slice(0, 1), pyarrow.table(USED).slice(1)]),
    "dictionaries": pyarrow.table({**USED, "sex": pyarrow.array(USED["sex"]).dictionary_encode()}),
}


@pytest.mark.parametrize("rows", [2, 3, 100])
@pytest.mark.parametrize("kind", TABLES)
def test_each_kind_of_table_gives_the_same_fields(kind: str, rows: int) -> None:
    chunks = list(chunk_table(TABLES[kind], NAMES, rows))
    assert [(first, count) for first, count, _ in chunks] == [(0, min(rows, 3)), *([(2, 1)] if rows == 2 else [])]
    joined = {name: [columns[name] for _, _, columns in chunks] for name in NAMES}
    numbers = np.concatenate([parse_numbers(part) for part in joined["age"]])
    np.testing.assert_array_equal(numbers, [50, np.nan, 7.5])
    texts = {name: [text for part in joined[name] for text in texts_of(part)] for name in NAMES}
    assert texts["sex"] == ["m", "", "f"]
    assert texts["ill"][:2] == ["True", "False"]
    assert texts["ill"][2] in ("", "None", "nan")
    assert [text[:10] for text in texts["day"]] == ["2024-05-17", "", "2024-01-02"]


def test_a_column_of_several_types_is_read_value_by_value() -> None:
    frame = pandas.DataFrame({"x": [1, "2", np.float32(3), Decimal("4.5"), float("nan"), pandas.NaT, pandas.NA]})
    ((_, _, columns),) = chunk_table(frame, ("x",), 10)
    assert parse_numbers(columns["x"])[:4].tolist() == [1, 2, 3, 4.5]
    assert list(as_list(columns["x"]))[4:] == [None, None, None]


def test_a_moment_keeps_its_time_of_day() -> None:
    for table in (pandas.DataFrame({"t": [datetime(2024, 5, 17, 14, 30)]}), [{"t": datetime(2024, 5, 17, 14, 30)}]):
        ((_, _, columns),) = chunk_table(table, ("t",), 10)
        assert datetime.fromisoformat(texts_of(columns["t"])[0]) == datetime(2024, 5, 17, 14, 30)


def test_numbers_stay_arrays() -> None:
    ((_, _, columns),) = chunk_table({"x": np.arange(3), "y": [1, 2, 3]}, ("x", "y"), 10)
    assert isinstance(columns["x"], np.ma.MaskedArray)


@pytest.mark.parametrize("table", [pandas.DataFrame([[1.5], [2.5]]), {0: [1.5, 2.5]}])
def test_a_column_may_be_named_by_a_number(table: object) -> None:
    ((_, _, columns),) = chunk_table(table, ("0",), 10)
    assert parse_numbers(columns["0"]).tolist() == [1.5, 2.5]


def test_no_rows() -> None:
    for table in ([], {"x": []}, pandas.DataFrame({"x": []}), pyarrow.table({"x": []})):
        assert [count for _, count, _ in chunk_table(table, ("x",), 5) if count] == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pandas.DataFrame({"Age": [1]}), r"no column 'age' \(they have 'Age'\)"),
        (pyarrow.table({"other": [1]}), "no column 'age'"),
        ({"other": [1]}, "no column 'age'"),
        ([{"age": 1}, {}], "row 1 has no 'age'"),
        (pandas.DataFrame([[1, 2]], columns=["age", "age"]), "more than one column 'age'"),
        ({"age": [1, 2], "sex": [1]}, "different lengths"),
        (np.zeros((2, 3)), r"numpy.ndarray and shape \[2, 3\], and the model takes a table"),
        ("age", "builtins.str, and the model takes a table"),
        (None, "and the model takes a table"),
    ],
)
def test_what_is_no_table_or_lacks_a_column(table: object, message: str) -> None:
    names = ("age", "sex") if message == "different lengths" else ("age",)
    with pytest.raises(DataFault, match=message) as caught:
        list(chunk_table(table, names, 5))
    assert caught.value.remedy


def test_decimals_that_are_equal_are_one_name() -> None:
    written = [Decimal("7"), Decimal("7.00"), Decimal("7.50"), Decimal("1E+2"), Decimal("-0.10"), Decimal("NaN")]
    ((_, _, columns),) = chunk_table({"who": written}, ("who",), 10)
    assert texts_of(columns["who"]) == ["7", "7", "7.5", "100", "-0.1", ""]


def test_a_decimal_that_is_a_signalling_nan_is_missing() -> None:
    """Whatever is done with it raises, comparing it included."""
    rows: list[Any] = [Decimal("sNaN"), Decimal("1.50"), "x"]
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    for table in ({"a": rows}, [{"a": value} for value in rows], pd.DataFrame({"a": rows})):
        ((_, _, columns),) = chunk_table(table, ("a",), 10)
        assert list(columns["a"]) == [None, "1.5", "x"]
