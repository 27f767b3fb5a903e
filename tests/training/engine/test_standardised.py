"""Norms of gradients that standardisation shortens, from rows before it does, and its derivative on sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import StandardisedConv2d, standardise_weights
from dprecipe.training.engine import layers
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.rounding import row_squares
from dprecipe.training.engine.standardised import SumStandardisation, squares_of
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
    squares, true = squares_of([(case.pull, case.rows)], case.rows), case.true.square().sum(1)
    whole = row_squares(case.rows)
    assert bool((squares >= true).all())
    # What is added is a share of the square before: four times that of one projection, and what `row_squares` adds.
    assert bool((squares <= true + whole * 6e-5 * 1.01).all())


def test_the_share_that_is_added_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, projections that are rounded up leave too little: planted here by a rounding of its full size."""
    case = Case(0.0, held=False)
    real = case.pull.projections
    error = (3 * CHANNELS + 4) * 2.0**-24
    monkeypatch.setattr(case.pull, "projections", lambda rows: real(rows) * (1 + error))
    squares, true = squares_of([(case.pull, case.rows)], case.rows), case.true.square().sum(1)
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
    monkeypatch.setattr(layers, "one_size", lambda device: True)
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


SHAPES = [(1, 1, 1), (1, 3, 1), (3, 2, 3), (3, 4, 15), (3, 4, 16), (1, 2, 300), (3, 2, 257)]
"""Positions, outputs and numbers at each: of one number, of no whole run, of runs of 16 and more."""
WEIGHTS = {
    "random": lambda weight: weight,
    "at the bound": lambda weight: 0.01 * torch.nn.functional.normalize(weight - weight.mean(1, keepdim=True)),
    "far from zero": lambda weight: 1e5 + 0.01 * weight,
    "equal": torch.ones_like,
    "large": lambda weight: 1e18 * weight,
}


def make_rows(pull: SumStandardisation, shape: tuple[int, int, int], kind: str) -> Tensor:
    """(20, K, O, Q) float64: along the directions as they are rounded, nearly so, or with numbers of many sizes."""
    positions, outputs, each = shape
    along = pull._directions_Bn2.double().view(positions, outputs, each, 2)
    rows = (along * torch.randn(20, 1, outputs, 1, 2, dtype=torch.float64)).sum(-1)
    rest = torch.randn(rows.shape, dtype=torch.float64)
    if kind == "sizes":
        return rest * 10.0 ** (12 * torch.rand(rows.shape, dtype=torch.float64) - 6)
    return rows + (1e-4 * rest if kind == "near" else 0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["along", "near", "sizes"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_row_gets_a_norm_that_is_too_small(weights: str, kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for positions, outputs, each in SHAPES:
        weight = WEIGHTS[weights](torch.randn(outputs, positions * each, dtype=torch.float64)).to(dtype)
        shape = positions, outputs, each
        pull = SumStandardisation(weight, lambda w, shape=shape: w.view(shape[1], shape[0], shape[2]).movedim(1, 0))
        for size in (1.0, 1e15, 1e-3, 1e-15, 1e-19, 1e-30, 1e-44):
            rows = (size * make_rows(pull, shape, kind)).to(dtype).flatten(1)
            by_output = rows.double().view(-1, *shape).movedim(1, 2).flatten(2).numpy().astype(np.longdouble)
            units = pull._units_OI.numpy().astype(np.longdouble)
            pulled = by_output - by_output.mean(-1, keepdims=True) - units * (by_output * units).sum(-1, keepdims=True)
            true = (pulled**2).sum((1, 2))
            assert (squares_of([(pull, rows)], rows).numpy() >= true).all(), (shape, size)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e20, 3e38])
def test_a_row_that_is_not_finite_has_no_finite_norm(value: float) -> None:
    """Nor one whose squares or projections are too large for single precision; its record then adds nothing."""
    case = Case(1.0)
    rows = case.rows.clone()
    rows[0], rows[1, 7] = value, -value
    squares = squares_of([(case.pull, rows)], rows)
    assert not bool(torch.isfinite(squares[:2]).any())
    assert bool(torch.isfinite(squares[2:]).all())
