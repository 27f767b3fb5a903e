"""The clipped sum against a loop over single units, and against every record that could break it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, find_fallbacks, parameters_of, physical_slices
from dprecipe.training.engine.clipping import Clipping, Norm
from dprecipe.training.engine.rounding import SLACK
from dprecipe.training.program.losses import cross_entropy
from tests.sweeps import sweep

CLIP = 0.5


def model() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 36, 4))
    net[0].bias.requires_grad_(False)
    return net


def batch(count: int, units: Tensor | None = None) -> BatchPart:
    generator = torch.Generator().manual_seed(1)
    return BatchPart(
        torch.randn(count, 1, 8, 8, generator=generator)
        * torch.linspace(0.01, 3, max(count, 1))[:count, None, None, None],
        torch.randint(4, (count,), generator=generator),
        units,
    )


def gradient_of_mean(net: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """One unit's gradient by plain autograd."""
    net = copy.deepcopy(net)
    cross_entropy(net(features), labels).mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.requires_grad and p.grad is not None])


def by_loop(net: nn.Module, data: BatchPart) -> Tensor:
    units = torch.arange(len(data.labels)) if data.units is None else data.units
    total = torch.zeros(sum(p.numel() for p in parameters_of(net).values()))
    for unit in units.unique():
        gradient = gradient_of_mean(net, data.features[units == unit], data.labels[units == unit])
        total += gradient * min(1.0, CLIP / float(gradient.norm()))
    return total


@pytest.mark.parametrize("physical_batch", [1, 3, 7, 100])
@pytest.mark.parametrize("units", [None, torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3, 4])])
def test_equals_a_loop_over_units(physical_batch: int, units: Tensor | None) -> None:
    net, data = model(), batch(11, units)
    clipped = clipped_sum(net, cross_entropy, data, Clipping.flat(CLIP), physical_batch)
    torch.testing.assert_close(clipped.value.float(), by_loop(net, data), rtol=2e-5, atol=2e-6)


def test_t15_the_sum_carries_its_sensitivity() -> None:
    clipped = clipped_sum(model(), cross_entropy, batch(3), Clipping.flat(CLIP), 8)
    assert clipped.sensitivity(Neighbouring.ADD_OR_REMOVE_ONE) == CLIP * (1 + SLACK)
    assert clipped.sensitivity(Neighbouring.REPLACE_ONE) == 2 * CLIP * (1 + SLACK)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e6, 1e30, float("inf"), float("nan")])
def test_t11_adding_one_record_moves_the_sum_by_at_most_the_bound(scale: float) -> None:
    net, data = model(), batch(5)
    before = clipped_sum(net, cross_entropy, data, Clipping.flat(CLIP), 4).value
    more = BatchPart(
        torch.cat([data.features, torch.full((1, 1, 8, 8), scale)]),
        torch.cat([data.labels, torch.tensor([2])]),
    )
    after = clipped_sum(net, cross_entropy, more, Clipping.flat(CLIP), 4).value
    assert torch.isfinite(after).all()
    assert float((after.double() - before.double()).norm()) <= CLIP * (1 + 1e-6)


def test_the_norm_of_one_clipped_record_is_below_the_bound() -> None:
    net = model()
    for seed in range(50):
        features = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 100
        value = clipped_sum(net, cross_entropy, BatchPart(features, torch.tensor([0])), Clipping.flat(CLIP), 4).value
        assert float(value.double().norm()) <= CLIP


def test_a_unit_with_many_records_moves_the_sum_no_further() -> None:
    net = model()
    data = batch(30, torch.tensor([0] * 28 + [1, 2]))
    whole = clipped_sum(net, cross_entropy, data, Clipping.flat(CLIP), 4).value
    rest = clipped_sum(
        net, cross_entropy, BatchPart(data.features[28:], data.labels[28:]), Clipping.flat(CLIP), 4
    ).value
    assert float((whole - rest).norm()) <= CLIP * (1 + 1e-6)


def test_t10_an_empty_batch_is_exactly_zero_and_never_calls_the_model() -> None:
    class Untouchable(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            raise AssertionError("called")

    for units in (None, torch.zeros(0, dtype=torch.int64)):
        empty = BatchPart(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), units)
        assert clipped_sum(Untouchable(3, 2), cross_entropy, empty, Clipping.flat(CLIP), 4).value.tolist() == [0.0] * 8


def test_parts_never_split_a_unit_and_lose_nobody() -> None:
    units = torch.tensor([0] * 3 + [1] * 5 + [2] + [3] + [4] * 2)
    parts = list(physical_slices(units, len(units), 4))
    assert [(part.start, part.stop) for part, _ in parts] == [(0, 3), (3, 8), (8, 12)]
    assert [numbers.tolist() for _, numbers in parts if numbers is not None] == [
        [0] * 3,
        [0] * 5,
        [0, 1, 2, 2],
    ]


def test_the_model_is_left_as_it_was() -> None:
    net = model()
    before = copy.deepcopy(net.state_dict())
    clipped_sum(net, cross_entropy, batch(6), Clipping.flat(CLIP), 4)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("width", sweep([10, 100_000, 1_000_000], (0, 1)))
def test_the_bound_holds_in_exact_arithmetic_however_many_parameters(width: int) -> None:
    """Single precision would add up to 1.5e-4 too much at a million parameters."""
    features = torch.randn(1, width, generator=torch.Generator().manual_seed(0))
    for clip in (1e-6, 1.0, 1e6):
        value = clipped_sum(
            nn.Linear(width, 2), cross_entropy, BatchPart(features, torch.tensor([1])), Clipping.flat(clip), 1
        ).value
        assert value.dtype == torch.float64
        norm = math.sqrt(math.fsum((value * value).tolist()))
        assert norm <= clip
        assert norm >= clip * (1 - 1e-5) or clip == 1e6


def test_adding_a_record_to_many_moves_the_sum_by_no_more_than_the_bound() -> None:
    """20,000 equal records: a sum in single precision would move by more."""
    net = nn.Linear(3, 2)
    features, labels = torch.tensor([[5.0, -3.0, 2.0]]).repeat(20_001, 1), torch.ones(20_001, dtype=torch.int64)
    before = clipped_sum(net, cross_entropy, BatchPart(features[1:], labels[1:]), Clipping.flat(1.0), 20_001).value
    after = clipped_sum(net, cross_entropy, BatchPart(features, labels), Clipping.flat(1.0), 20_001).value
    assert float((after - before).norm()) <= 1.0


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.LSTM(4, 3, batch_first=True)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x)[0][:, -1])


class Elsewhere(nn.Module):
    """Reads the weights of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.inner.weight.T


def test_what_falls_back_to_gradients_of_single_records_is_told_with_the_reason() -> None:
    plain, flat = nn.Linear(4, 2), Clipping.flat(1.0)
    data = BatchPart(torch.zeros(3, 4), torch.zeros(3).long())
    assert find_fallbacks(plain, cross_entropy, data, flat, plain) == ()
    (line,) = find_fallbacks(plain, cross_entropy, data, Clipping.flat(1.0, "l1"), plain)
    assert "L1" in line
    words, recurrent = BatchPart(torch.zeros(3, 5, 4), data.labels), Recurrent()
    (line,) = find_fallbacks(recurrent, cross_entropy, words, flat, recurrent)
    assert line.startswith("gradients of single records for memory.weight_ih_l0, memory.weight_hh_l0")
    assert line.endswith("LSTM is differentiated by itself")
    assert "head" not in line
    elsewhere = Elsewhere()
    (line,) = find_fallbacks(elsewhere, cross_entropy, data, flat, elsewhere)
    assert line == "all gradients are those of single records: a trained parameter is used outside its layer"


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_unit_more_moves_a_sum_by_no_more_than_its_bound(norm: Norm) -> None:
    """With all others' gradients as they come out in other company, at other places of other physical batches."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 3))
    for _ in range(10):
        features, labels = torch.randn(17, 300), torch.randint(3, (17,))
        whole, *others = (
            clipped_sum(net, cross_entropy, BatchPart(features[kept], labels[kept]), Clipping.flat(0.3, norm), 7)
            for kept in (slice(0, 17), slice(1, 17), slice(0, 16))
        )
        for less in others:
            moved = (whole.value - less.value) / whole.bound
            assert float(torch.linalg.vector_norm(moved, ord=1 if norm == "l1" else 2)) <= 1
