"""Record canaries: synthetic, in batches where their coin says so, and scored by the released model alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from dprecipe.data.facts import DataFacts
from dprecipe.data.records import Records
from dprecipe.data.targets import ClassTarget, NumberTarget
from dprecipe.training.canaries.contract import Coins
from dprecipe.training.canaries.run import RecordCanaries, WithCanaries, losses_on
from dprecipe.training.program.losses import cross_entropy

KEY = "sha256:" + "17" * 32
FACTS = DataFacts((4,), ClassTarget(3), (4,))


def source_of(units: NDArray[np.int64] | None = None, count: int = 6) -> WithCanaries:
    records = Records(np.arange(40, dtype=np.float32).reshape(10, 4), np.arange(10) % 3, units)
    return WithCanaries(records, count, FACTS, KEY)


@pytest.mark.parametrize("units", [None, np.repeat(np.arange(5), 2)])
def test_canaries_follow_the_records_each_a_unit_of_one(units: NDArray[np.int64] | None) -> None:
    source = source_of(units)
    first = 10 if units is None else 5
    assert (len(source), source.unit_count) == (16, first + 6)
    if units is not None:
        assert source.units is not None
        assert source.units.tolist() == [*units.tolist(), *range(5, 11)]
    features, labels = source.batch(np.array([3, 12, 0, 15]))
    made, answers = source.canaries
    assert np.array_equal(features[[0, 2]], np.arange(40, dtype=np.float32).reshape(10, 4)[[3, 0]])
    assert np.array_equal(features[[1, 3]], made[[2, 5]])
    assert labels.tolist() == [0, answers[2], 0, answers[5]]
    assert np.array_equal(source.batch(slice(8, 16))[0][2:], made)
    assert np.array_equal(source_of(units).canaries[0], made)  # public: a function of the plan


def test_canaries_look_as_records_do() -> None:
    tokens = Records(np.arange(20, dtype=np.int64).reshape(5, 4), np.zeros(5, np.int64))
    facts = DataFacts((4,), ClassTarget(2), (4,), vocabulary=30)
    made, labels = WithCanaries(tokens, 200, facts, KEY).canaries
    assert np.array_equal(made, made.round())
    assert (made.min(), made.max()) == (1, 29)
    assert set(labels.tolist()) == {0, 1}
    numbers = Records(np.zeros((5, 4), np.float32), np.zeros(5, np.float32))
    made, labels = WithCanaries(numbers, 200, DataFacts((4,), NumberTarget(0.0, 1.0), (4,)), KEY).canaries
    assert (made.dtype, labels.dtype) == (np.float32, np.float32)
    assert np.abs(labels).max() <= 1


def test_those_that_are_out_are_in_no_batch() -> None:
    source = source_of()
    inside = np.array([True, False, True, False, False, True])
    canaries = RecordCanaries(Coins(inside), source, lambda state: np.zeros(6))
    kept, more = canaries.split(np.arange(canaries.units))
    assert kept.tolist() == [*range(10), 10, 12, 15]
    assert more is None
    assert canaries.split(np.array([2, 11, 13]))[0].tolist() == [2]
    canaries.restore(canaries.state())
    with pytest.raises(ValueError, match="other canaries"):
        RecordCanaries(Coins(~inside), source, lambda state: np.zeros(6)).restore(canaries.state())


def test_a_model_that_has_learned_its_canaries_by_heart_gives_all_coins_away() -> None:
    source, inside = source_of(count=40), np.arange(40) % 2 == 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))
    losses = losses_on(source, model, cross_entropy, torch.device("cpu"), 7)
    canaries = RecordCanaries(Coins(inside), source, losses)
    assert np.array_equal(canaries.rank({}), np.zeros(40))
    features, labels = (torch.from_numpy(array[inside]) for array in source.canaries)
    for _ in range(400):
        gradients = torch.autograd.grad(cross_entropy(model(features), labels).mean(), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.5 * gradient
    fallen = canaries.rank(model.state_dict())
    assert (fallen[inside] > np.median(fallen)).mean() > 0.8
    assert model.training
