"""What became of values on their way in: counts by column, and columns of which nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.counts import as_text
from dprecipe.data.load import read
from dprecipe.faults import DataFault

COLUMNS = {
    "age": {"kind": "numeric", "min": 20, "max": 60, "missing": 40},
    "ward": {"kind": "category", "values": ["icu"]},
}
SOURCE = {"source": "csv", "path": "t.csv", "columns": COLUMNS, "label": {"column": "days", "range": [0, 10]}}
ROWS = ["10,icu,1", "30,icu,2", "70,ICU,3", "80,x,4", "NA,,99", ",icu,-1", *["40,icu,5"] * 14]


@pytest.fixture
def tally(tmp_path: Path, block: Callable[..., Any]) -> Callable[..., Any]:
    def tally(rows: list[str] = ROWS, **columns: Any) -> Any:
        (tmp_path / "t.csv").write_text("\n".join(["age,ward,days", *rows]) + "\n")
        source = {**SOURCE, "columns": {**COLUMNS, **columns}}
        data = block(source, size=len(rows), preprocess=[{"one_hot": {}}])
        return read(data.train, data, tmp_path, "train")[1]

    return tally


def test_missing_clamped_and_other_are_counted_by_column(tally: Callable[..., Any]) -> None:
    result = tally()
    assert result.as_json() == {
        "records": 20,
        "columns": {
            "age": {"kind": "numeric", "missing": 2, "clamped": 3, "shares": {"missing": 0.1, "clamped": 0.15}},
            "ward": {"kind": "category", "other": 3, "shares": {"other": 0.15}},
            "days": {"kind": "label", "clamped": 2, "shares": {"clamped": 0.1}},
        },
        "records_not_finite": 0,
    }
    assert "  age (numeric): 2 missing (10.00%), 3 clamped (15.00%)\n" in as_text({"train": result})


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([f"{age},icu,5" for age in range(60, 80)], "column 'age': every number is at one end"),
        ([f"{age},icu,5" for age in range(20)], "column 'age': every number is at one end"),
        (["NA,icu,5", *["70,icu,5"] * 20], "column 'age': every number is at one end"),
        (["NA,icu,5"] * 20, "column 'age': every field is missing"),
        (["40,Icu,5"] * 20, "column 'ward': no field has one of the declared"),
        (["40,,5"] * 20, "column 'ward': no field has one of the declared"),
        (["40,icu,50"] * 20, "column 'days': every number is at one end"),
    ],
)
def test_a_column_of_which_nothing_is_left_is_refused_without_a_number(
    tally: Callable[..., Any], rows: list[str], says: str
) -> None:
    with pytest.raises(DataFault) as caught:
        tally(rows)
    assert says in caught.value.message
    assert not any(character.isdigit() for character in caught.value.message + caught.value.private)
    assert caught.value.remedy


def test_a_column_with_one_value_inside_is_read(tally: Callable[..., Any]) -> None:
    assert tally(["40,icu,5", *["70,x,50"] * 19]).columns["age"].above == 19
    assert tally(["20,icu,5"] * 20).columns["age"].below == 0  # at the end, and none beyond it
    assert [tally([f"{age},icu,5"] * 20).columns["age"].is_constant(20) for age in (20, 60, 30)] == [True, True, False]
    assert tally(["70,x,50"] * 19).records == 19  # of so few nothing is concluded
