from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.data.units import bounded

UNITS = st.lists(st.sampled_from("abcdef"), max_size=40)


def test_first_records_of_each_unit_in_file_order() -> None:
    kept, ids = bounded(["b", "a", "b", "b", "a", "c"], 2)
    assert kept.tolist() == [0, 1, 2, 4, 5]
    assert ids.tolist() == [0, 1, 0, 1, 2]


@given(UNITS, st.integers(1, 5))
def test_t27_no_unit_has_more_than_it_may(units: list[str], most: int) -> None:
    kept, ids = bounded(units, most)
    assert max(Counter(ids.tolist()).values(), default=0) <= most
    names = [units[i] for i in kept]
    assert Counter(names) == {unit: min(count, most) for unit, count in Counter(units).items()}
    assert set(ids.tolist()) == set(range(len(set(units))))


@given(UNITS, st.integers(1, 5), st.sampled_from("abcdef"))
def test_t27_leaving_a_unit_out_moves_no_record_of_another(units: list[str], most: int, gone: str) -> None:
    rest = [i for i, unit in enumerate(units) if unit != gone]
    kept, _ = bounded(units, most)
    kept_without, _ = bounded([units[i] for i in rest], most)
    assert [i for i in kept if units[i] != gone] == np.asarray(rest, dtype=int)[kept_without].tolist()
