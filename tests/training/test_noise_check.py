"""The noise check passes on what we draw, and fails on anything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Stream
from dprecipe.noise.laws import Law
from dprecipe.planning.model import Plan
from dprecipe.training.noise import add_noise
from dprecipe.training.noise_check import noise_scale

CPU = torch.device("cpu")


def test_sound_noise_passes(small: Callable[..., Plan]) -> None:
    check = noise_scale(small(), CPU)
    assert check.passed
    assert "from the planned law" in check.measured


@pytest.mark.parametrize("scale", [0.0, 0.97, 1.03])
def test_t13_noise_of_another_scale_stops_the_run(
    small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, scale: float
) -> None:
    def wrong(value: Tensor, law: Law, right: float, stream: Stream) -> Tensor:
        return add_noise(value, law, right, stream) * scale

    monkeypatch.setattr("dprecipe.training.gate.add_noise", wrong)
    with pytest.raises(RunFailed, match="not what the plan says"):
        noise_scale(small(), CPU)


def test_noise_with_a_mean_stops_the_run(small: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> None:
    def moved(value: Tensor, law: Law, scale: float, stream: Stream) -> Tensor:
        return add_noise(value, law, scale, stream) + 0.1

    monkeypatch.setattr("dprecipe.training.gate.add_noise", moved)
    with pytest.raises(RunFailed, match="positive"):
        noise_scale(small(), CPU)
