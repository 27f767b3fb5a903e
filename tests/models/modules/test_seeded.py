"""What layers draw, from a seed of one's own."""

from __future__ import annotations

import random

import numpy as np
import torch

from dprecipe.models.modules.draws import drawing_from

CPU = torch.device("cpu")


def draw_some() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.random())


def test_a_seed_gives_the_numbers_that_torch_gives_for_it() -> None:
    seed = (1 << 63) - 25
    with drawing_from(seed, CPU):
        drawn = float(torch.rand(()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        assert drawn == float(torch.rand(()))


def test_a_seed_repeats_and_another_does_not() -> None:
    answers = []
    for seed in (1, 1, 2):
        with drawing_from(seed, CPU):
            answers.append(draw_some())
    assert answers[0] == answers[1]
    assert all(one != other for one, other in zip(answers[1], answers[2], strict=True))


def test_the_generators_are_left_as_they_were() -> None:
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1]
    with drawing_from(3, CPU):
        draw_some()
    assert torch.equal(torch_state, torch.get_rng_state())
    assert python_state == random.getstate()
    assert np.array_equal(numpy_state, np.random.get_state()[1])
