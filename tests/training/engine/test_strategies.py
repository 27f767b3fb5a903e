"""Each strategy by itself: norms that are never too small, and the weighted sum."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dprecipe.training.engine import strategies
from dprecipe.training.engine.strategies import (
    Ghost,
    Recomputed,
    Small,
    Sparse,
    StoredGradients,
    Strategy,
    Vectors,
    Weights,
    weighted_sum,
)
from dprecipe.training.engine.terms import Lookups, Products, Rows


def products(positions: int, groups: int = 1) -> Products:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(6, groups, positions, 70, generator=generator)
    return Products(lambda part: left[part], torch.randn(6, groups, 3, positions, generator=generator), 70)


def lookups() -> Lookups:
    generator = torch.Generator().manual_seed(0)
    return Lookups(torch.randint(4, (6, 9), generator=generator), torch.randn(6, 9, 5, generator=generator), 4)


def kept(*terms: Products, twice: bool = False) -> Strategy:
    return (Recomputed if twice else StoredGradients)(terms, 6, terms[0].size, torch.empty(()))


STRATEGIES: dict[str, Callable[[], tuple[Strategy, Tensor]]] = {
    "vectors": lambda: (Vectors(*products(1).vectors(), bias=False), products(1).rows(slice(0, 6))),
    "ghost": lambda: (Ghost(products(5), 6), products(5).rows(slice(0, 6))),
    "kept": lambda: (kept(products(5, 2)), products(5, 2).rows(slice(0, 6))),
    "twice": lambda: (kept(products(5, 2), twice=True), products(5, 2).rows(slice(0, 6))),
    "twice, two terms": lambda: (kept(products(5), products(2), twice=True), _both()),
    "rows": lambda: (Small([Rows(products(1).rows(slice(0, 6)))], 6), products(1).rows(slice(0, 6))),
    "sparse": lambda: (Sparse(lookups()), lookups().rows(slice(0, 6))),
}


def _both() -> Tensor:
    return products(5).rows(slice(0, 6)) + products(2).rows(slice(0, 6))


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("name", STRATEGIES)
def test_all_strategies_agree_and_norms_are_never_too_small(
    name: str, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dprecipe.training.engine.strategies.CACHE", 1000)  # several parts
    monkeypatch.setattr("dprecipe.training.engine.strategies.LARGE", 1)
    strategy, rows_NP = STRATEGIES[name]()
    weights_N = torch.tensor([1.0, 0.5, 0.0, 0.25, 1e-3, 1.0], dtype=torch.float64)
    squares_N = strategy.squares()
    result_P = torch.ones(rows_NP.shape[1], dtype=torch.float64)
    strategy.add([result_P], Weights(weights_N, block_size=block_size))
    torch.testing.assert_close(squares_N, rows_NP.double().square().sum(1), rtol=2e-5, atol=0)
    torch.testing.assert_close(result_P - 1, weights_N @ rows_NP.double(), rtol=1e-5, atol=1e-6)
    for n in range(6):  # what one record adds is no longer than its norm
        alone_P = torch.zeros(len(result_P), dtype=torch.float64)
        strategy, _ = STRATEGIES[name]()  # whose rows no other sum has used up
        strategy.squares()
        strategy.add([alone_P], Weights(torch.eye(6, dtype=torch.float64)[n]))
        assert float(alone_P.norm()) <= float(squares_N[n].sqrt()) * (1 + 1e-14)


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("weight", [0.0, math.nan])
def test_rows_without_weight_are_zeros_whatever_they_hold(weight: float, owned: bool) -> None:
    """In place where they are the caller's own; the others keep their bits."""
    rows_NP = torch.randn(4, 7)
    before_NP = rows_NP.clone()
    rows_NP[1], rows_NP[3] = math.nan, math.inf
    weights = Weights(torch.tensor([1.0, weight, 0.5, weight], dtype=torch.float64))
    cleaned_RP = weights.clean(rows_NP[1:], slice(1, 4), owned=owned)
    assert torch.equal(cleaned_RP, torch.stack([torch.zeros(7), before_NP[2], torch.zeros(7)]))
    assert torch.equal(rows_NP[0], before_NP[0])
    assert bool(rows_NP[1].isnan().all()) is not owned


@pytest.mark.parametrize("block_size", [1, 2, 8])
def test_a_sum_of_no_rows_is_zero(block_size: int) -> None:
    weights = Weights(torch.zeros(0, dtype=torch.float64), block_size=block_size)
    assert torch.equal(weighted_sum(torch.zeros(0, 3), weights), torch.zeros(3, dtype=torch.float64))


def test_rows_that_come_out_longer_the_second_time_are_shortened() -> None:
    values = torch.ones(3, 100)
    strategy = Recomputed([Rows(values)], 3, 100, torch.empty(()))
    norms_N = strategy.squares().sqrt()
    values *= 1.5
    result_P = torch.zeros(100, dtype=torch.float64)
    strategy.add([result_P], Weights(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)))
    assert float(result_P.norm()) <= float(norms_N[0])


@pytest.mark.parametrize("count", [1, 5, 6])
@pytest.mark.parametrize("block_size", [2, 3, 100])
def test_blocks_that_are_added_by_one_product_are_those_that_are_added_in_turn(count: int, block_size: int) -> None:
    """A GPU's way, with numbers that single precision adds exactly within a block, and not over two."""
    values = torch.arange(count * 4.0).view(count, 4) + 2.0**23
    weights = Weights(torch.full((count,), 1.0, dtype=torch.float64), True, block_size)
    expected = weighted_sum(values, weights)
    found = strategies._sum_blocks(values, weights)
    assert found.dtype == torch.float64
    if block_size == 2:
        assert torch.equal(found, values.double().sum(0))
    assert torch.allclose(found, expected, rtol=1e-6)
