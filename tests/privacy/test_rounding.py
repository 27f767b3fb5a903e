"""Rounding never goes the wrong way."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.privacy import rounding

positive = st.floats(1e-300, 1e300)


@given(positive, st.integers(1, 12))
def test_up_and_down_enclose_the_value(value, digits):
    above, below = rounding.round_up(value, digits), rounding.round_down(value, digits)
    assert Fraction(below) <= Fraction(value) <= Fraction(above)
    assert above <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)
    assert below >= value * (1 - 10.0 ** (1 - digits)) * (1 - 1e-15)
    assert above == float(f"{above:.{digits - 1}e}")
    assert rounding.round_up(above, digits) == above


def test_special_values():
    assert rounding.round_up(0.0) == 0.0
    assert rounding.round_up(math.inf) == math.inf
    assert rounding.round_up(2.0) == 2.0
    assert rounding.round_up(0.1) == rounding.round_down(0.1) == 0.1
    assert rounding.round_up(1.0000001) == 1.00001
    assert rounding.round_up(999999.5) == 1_000_000.0
    with pytest.raises(ValueError, match="NaN"):
        rounding.round_up(math.nan)


def test_a_document_has_no_infinity():
    assert rounding.round_up_finite(1.00000001) == 1.00001
    assert rounding.round_up_finite(math.inf) is None


@given(positive)
def test_a_declared_number_is_written_in_full(value):
    assert float(rounding.write_number(value)) == value


def test_a_whole_number_has_no_point():
    values = (3.0, 0.1, 1e-5, 1.0000004e-5, 2.99983)
    assert [*map(rounding.write_number, values)] == ["3", "0.1", "1e-05", "1.0000004e-05", "2.99983"]
