"""Large products on sequences, and the head of a language model: sums tile by tile, held against a loop in double
precision; what a record adds stays within its clip norm, whatever its numbers."""

from __future__ import annotations

import copy
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import NextTokens, OffsetRMSNorm, TransposedLinear
from dprecipe.training.engine import planning, tiles
from dprecipe.training.engine.bookkeeping import STRATEGY_TEXTS, add_clipped, describe_plan
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.rounding import SLACK, Reserve
from dprecipe.training.engine.strategies import Weights
from dprecipe.training.engine.terms import Products
from dprecipe.training.engine.tiles import Allowance, TiledProducts
from dprecipe.training.program.losses import NextTokenLoss

TOKENS = 700


@pytest.fixture(autouse=True)
def _no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the rows of so many records as are taken at least."""
    monkeypatch.setattr(planning, "max_stored_numbers", lambda device: 1 << 18)


class Decoder(nn.Module):
    """Embedded tokens, layers that see one place each, a running mean over the places before, and the head."""

    def __init__(self, layer: nn.Module, width: int, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, width)
        self.norm, self.layer = OffsetRMSNorm(width, 1e-6), layer
        self.lm_head = NextTokens(
            cast(nn.Parameter, self.tokens.weight) if tied else nn.Parameter(torch.randn(TOKENS, width))
        )

    def forward(self, features: Tensor) -> Tensor:
        ids, labels = features.nan_to_num(0).clamp(-100, TOKENS - 1).long().unbind(1)
        hidden = self.tokens(ids.clamp(min=0))
        hidden = hidden + torch.tanh(self.layer(self.norm(hidden)))
        hidden = hidden.cumsum(1) / torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
        marked: Tensor = self.lm_head(hidden, labels) * (1 + 0.0 * features.sum((1, 2)))[:, None]
        return marked


def built(layer: nn.Module, width: int, tied: bool) -> nn.Module:
    model = Decoder(layer, width, tied)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


def records(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Of different numbers of learned tokens; tokens repeat within a record."""
    ids = torch.randint(TOKENS, (count, length))
    ids[:, length // 2 :] = ids[:, : length - length // 2]
    labels = ids.clone()
    labels[0, : length // 3] = -100
    ids[1, length // 2 :], labels[1, length // 2 :] = 0, -100
    return torch.stack([ids, labels], 1).float(), (labels[:, 1:] >= 0).sum(1)


def looped(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """(N, P): gradients of single records, in double precision."""
    exact, loss = copy.deepcopy(model).double(), NextTokenLoss()
    rows = []
    for i in range(len(labels)):
        exact.zero_grad()
        loss(exact(features[i : i + 1].double()), labels[i : i + 1]).sum().backward()  # type: ignore[no-untyped-call]
        rows.append(torch.cat([p.grad.flatten() for p in exact.parameters() if p.grad is not None]))
    return torch.stack(rows)


LAYERS = [
    (nn.Sequential(nn.Linear(256, 260), nn.Linear(260, 256)), 6),
    (TransposedLinear(256, 256), 6),
    (nn.Linear(256, 256, bias=False), 180),
]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("layer", "length"), LAYERS, ids=["pairs", "transposed", "rows"])
def test_sums_are_those_of_a_loop(layer: nn.Module, length: int, tied: bool) -> None:
    torch.manual_seed(0)
    model, loss = built(copy.deepcopy(layer), 256, tied), NextTokenLoss()
    features, labels = records(5, length)
    plan = describe_plan(model, loss, features, labels)
    assert "tokens at a time" in plan["lm_head.weight" if not tied else "tokens.weight"]
    assert any("outputs at a time" in text for text in plan.values())
    rows_NP = looped(model, features, labels)
    norms_N = rows_NP.norm(dim=1)
    for clip in (float(norms_N.median()), 2 * float(norms_N.max())):
        expected_P = (clip / norms_N).clamp(max=1.0) @ rows_NP
        for reserve in (None, Reserve(len(labels))):
            total_P = torch.zeros_like(expected_P)
            add_clipped(model, loss, features, labels, Clipping.flat(clip), total_P, reserve)
            assert float((total_P - expected_P).norm() / expected_P.norm()) < 5e-5
        one_P = torch.zeros_like(expected_P)
        add_clipped(model, loss, features[2:3], labels[2:3], Clipping.flat(clip), one_P)
        assert float(one_P.norm()) <= clip


@pytest.mark.parametrize("records_with_room", [7, 8])
def test_rows_of_large_products_are_kept_where_there_is_room(
    records_with_room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, loss = built(nn.Linear(256, 256, bias=False), 256, tied=True), NextTokenLoss()
    trained = sum(parameter.numel() for parameter in model.parameters())
    monkeypatch.setattr(planning, "max_stored_numbers", lambda device: records_with_room * trained)
    features, labels = records(5, 180)
    kept = describe_plan(model, loss, features, labels)["layer.weight"] == STRATEGY_TEXTS["kept"]
    assert kept == (records_with_room == planning.MIN_PART)
    rows_NP = looped(model, features, labels)
    norms_N = rows_NP.norm(dim=1)
    clip = float(norms_N.median())
    expected_P = (clip / norms_N).clamp(max=1.0) @ rows_NP
    total_P = torch.zeros_like(expected_P)
    add_clipped(model, loss, features, labels, Clipping.flat(clip), total_P, Reserve(len(labels)))
    assert float((total_P - expected_P).norm() / expected_P.norm()) < 5e-5


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    torch.manual_seed(0)
    model, loss = built(nn.Linear(256, 256), 256, tied=True), NextTokenLoss()
    features, labels = records(4, 6)
    broken = features.clone()
    broken[2, 1, 3] = torch.nan
    sums = []
    for some, numbers in ((broken, labels), (features[[0, 1, 3]], labels[[0, 1, 3]])):
        sums.append(torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64))
        add_clipped(model, loss, some, numbers, Clipping.flat(0.1), sums[-1], Reserve(4))
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-7)
    assert float(sums[1].norm()) > 0.1


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("positions", [4, 200])
def test_no_record_adds_more_than_its_stated_norm(positions: int, scale: float) -> None:
    """Positions that cancel to the last bits: what rounding leaves of them is no part of the norm."""
    torch.manual_seed(1)
    left, right = torch.randn(1, positions, 300), scale * torch.randn(1, positions, 280)
    left[0, 1::2] = left[0, ::2] * (1 + 1e-6 * torch.randn(positions // 2, 1))
    right[0, 1::2] = -right[0, ::2]
    term = Products(lambda part: left[part, None], right.mT[:, None], 300)
    strategy = TiledProducts(term, 1, by_pairs=positions < 100)
    stated = float(strategy.squares().sqrt())
    for block_size in (1, 8):
        total = torch.zeros(300 * 280, dtype=torch.float64)
        strategy.add([total], Weights(torch.ones(1, dtype=torch.float64), True, block_size))
        assert 0 < float(total.norm()) <= stated * (1 + SLACK)
    exact = (right[0].double().T @ left[0].double()).norm()
    assert stated >= float(exact)


@pytest.mark.parametrize("alike", [0.0, 1.0, 100.0])
@pytest.mark.parametrize("positions", [16, 64])
def test_a_norm_of_pairs_is_hardly_more_than_the_true_one(positions: int, alike: float) -> None:
    """Pairs are in single precision; positions that are nearly `alike` round alike."""
    generator = torch.Generator().manual_seed(positions)
    left, right = (torch.randn(3, positions, size, generator=generator) for size in (512, 384))
    left, right = left + alike * left[:, :1], right + alike * right[:, :1]
    term = Products(lambda part: left[part, None], right.mT[:, None], 512)
    strategy = TiledProducts(term, 3, by_pairs=True)
    stated_N = strategy.squares()
    exact_N = (right.mT.double() @ left.double()).square().sum((1, 2))
    assert bool((stated_N >= exact_N).all())
    assert bool((stated_N <= exact_N * (1 + 5e-4)).all())


def test_tiles_beyond_the_stated_norm_are_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the norm were stated too small by any factor, a record would still add no more than stated."""
    rows_RP = torch.randn(3, 1000)
    squares_R = rows_RP.double().square().sum(1)
    allowance = Allowance(squares_R * torch.tensor([0.25, 1.0, 4.0]))
    factors = torch.stack([allowance.take(slice(0, 3), part) for part in torch.split(rows_RP, 250, 1)])
    added = torch.stack([part.double().square().sum(1) for part in torch.split(rows_RP, 250, 1)]) * factors.square()
    assert bool((added.sum(0) <= squares_R * torch.tensor([0.25, 1.0, 4.0])).all())
    assert bool((factors[:, 2] == 1).all())
    assert bool((factors[-1, 0] < 0.01).all())
    torch.manual_seed(0)
    model, loss = built(nn.Linear(256, 256), 256, tied=True), NextTokenLoss()
    features, labels = records(1 + 1, 6)
    describe_plan(model, loss, features, labels)  # made with true norms
    monkeypatch.setattr(tiles, "MEASURED", 0.25)
    monkeypatch.setattr(tiles, "ROUNDING", 0.0)
    total_P = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    add_clipped(model, loss, features[:1], labels[:1], Clipping.flat(0.1), total_P)
    assert float(total_P.norm()) <= 0.1


def test_parts_of_the_head_hold_few_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut into single records and single tokens, the sum is the same."""
    torch.manual_seed(0)
    model, loss = built(nn.Linear(256, 256), 256, tied=True), NextTokenLoss()
    features, labels = records(4, 6)
    sums = []
    for limit in (1 << 22, 1):
        monkeypatch.setattr("dprecipe.models.zoo.layers.LOGITS", limit)
        sums.append(torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64))
        add_clipped(model, loss, features, labels, Clipping.flat(0.1), sums[-1], Reserve(4))
    torch.testing.assert_close(*sums, rtol=1e-5, atol=1e-7)
