"""What a tuned recipe tries."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprecipe.language.tuning import Candidates, Tuning
from dprecipe.planning.candidates import MAX_POINTS, list_points, may_draw, value_at


def candidates(text: str) -> Candidates:
    return Candidates.model_validate_json(text)


def test_a_list_is_drawn_from_evenly() -> None:
    each = candidates('{"key": "a", "values": [1, 2.5, "x", true]}')
    drawn = [value_at(each, u) for u in (0.0, 0.2499, 0.25, 0.5, 0.75, 1 - 2**-53)]
    assert drawn == [1, 1, 2.5, "x", True, True]
    assert all(may_draw(each, value) for value in drawn)
    assert not may_draw(each, 1.0)
    assert not may_draw(each, 1 == 1.0 and 2)


@pytest.mark.parametrize(("scale", "middle"), [("log", 0.2), ("linear", 2.005)])
def test_a_range_is_drawn_on_its_scale_and_stays_within(scale: str, middle: float) -> None:
    each = candidates(f'{{"key": "a", "range": [0.01, 4], "scale": "{scale}"}}')
    assert value_at(each, 0.5) == pytest.approx(middle, rel=1e-5)
    drawn = [value_at(each, u) for u in np.random.default_rng(0).random(2000)]
    below = np.mean([value < middle for value in drawn])
    assert abs(below - 0.5) < 4 * math.sqrt(0.25 / 2000)  # four standard deviations
    assert all(isinstance(value, float) and 0.01 <= value <= 4 and may_draw(each, value) for value in drawn)
    assert not may_draw(each, 4.1)
    assert not may_draw(each, math.nan)
    assert not may_draw(each, 1)


def test_all_combinations_are_checked_where_they_are_few() -> None:
    def block(values: int) -> Tuning:
        entries = ",".join(f'{{"key": "{key}", "values": {list(range(values))}}}' for key in "ab")
        text = f'{{"runs": {{"kind": "fixed", "count": 2}}, "over": [{entries}], "score": {{"metric": "loss"}}}}'
        return Tuning.model_validate_json(text)

    assert len(list(list_points(block(8)))) == 16 + 64 <= 16 + MAX_POINTS
    assert len(list(list_points(block(9)))) == 18
