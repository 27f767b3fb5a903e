"""Norms of gradients that standardisation shortens, from rows before it does, and its derivative on sums."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import StandardisedConv2d, standardise_weights
from dprecipe.training.engine import windows
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.norms import row_squares
from dprecipe.training.engine.standardised import SumStandardisation
from dprecipe.training.program.losses import cross_entropy

OUTPUTS, CHANNELS = 6, 40


class Case:
    """Rows of which standardisation leaves much, little, or nearly nothing."""

    def __init__(self, leaves: float, *, held: bool = True) -> None:
        torch.manual_seed(0)
        self.weight = torch.randn(OUTPUTS, CHANNELS, 3, 3) + 0.3
        if held:
            self.weight[0] = 0.5 + 1e-6 * torch.randn(CHANNELS, 3, 3)  # so short that its length is held from below
        self.pull = SumStandardisation(self.weight, self.unordered)
        units = torch.nn.functional.normalize(standardise_weights(self.weight).flatten(1))
        removed = torch.randn(50, OUTPUTS, 1) * units + torch.randn(50, OUTPUTS, 1) / 19.0
        rest = leaves * torch.randn(50, OUTPUTS, 9 * CHANNELS) / 19.0
        gradients = (removed + rest).view(50, *self.weight.shape)
        self.rows = torch.stack(
            [self.unordered(one) for one in self.pull.scaled(gradients.flatten(2)).view_as(gradients)]
        )
        self.rows = self.rows.flatten(1)
        self.true = torch.stack([self.ordered(row) for row in self.rows.double()])

    @staticmethod
    def unordered(weight: Tensor) -> Tensor:
        return weight.permute(2, 0, 3, 1).flatten(2)

    def ordered(self, row: Tensor) -> Tensor:
        by_place = row.view(3, OUTPUTS, 3, CHANNELS).permute(1, 3, 0, 2)
        return self.pull.pulled_back(by_place.flatten())


@pytest.mark.parametrize("leaves", [3.0, 0.1, 1e-3, 0.0])
def test_norms_are_never_too_small_and_hardly_too_large(leaves: float) -> None:
    case = Case(leaves)
    squares, true = case.pull.squares(case.rows), case.true.square().sum(1)
    whole = row_squares(case.rows)
    assert bool((squares >= true).all())
    # What is added is a share of the square before: four times that of one projection, and what `row_squares` adds.
    assert bool((squares <= true + whole * 6e-5 * 1.01).all())


def test_the_share_that_is_added_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, projections that are rounded up leave too little: planted here by a rounding of its full size."""
    case = Case(0.0, held=False)
    real = case.pull._projections
    error = (3 * CHANNELS + 4) * 2.0**-24
    monkeypatch.setattr(case.pull, "_projections", lambda rows: real(rows) * (1 + error))
    squares, true = case.pull.squares(case.rows), case.true.square().sum(1)
    assert bool((squares >= true).all())
    removed = real(case.rows).mul(1 + error).square().sum((0, 2))
    assert not bool((row_squares(case.rows) - removed >= true).all())


def test_sums_are_those_of_plain_backpropagation() -> None:
    """In double precision to its last digits: the derivative is that of autograd, also where it is held from below."""
    case = Case(1.0)
    weight = case.weight.double().requires_grad_()
    gradients = torch.randn(OUTPUTS, CHANNELS, 3, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(standardise_weights(weight), weight, gradients)
    pull = SumStandardisation(weight.detach(), case.unordered)
    found = pull.pulled_back(pull.scaled(gradients.flatten(1)).flatten())
    assert torch.allclose(found, expected.flatten(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("block", [4, 10**6], ids=["twice", "kept"])
def test_rows_longer_than_their_gradients_are_added_in_double_precision(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs far from zero, of which standardisation takes nearly all away: single precision would show in the sum."""
    monkeypatch.setattr(windows, "one_size", lambda device: True)
    torch.manual_seed(0)
    net = nn.Sequential(StandardisedConv2d(2, 4, 3), nn.Flatten(), nn.Linear(36, 3))
    features = 1000.0 + torch.randn(64, 2, 5, 5)
    monkeypatch.setattr("dprecipe.training.engine.planning.MIN_PART", block)
    batch = BatchPart(features, torch.randint(3, (64,)))
    clipping = Clipping((1.0, 1.0), groups=(0, 0, 1, 1))
    found = clipped_sum(net, cross_entropy, batch, clipping, 64).value
    expected = clipped_sum_of_rows(
        net.double(), cross_entropy, BatchPart(features.double(), batch.labels), clipping, 64
    )
    assert float((found - expected.value).norm() / expected.value.norm()) < 1e-2
