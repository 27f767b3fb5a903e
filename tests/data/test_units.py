from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.data.units import Identities, bound_units

UNITS = st.lists(st.sampled_from("abcdef"), max_size=40)


def of_record(units: list[str]) -> np.ndarray:
    return Identities.named(units).of_record


def test_first_records_of_each_unit_in_file_order() -> None:
    assert bound_units(of_record(["b", "a", "b", "b", "a", "c"]), 2).tolist() == [0, 1, 2, 4, 5]


@given(UNITS, st.integers(1, 5))
def test_t27_no_unit_has_more_than_it_may(units: list[str], most: int) -> None:
    kept = bound_units(of_record(units), most)
    assert Counter(units[i] for i in kept) == {unit: min(count, most) for unit, count in Counter(units).items()}
    assert kept.tolist() == sorted(kept.tolist())


@given(UNITS, st.integers(1, 5), st.sampled_from("abcdef"))
def test_t27_leaving_a_unit_out_moves_no_record_of_another(units: list[str], most: int, gone: str) -> None:
    rest = [i for i, unit in enumerate(units) if unit != gone]
    kept = bound_units(of_record(units), most)
    kept_without = bound_units(of_record([units[i] for i in rest]), most)
    assert [i for i in kept if units[i] != gone] == np.asarray(rest, dtype=int)[kept_without].tolist()


@given(UNITS)
def test_each_record_has_its_own_name_and_each_name_stands_once(units: list[str]) -> None:
    identities = Identities.named(units)
    assert [identities.names[i] for i in identities.of_record] == units
    assert list(identities.texts()) == list(dict.fromkeys(units))


def test_numbers_are_names_in_decimal_digits() -> None:
    identities = Identities.numbered(3, 9)
    assert list(identities.texts()) == ["9", "10", "11"]
    assert identities.of_record.tolist() == [0, 1, 2]
