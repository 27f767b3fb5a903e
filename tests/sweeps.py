"""Sweeps of parameters whose middle is left to the long tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sweep(values: Sequence[Any], quick: Sequence[int] = (0, -1), *, several: bool = False) -> list[Any]:
    """All `values` of a sweep; those whose places are not `quick` are slow. `several`: each is a tuple, of several
    arguments.

    In a grid a case is quick where it is on all axes.
    """
    places = {range(len(values))[place] for place in quick}
    rows = [value if several else (value,) for value in values]
    return [pytest.param(*row, marks=() if place in places else pytest.mark.slow) for place, row in enumerate(rows)]
