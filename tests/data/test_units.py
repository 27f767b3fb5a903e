from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dprecipe.data.units import Identities

UNITS = st.lists(st.sampled_from("abcdef"), max_size=40)


@given(UNITS)
def test_each_record_has_its_own_name_and_each_name_stands_once(units: list[str]) -> None:
    identities = Identities.named(units)
    assert [identities.names[i] for i in identities.of_record] == units
    assert list(identities.texts()) == list(dict.fromkeys(units))


def test_numbers_are_names_in_decimal_digits() -> None:
    identities = Identities.numbered(3, 9)
    assert list(identities.texts()) == ["9", "10", "11"]
    assert identities.of_record.tolist() == [0, 1, 2]
