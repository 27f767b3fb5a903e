"""What the engine does differently on a GPU, tried without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprecipe.training.engine.bookkeeping import plan_of
from dprecipe.training.losses import cross_entropy


class DropsElsewhere(nn.Module):
    """Dropout that draws from a generator of its device's own, as on CUDA: `torch.manual_seed` seeds it too, and
    `torch.random.set_rng_state` does not reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=self.generator) < 0.5)


def test_a_model_with_dropout_on_a_device_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seed = DropsElsewhere(), torch.manual_seed

    def everywhere(number: int) -> torch.Generator:
        layer.generator.manual_seed(number)
        return seed(number)

    monkeypatch.setattr(torch, "manual_seed", everywhere)
    model = nn.Sequential(nn.Linear(20, 20), layer, nn.Linear(20, 4))
    state = torch.random.get_rng_state()
    plan_of(model, cross_entropy, torch.zeros(5, 20), torch.zeros(5, dtype=torch.int64))
    assert torch.equal(torch.random.get_rng_state(), state)
