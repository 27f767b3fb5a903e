"""Units of several rows, summed as records of several rows: the clipped mean of a unit's gradients, as by a loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprecipe.data.augment import make_augmentation
from dprecipe.data.image_steps import Flip
from dprecipe.data.records import Records
from dprecipe.data.schema import Step
from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.engine.clipped_sum import clipped_sum
from dprecipe.training.engine.clipping import Clipping, layer_numbers
from dprecipe.training.engine.unit_rows import PADDING, MeanLoss, RowwiseModel
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.program.records import Store, UnitRowsBatch

CLIP = 0.4


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).train()


def records(units: np.ndarray | None) -> Records:
    generator = np.random.default_rng(1)
    count = 12 if units is None else len(units)
    features = generator.normal(size=(count, 1, 6, 6)).astype(np.float32)
    return Records(features, generator.integers(3, size=count), units)


def looped(net: nn.Module, of_units: list[list[tuple[Tensor, int]]], clipping: Clipping) -> Tensor:
    """Row after row: the mean of a unit's gradients, clipped group by group, in double precision."""
    parameters, total = list(net.parameters()), []
    for rows in of_units:
        means = [torch.zeros(p.shape, dtype=torch.float64) for p in parameters]
        for feature, label in rows:
            loss = cross_entropy(net(feature[None]), torch.tensor([label])).sum()
            for mean, gradient in zip(means, torch.autograd.grad(loss, parameters), strict=True):
                mean += gradient.double() / len(rows)
        clipped = []
        for group, threshold in enumerate(clipping.thresholds):
            inside = [i for i in range(len(means)) if clipping.groups is None or clipping.groups[i] == group]
            norm = torch.cat([means[i].flatten() for i in inside]).norm(p=1 if clipping.norm == "l1" else 2)
            for i in inside:
                clipped.append((i, means[i] * min(1.0, threshold / float(norm))))
        total.append(torch.cat([part.flatten() for _, part in sorted(clipped, key=lambda pair: pair[0])]))
    return torch.stack(total).sum(0)


CLIPPINGS = {
    "flat": Clipping.flat(CLIP),
    "l1": Clipping.flat(2.0, "l1"),
    "per layer": Clipping((0.2, 0.1, 0.3), layer_numbers(network())),
}


@pytest.mark.parametrize("clipping", CLIPPINGS.values(), ids=CLIPPINGS.keys())
@pytest.mark.parametrize("physical", [3, 8, 64])
def test_units_of_one_to_five_records_equal_a_loop(clipping: Clipping, physical: int) -> None:
    units = np.array([0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4])
    data, net = records(units), network()
    batch = Store(data, torch.device("cpu")).batch(np.array([0, 1, 3, 4]), 1)
    result = clipped_sum(RowwiseModel(net), MeanLoss(cross_entropy), UnitRowsBatch(batch), clipping, physical).value
    of_units = [
        [(torch.from_numpy(data.features[i]), int(data.labels[i])) for i in np.flatnonzero(units == unit)]
        for unit in (0, 1, 3, 4)
    ]
    torch.testing.assert_close(result, looped(net, of_units, clipping), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("physical", [2, 7, 64])
def test_copies_are_augmented_each_by_itself_and_averaged_before_clipping(physical: int) -> None:
    data, net = records(None), network()
    seen: list[Tensor] = []

    def augmented(generator: torch.Generator):
        def apply(x: Tensor, _: int) -> Tensor:
            seen.append(x + torch.rand(len(x), 1, 1, 1, generator=generator))
            return seen[-1]

        return apply

    chosen = np.array([0, 2, 5, 11])
    batch = Store(data, torch.device("cpu"), augmented).batch(chosen, 1)
    clipping = Clipping.flat(CLIP)
    result = clipped_sum(RowwiseModel(net), MeanLoss(cross_entropy), UnitRowsBatch(batch, 3), clipping, physical).value
    rows = torch.cat(seen)
    assert len(rows) == 12
    assert max(len(part) for part in seen) <= max(physical, 3)  # of one unit at the least
    moved = rows.unflatten(0, (4, 3)) - torch.from_numpy(data.features[chosen])[:, None]
    assert len(set(moved.flatten(2)[..., 0].flatten().tolist())) == 12  # no two copies got the same draw
    of_units = [[(row, int(data.labels[i])) for row in rows[3 * n : 3 * n + 3]] for n, i in enumerate(chosen)]
    torch.testing.assert_close(result, looped(net, of_units, clipping), rtol=1e-5, atol=1e-6)


def test_two_copies_of_a_record_are_mirror_images() -> None:
    data = records(np.array([0, 0, 0, 1, 2, 2]))
    store = Store(data, torch.device("cpu"), lambda drawn: make_augmentation([Step(flip=Flip())], drawn))
    rows = [part.features.unflatten(1, (-1, 2)) for part in UnitRowsBatch(store.batch(np.arange(3), 1), 2).parts(8)]
    assert sum(len(row) for row in rows) == 3
    for row in rows:
        assert torch.equal(row[:, :, 0], row[:, :, 1].flip(-1))


def test_no_unit_is_split_and_rows_that_fill_up_are_marked() -> None:
    counts = [1, 7, 2, 2, 5, 1, 1, 3]
    units = np.repeat(np.arange(8), counts)
    store = Store(records(units), torch.device("cpu"))
    parts = list(UnitRowsBatch(store.batch(np.arange(8), 1), 2).parts(16))
    real = [int((row != PADDING).sum()) for part in parts for row in part.labels]
    assert sorted(real) == sorted(2 * count for count in counts)
    assert all(part.labels.numel() <= 16 for part in parts)
    assert all(part.features.shape[:2] == part.labels.shape for part in parts)


def test_a_unit_with_a_record_of_nan_adds_nothing_and_moves_no_other() -> None:
    units = np.array([0, 0, 0, 1, 1, 2])
    data, net = records(units), network()
    data.features[1] = np.nan
    store, clipping = Store(data, torch.device("cpu")), Clipping.flat(CLIP)

    def summed(chosen: list[int]) -> Tensor:
        batch = UnitRowsBatch(store.batch(np.array(chosen, dtype=np.int64), 1))
        return clipped_sum(RowwiseModel(net), MeanLoss(cross_entropy), batch, clipping, 64).value

    torch.testing.assert_close(summed([0, 1, 2]), summed([1, 2]), rtol=1e-5, atol=1e-7)
    assert float(summed([0]).abs().max()) == 0
    assert float(summed([]).abs().max()) == 0
    assert float(summed([1]).norm()) <= CLIP * (1 + 1e-12)


def test_the_sum_comes_from_one_backward_pass() -> None:
    strategies = describe_plan(
        RowwiseModel(network()), MeanLoss(cross_entropy), torch.zeros(4, 3, 1, 6, 6), torch.zeros(4, 3).long()
    )
    assert not any("single records" in strategy and "whole model" in strategy for strategy in strategies.values()), (
        strategies
    )
