"""Chunks of a column are converted as their values would be, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.data.values import (
    CodedTexts,
    Value,
    as_list,
    look_up,
    number_texts,
    parse_integer,
    parse_integers,
    parse_number,
    parse_numbers,
    select_rows,
    text_of,
    texts_of,
    value_at,
    whole_numbers,
)

TEXTS = st.one_of(
    st.sampled_from(["1", " -2.5 ", "1e400", "nan", "inf", "1_0", "٣", "", " x ", "True"]), st.floats().map(str)
)
VALUES = st.one_of(TEXTS, st.integers(), st.floats(), st.booleans(), st.none(), st.just(10**400), st.just(b" 1 "))


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.lists(TEXTS), st.lists(VALUES)))
def test_a_chunk_is_parsed_like_its_values(values: list[Value]) -> None:
    expected = [math.nan if number is None else number for number in map(parse_number, values)]
    np.testing.assert_array_equal(parse_numbers(values), np.array(expected, np.float64))
    assert texts_of(values) == [text_of(value) for value in values]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from([1.0, 2.5, "1", " 2 ", "-1", None]))))
def test_equal_values_of_any_type_are_equal_integers(values: list[Value]) -> None:
    assert parse_integers(values) == [parse_integer(value) for value in values]


def test_masked_numbers_keep_their_type() -> None:
    column = np.ma.MaskedArray(np.array([3, 2**60 + 1, 0]), [False, False, True])
    assert texts_of(column) == ["3", str(2**60 + 1), ""]
    assert value_at(column, 2) is None
    assert texts_of(select_rows(column, [2, 0])) == ["", "3"]
    assert parse_integers(column) == [3, 2**60 + 1, None]
    np.testing.assert_array_equal(parse_numbers(column), [3.0, 2.0**60, math.nan])


def test_numbers_that_are_not_finite_are_none() -> None:
    column = np.ma.MaskedArray(np.array([1.0, math.inf, math.nan]), False)
    np.testing.assert_array_equal(parse_numbers(column), [1.0, math.nan, math.nan])


@pytest.mark.parametrize("texts", [[], ["a", "b", "a", "c"]])
def test_texts_are_looked_up(texts: list[str]) -> None:
    assert look_up(texts, {"a": 0, "b": 1}, 9) == [{"a": 0, "b": 1}.get(text, 9) for text in texts]


WORDS = ["a", " b ", "", "7", " 07", "1e3", "inf", "x_1"]


@given(st.lists(st.none() | st.sampled_from(WORDS), max_size=30))
def test_texts_by_their_codes_are_the_texts(texts: list[str | None]) -> None:
    coded = CodedTexts(WORDS, np.array([-1 if text is None else WORDS.index(text) for text in texts], np.int64))
    numbers = {"a": 0, "b": 1, "7": 2}
    assert list(coded) == list(as_list(coded)) == texts
    assert texts_of(coded) == texts_of(texts)
    assert parse_integers(coded) == parse_integers(texts)
    np.testing.assert_array_equal(parse_numbers(coded), parse_numbers(texts))
    np.testing.assert_array_equal(number_texts(coded, numbers, 9), number_texts(texts, numbers, 9))
    assert number_texts(texts, numbers, 9).tolist() == look_up(texts_of(texts), numbers, 9)
    rows = list(range(0, len(texts), 2))
    assert list(select_rows(coded, rows)) == [texts[row] for row in rows]
    assert list(coded[1:]) == texts[1:]
    assert [value_at(coded, row) for row in range(len(texts))] == texts


@pytest.mark.parametrize("kind", [np.int8, np.uint64, np.int64])
def test_integers_in_a_range_at_once(kind: type) -> None:
    whole = np.ma.MaskedArray(np.array([0, 3, 2], kind))
    result = whole_numbers(whole, 4)
    assert result is not None
    assert result.dtype == np.int64
    assert result.tolist() == [0, 3, 2] == parse_integers(whole)
    assert whole_numbers(whole, 3) is None
    assert whole_numbers(np.ma.MaskedArray(whole.data, [False, True, False]), 4) is None
    assert whole_numbers([0, 3, 2], 4) is None
    assert whole_numbers(np.ma.MaskedArray(np.array([0.0])), 4) is None
    assert whole_numbers(np.ma.MaskedArray(np.array([-1])), 4) is None
    empty = whole_numbers(np.ma.MaskedArray(np.zeros(0, kind)), 4)
    assert empty is not None
    assert len(empty) == 0
