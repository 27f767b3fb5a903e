"""The noise check passes on what we draw, and fails on anything else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dprecipe.faults import RunFailed
from dprecipe.noise.draws import draw
from dprecipe.planning.model import Plan
from dprecipe.training.noise_check import noise_scale


def test_sound_noise_passes(small: Callable[..., Plan]) -> None:
    check = noise_scale(small())
    assert check.passed
    assert "from the planned law" in check.measured


@pytest.mark.parametrize("scale", [0.0, 0.97, 1.03])
def test_t13_noise_of_another_scale_stops_the_run(
    small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    monkeypatch.setattr("dprecipe.training.gate.draw", lambda law, stream, count: scale * draw(law, stream, count))
    with pytest.raises(RunFailed, match="not what the plan says"):
        noise_scale(small())


def test_noise_with_a_mean_stops_the_run(small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dprecipe.training.gate.draw", lambda law, stream, count: np.full(count, 0.1) + draw(law, stream, count)
    )
    with pytest.raises(RunFailed, match="positive"):
        noise_scale(small())
