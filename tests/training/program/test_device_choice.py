"""`auto` leaves small models on the CPU, and asks nothing where there is nothing to choose."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.cnn import PRESETS
from dprecipe.training.program.device_choice import count_operations, device_for

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 1)


def test_operations_are_those_of_products() -> None:
    assert count_operations(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)), (64,)) == 2 * (
        64 * 32 + 320
    )
    assert count_operations(nn.Conv2d(3, 8, 3), (3, 6, 6)) == 2 * 16 * 8 * 27


@pytest.mark.parametrize(
    ("model", "shape", "records", "found"),
    [
        (nn.Linear(64, 10), (64,), 64, CPU),
        (nn.Linear(123, 2), (123,), 1024, CPU),
        (nn.Sequential(nn.Flatten(), nn.Linear(784, 1000), nn.Linear(1000, 10)), (1, 28, 28), 256, CUDA),
        (PRESETS["tempered-cifar"]((3, 32, 32), 10), (3, 32, 32), 512, CUDA),
    ],
    ids=["digits", "adult", "perceptron", "cifar"],
)
def test_small_models_stay(model: nn.Module, shape: tuple[int, ...], records: int, found: torch.device) -> None:
    assert device_for("auto", CUDA, model, shape, records) == found
    assert device_for("cuda", CUDA, model, shape, records) == CUDA  # who asks for it gets it


def test_nothing_moves_and_who_can_t_be_asked_goes_to_the_gpu() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            dropped: Tensor = nn.functional.dropout(self.layer(x), 0.5)
            return dropped

    class Refuses(nn.Linear):
        def forward(self, _: Tensor) -> Tensor:
            raise KeyError

    model, state = Drops(), torch.random.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    assert device_for("auto", CUDA, model, (3,), 8) == CPU
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert device_for("auto", CUDA, Refuses(3, 2), (3,), 8) == CUDA
    assert device_for("auto", CPU, Refuses(3, 2), (3,), 8) == CPU
