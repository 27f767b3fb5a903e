from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dprecipe.faults import NothingLearned
from dprecipe.training.publish.publish import check_learned

CUSTOM: Any = SimpleNamespace(custom_model=True)
"""A module from Python: its weights alone are looked at. `tests/release/test_no_model.py` has models of ours."""
PLAN: Any = SimpleNamespace()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_weights_that_are_no_numbers_are_no_model(number: float, kind: torch.dtype) -> None:
    state = {"count": torch.tensor(3), "w": torch.zeros(4, dtype=kind)}
    check_learned(PLAN, CUSTOM, state)
    state["w"][2] = number
    with pytest.raises(NothingLearned, match="weights are not finite"):
        check_learned(PLAN, CUSTOM, state)
