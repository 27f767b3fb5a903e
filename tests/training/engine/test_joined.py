"""Rows of several parameters in one memory: their norms, their sum, and who adds nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.training.engine import clipped_sum as clipped_sum_module
from dprecipe.training.engine import layers, planning, shares
from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping, layer_numbers
from dprecipe.training.engine.joined import Joined, is_joinable
from dprecipe.training.engine.planning import forget_plans
from dprecipe.training.engine.rounding import BLOCK
from dprecipe.training.engine.strategies import GradientStore, Weights, _even_block, weighted_sum
from dprecipe.training.engine.terms import Products, Rows
from dprecipe.training.program.losses import cross_entropy

COUNT = 12
LIKE = torch.empty(())


@pytest.fixture
def joining(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for a device on which rows are joined, and standardised on their sum."""
    for module in (shares, layers, planning, clipped_sum_module):
        monkeypatch.setattr(module, "one_size", lambda device: True)


def products(inputs: int, outputs: int, positions: int = 3) -> Products:
    left = torch.randn(COUNT, 1, positions, inputs)
    return Products(lambda part: left[part], torch.randn(COUNT, 1, outputs, positions), inputs)


def made(store: GradientStore | None = None) -> tuple[Joined, Tensor]:
    """Joined rows of 5 parameters, and the same one beside the other."""
    torch.manual_seed(0)
    multiplied, there = [products(40, 30), products(7, 5, 1), products(3, 2)], [torch.randn(COUNT, n) for n in (1, 300)]
    rows_NP = torch.cat([*[term.rows(slice(0, COUNT)) for term in multiplied], *there], 1)
    store = GradientStore() if store is None else store
    return Joined(multiplied, [Rows(values) for values in there], COUNT, LIKE, store), rows_NP


SIZES = (1200, 35, 6, 1, 300)


@pytest.mark.parametrize("block_size", [1, 5, COUNT])
def test_norms_and_sum_are_those_of_the_rows(block_size: int) -> None:
    joined, rows_NP = made()
    exact_N = rows_NP.double().square().sum(1)
    squares_N = joined.squares()
    assert bool((squares_N >= exact_N).all())
    assert bool((squares_N <= exact_N * (1 + 2 * (BLOCK + 6) * 2.0**-24)).all())
    weights_N = torch.rand(COUNT, dtype=torch.float64)
    totals = [torch.ones(size, dtype=torch.float64) for size in SIZES]
    joined.add(totals, Weights(weights_N, True, block_size))
    assert torch.allclose(torch.cat(totals), 1 + weights_N @ rows_NP.double(), rtol=1e-5, atol=1e-5)


def test_memory_that_had_other_numbers_adds_none_of_them() -> None:
    """Between the last parameter and the end of its block: they would count in every norm, and in no sum."""
    store = GradientStore()
    store.rows(COUNT, 1 << 11, torch.float32, LIKE.device).fill_(1e6)
    assert torch.equal(made(store)[0].squares(), made()[0].squares())


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    for value in (float("nan"), float("inf")):
        joined, rows_NP = made()
        joined._rows_NP[4, 17] = value
        assert not bool(joined.squares()[4] <= 2.0**100)
        weights_N = torch.ones(COUNT, dtype=torch.float64)
        weights_N[4] = 0.0
        totals = [torch.zeros(size, dtype=torch.float64) for size in SIZES]
        joined.add(totals, Weights(weights_N))
        assert torch.allclose(torch.cat(totals), weights_N @ rows_NP.double())


def test_what_can_be_joined() -> None:
    term = products(4, 4)
    several = Products(term.left, torch.randn(COUNT, 2, 4, 3), 4)
    double = Rows(torch.zeros(COUNT, 2, dtype=torch.float64))
    assert is_joinable([term], LIKE)
    for terms in ([term, term], [several], [double]):
        assert not is_joinable(terms, LIKE)


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        StandardisedConv2d(4, 6, 3, stride=2),
        nn.Tanh(),
        StandardisedConv2d(6, 5, 1),
        nn.Flatten(),
        nn.Linear(45, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


@pytest.mark.usefixtures("joining")
@pytest.mark.parametrize("by_layer", [False, True])
def test_a_sum_is_that_of_single_records(by_layer: bool) -> None:
    """Several parts, parameters that are standardised and others, in one group or in one for each layer; a record that
    is not finite adds nothing."""
    model = convolutional()
    batch = BatchPart(torch.randn(40, 2, 8, 8), torch.arange(40) % 3)
    batch.features[7, 0, 0, 0] = float("nan")
    numbers = layer_numbers(model)
    clipping = Clipping((0.2,) * (max(numbers) + 1), numbers) if by_layer else Clipping.flat(0.2)
    found = clipped_sum(model, cross_entropy, batch, clipping, 16).value
    assert set(describe_plan(model, cross_entropy, batch.features, batch.labels).values()) == {
        "gradients of single records, kept"
    }
    expected = clipped_sum_of_rows(model, cross_entropy, batch, clipping, 16).value
    assert float((found - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.usefixtures("joining")
def test_what_is_computed_of_weights_is_of_these_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for all parts of a batch, and anew for the next, however the weights were changed."""
    made = []
    real = layers.SumStandardisation
    monkeypatch.setattr(layers, "SumStandardisation", lambda *given: made.append(given) or real(*given))
    model = convolutional()
    batch = BatchPart(torch.randn(40, 2, 8, 8), torch.arange(40) % 3)
    for change in (1.0, -1.0, 5.0):
        for parameter in model.parameters():
            parameter.data.add_(change * torch.randn(parameter.shape))
        clipped_sum(model, cross_entropy, batch, Clipping.flat(0.2), 8)  # makes the plan
        made.clear()
        found = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.2), 8).value
        assert len(made) == 2
        expected = clipped_sum_of_rows(model, cross_entropy, batch, Clipping.flat(0.2), 8).value
        assert float((found - expected).norm() / expected.norm()) < 1e-4
    forget_plans(model)


def test_blocks_are_even_where_they_can_be() -> None:
    for count in range(1, 200):
        for largest in range(1, 210):
            size = _even_block(count, largest)
            assert 1 <= size <= min(largest, count)
            assert 2 * size > min(largest, count)
    assert _even_block(368, 116) == 92
    assert _even_block(97, 50) == 50


def test_an_owned_tensor_is_cleaned_where_it_is() -> None:
    """No copy of all rows is made for the records that add nothing."""
    rows_NP, weights_N = torch.randn(6, 20), torch.ones(6, dtype=torch.float64)
    rows_NP[2], weights_N[2] = float("nan"), 0.0
    expected = weights_N @ torch.nan_to_num(rows_NP.double())
    meta = Weights(torch.ones(6, dtype=torch.float64, device="meta"))
    values = torch.empty(6, 20, device="meta")
    assert meta.clean(values, owned=True) is values
    assert meta.clean(values) is not values
    assert torch.allclose(weighted_sum(rows_NP, Weights(weights_N), owned=True), expected)
