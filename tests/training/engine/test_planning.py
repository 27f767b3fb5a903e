"""Plans: the order of channels, room, what they are made of, and what they are held against."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.training.engine import layers, planning, sizes
from dprecipe.training.engine.bookkeeping import add_clipped
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.synthetic import synthetic_records
from dprecipe.training.engine.taps import Unplanned
from dprecipe.training.engine.terms import Rows
from dprecipe.training.engine.unit_rows import MeanLoss, RowwiseModel
from dprecipe.training.program.losses import cross_entropy
from tests.training.engine.reference import CLASSES, check_sums, classified


class Seen(nn.Module):
    """The identity; keeps the strides of what it saw last."""

    strides: tuple[int, ...] = ()

    def forward(self, images: Tensor) -> Tensor:
        self.strides = images.stride()
        return images


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [1, 4])
def test_channels_lie_either_way(channels: int, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_faster_last", lambda *given: last)
    seen = Seen()
    net, features = classified(
        seen,
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
        nn.InstanceNorm2d(6, affine=True),
        nn.Tanh(),
        StandardisedConv2d(6, 8, 2),
        shape=(channels, 8, 9),
    )
    check_sums(net, features)
    seen = next(layer for layer in net.modules() if isinstance(layer, Seen))
    clipped_sum(net, cross_entropy, BatchPart(features, torch.zeros(7, dtype=torch.int64)), Clipping.flat(1.0), 7)
    assert seen.strides == ((72 * channels, 1, 9 * channels, channels) if last else (72 * channels, 72, 9, 1))


class Ordered(nn.Module):
    """Stands for a kink at which a rounding decides: with channels last it computes something else."""

    def forward(self, images: Tensor) -> Tensor:
        return images * (2.0 if images.is_contiguous(memory_format=torch.channels_last) else 1.0)


@pytest.mark.parametrize("last", [False, True])
def test_a_pass_is_held_against_one_in_the_same_order(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_faster_last", lambda *given: last)
    net, features = classified(nn.Conv2d(2, 4, 3), Ordered(), nn.Conv2d(4, 3, 2), shape=(2, 6, 5))
    plan = plan_of(net, cross_entropy, features, torch.zeros(7).long())
    assert plan.channels_last == last


def test_the_order_of_channels_of_units_and_of_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "_faster_last", lambda *given: True)
    net, _ = classified(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2), shape=(2, 6, 5))
    several, loss, labels = RowwiseModel(net), MeanLoss(cross_entropy), torch.randint(CLASSES, (5, 3))
    batch = BatchPart(torch.randn(5, 3, 2, 6, 5), labels)
    result_P = clipped_sum(several, loss, batch, Clipping.flat(0.1), 15).value
    expected_P = clipped_sum_of_rows(several, loss, batch, Clipping.flat(0.1), 15).value
    assert float((result_P - expected_P).norm() / expected_P.norm()) < 1e-5
    monkeypatch.setattr(planning, "_faster_last", lambda *given: pytest.fail("there is no image"))
    check_sums(*classified(nn.Conv3d(2, 3, 2), nn.Tanh(), shape=(2, 4, 3, 3)))


def test_a_batch_whose_rows_have_no_room_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MIN_STORED_NUMBERS", 200)
    monkeypatch.setattr(planning, "MIN_PART", 2)
    net, features = classified(nn.Linear(5, 6), nn.Tanh(), shape=(9, 5))
    check_sums(net, features)
    assert plan_of(net, cross_entropy, features, torch.zeros(7).long()).max_records < 7


def test_the_plan_takes_nothing_from_the_records_nor_from_the_generator() -> None:
    net, features = classified(nn.Linear(5, 3), nn.Dropout(0.5), shape=(5,))
    labels = torch.zeros(7, dtype=torch.int64)
    state = torch.random.get_rng_state()
    plan_of(net, cross_entropy, features * torch.nan, labels)
    assert torch.equal(torch.random.get_rng_state(), state)
    result, _ = synthetic_records(features, labels, 3)
    assert torch.equal(result, synthetic_records(features * torch.nan, labels, 3)[0])


def test_a_wrong_formula_is_noticed_and_not_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: object) -> object:
        for name, term in right(call):
            yield name, Rows(term.values * 1.01) if name == "bias" else term

    right = layers.LAYER_TERMS[nn.Linear]
    monkeypatch.setitem(layers.LAYER_TERMS, nn.Linear, wrong)
    net, features = classified(nn.Linear(5, 3), shape=(5,))
    check_sums(net, features, planned=False)
    with pytest.raises(Unplanned, match=r"bias' does not equal plain backpropagation"):
        add_clipped(net, cross_entropy, features, torch.zeros(7).long(), 1.0, torch.zeros(34, dtype=torch.float64))
