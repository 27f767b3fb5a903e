"""Augmentation and dropout draw from the seed of their batch, and from nothing that was drawn before."""

from __future__ import annotations

import numpy as np
import torch

from dprecipe.data.records import Records
from dprecipe.models.modules.draws import drawing_from
from dprecipe.training.program.records import Store, UnitRowsBatch


def drawn(store: Store, seed: int, units: list[int]) -> torch.Tensor:
    return torch.cat([part.features for part in store.batch(np.array(units), seed).parts(2)])


def test_a_batch_tells_how_many_gradients_it_adds_up() -> None:
    """Which decides how many of them may be added in single precision."""
    features, labels = np.zeros((9, 1, 2, 2), dtype=np.float32), np.zeros(9, dtype=np.int64)
    of_records = Store(Records(features, labels), torch.device("cpu")).batch(np.array([0, 3, 4]), 0)
    patients = Records(features, labels, units=np.array([0, 0, 1, 2, 2, 2, 3, 3, 3]))
    of_units = Store(patients, torch.device("cpu")).batch(np.array([0, 2, 3]), 0)
    none = Store(patients, torch.device("cpu")).batch(np.array([], dtype=np.int64), 0)
    for batch, count in ((of_records, 3), (of_units, 3), (none, 0)):
        assert batch.gradients == UnitRowsBatch(batch, 2).gradients == count
        assert sum(len(part.labels) for part in UnitRowsBatch(batch, 2).parts(4)) == count
        assert sum(part.gradients for part in batch.parts(100)) == count


def test_the_seed_of_a_batch_decides_what_augmentation_draws() -> None:
    records = Records(np.zeros((9, 1, 2, 2), dtype=np.float32), np.zeros(9, dtype=np.int64))
    store = Store(records, torch.device("cpu"), lambda g: lambda x, _: x + torch.rand(len(x), 1, 1, 1, generator=g))
    one = drawn(store, 5, [0, 3, 4])
    drawn(store, 6, list(range(9)))  # a longer batch between, which must leave no trace
    assert torch.equal(drawn(store, 5, [0, 3, 4]), one)
    assert not torch.equal(drawn(store, 7, [0, 3, 4]), one)


def test_the_seed_of_a_batch_decides_what_layers_draw_and_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    untouched = torch.rand(1)
    torch.manual_seed(0)
    draws = []
    for seed in (5, 5, 7):
        with drawing_from(seed, torch.device("cpu")):
            draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.rand(1), untouched)
