from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.data.collector import NameNumbers, TooManyNames

UNITS = st.lists(st.sampled_from("abcdef"), max_size=40)
LONG = "a name of sixteen bytes and more"
NAMES = st.lists(
    st.sampled_from(["a", "b", "a\0", "\0", "", "7", "07", LONG, LONG + "x", LONG[:15], LONG[:16], "ä" * 8, "\ud800"])
    | st.text(max_size=20),
    max_size=40,
)


def in_chunks(units: list[str], most: int, size: int) -> list[int]:
    table, chosen = NameNumbers(100), []
    for start in range(0, len(units), size):
        numbers, _ = table.number(units[start : start + size])
        chosen += (table.bound(numbers, most) + start).tolist()
    return chosen


@given(NAMES, st.integers(1, 7))
def test_names_are_numbered_in_order_of_first_appearance(names: list[str], size: int) -> None:
    table, numbers, distinct = NameNumbers(100), [], []
    for start in range(0, len(names), size):
        chunk = names[start : start + size]
        some, rows = table.number(chunk)
        numbers += some.tolist()
        distinct += [chunk[row] for row in rows]
    assert distinct == list(dict.fromkeys(names))
    assert [distinct[number] for number in numbers] == names
    assert table.count == len(distinct)


@pytest.mark.parametrize("form", ["{}", "a name of more than fifteen bytes, number {}"], ids=["short", "long"])
def test_a_full_table_numbers_as_a_dictionary_does(form: str) -> None:
    drawn = np.random.default_rng(0).integers(0, 20_000, 60_000)
    names = [form.format(number) for number in drawn]
    numbers: dict[str, int] = {}
    expected = [numbers.setdefault(name, len(numbers)) for name in names]
    table = NameNumbers(len(numbers))
    result = np.concatenate([table.number(names[start : start + 8192])[0] for start in range(0, len(names), 8192)])
    assert result.tolist() == expected
    with pytest.raises(TooManyNames):
        table.number(["one more"])


def test_as_many_names_as_expected_and_no_more() -> None:
    table = NameNumbers(3)
    assert table.number(["a", "b", "a", "a", "c", "b", "a"])[0].tolist() == [0, 1, 0, 0, 2, 1, 0]
    assert table.number(["c"] * 10)[0].tolist() == [2] * 10
    with pytest.raises(TooManyNames):
        table.number(["a", "d"])


def test_first_records_of_each_unit_in_file_order() -> None:
    assert in_chunks(["b", "a", "b", "b", "a", "c"], 2, 100) == [0, 1, 2, 4, 5]


@given(UNITS, st.integers(1, 5), st.integers(1, 9))
def test_t27_no_unit_has_more_than_it_may(units: list[str], most: int, size: int) -> None:
    kept = in_chunks(units, most, size)
    assert Counter(units[i] for i in kept) == {unit: min(count, most) for unit, count in Counter(units).items()}
    assert kept == sorted(kept) == in_chunks(units, most, 100)


@given(UNITS, st.integers(1, 5), st.sampled_from("abcdef"), st.integers(1, 9))
def test_t27_leaving_a_unit_out_moves_no_record_of_another(units: list[str], most: int, gone: str, size: int) -> None:
    rest = [i for i, unit in enumerate(units) if unit != gone]
    kept_without = in_chunks([units[i] for i in rest], most, 100)
    kept = in_chunks(units, most, size)
    assert [i for i in kept if units[i] != gone] == np.asarray(rest, dtype=int)[kept_without].tolist()
