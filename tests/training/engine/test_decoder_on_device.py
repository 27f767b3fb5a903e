"""What a decoder does differently on a GPU, tried without one: on a device of shapes alone, which refuses tensors of
other devices, and every operation whose result the CPU would wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.lora import add_adapters
from dprecipe.models.schema import Lora
from dprecipe.models.zoo import layers
from dprecipe.models.zoo.causal_lm import CausalLanguageModel, causal_model
from dprecipe.training.engine import shares, tiles
from dprecipe.training.engine.full_precision import Reduced
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.recompute import Recompute
from dprecipe.training.engine.shares import shares_of
from dprecipe.training.engine.strategies import GradientStore, Weights
from dprecipe.training.engine.terms import Products
from dprecipe.training.engine.tiles import add_lookups, tile_shape
from dprecipe.training.program.losses import NextTokenLoss
from tests.decoders import DECODERS, LENGTH, VOCABULARY

CPU, CUDA, SHAPES = torch.device("cpu"), torch.device("cuda", 0), torch.device("meta")


def decoder(family: str) -> CausalLanguageModel:
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    return causal_model(check_decoder_config(DECODERS[family]), LENGTH)


@pytest.fixture
def mixed_on_shapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Mixed precision is the CPU's there: torch knows of none for it."""
    enabled, kind_of, context = torch.is_autocast_enabled, torch.get_autocast_dtype, torch.autocast

    def known(kind: str) -> str:
        return "cpu" if kind == "meta" else kind

    class Mixed(context):  # type: ignore[misc, valid-type]
        def __init__(self, kind: str, *more: Any, **named: Any) -> None:
            super().__init__(known(kind), *more, **named)

    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind="cpu": enabled(known(kind)))
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: kind_of(known(kind)))
    monkeypatch.setattr(torch, "autocast", Mixed)
    return


@pytest.mark.usefixtures("mixed_on_shapes")
@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt2", "all"), ("qwen3", "all"), ("gemma", "recompute"), ("gpt2", "adapters"), ("qwen3", "half")],
)
def test_all_of_a_step_is_on_the_device_and_nothing_waits_for_it(family: str, kind: str) -> None:
    """Of heads that are tied and not, and of positions that are looked up and rotary."""
    own = decoder(family)
    if kind == "adapters":
        add_adapters(own, Lora(rank=2), (), 0)
    model: nn.Module = {"recompute": lambda: Recompute(own, own.blocks), "half": lambda: Reduced(own)}.get(
        kind, lambda: own
    )()
    tokens = torch.randint(VOCABULARY, (5, 1, LENGTH)).expand(5, 2, LENGTH).float()
    labels, loss = torch.full((5,), LENGTH - 1), NextTokenLoss()
    plan = plan_of(model, loss, tokens, labels)
    model.to(SHAPES)
    if own.is_tied:  # moved to a real device, one parameter stays one
        own.lm_head.weight = own.embedding.weight  # type: ignore[assignment]
    shares = shares_of(model, loss, tokens.to(SHAPES), labels.to(SHAPES), plan)
    assert kind == "adapters" or "tokens" in {share.chosen for share in shares}
    weights = Weights(torch.empty(5, dtype=torch.float64, device=SHAPES), block_size=3)
    for share in shares:
        assert share.strategy.squares().device == SHAPES
        sizes = [place.stop - place.start for place in share.slices]
        share.strategy.add([torch.empty(size, dtype=torch.float64, device=SHAPES) for size in sizes], weights)


@pytest.mark.parametrize("family", ["gpt2", "qwen3"])
def test_a_decoder_reads_and_writes_on_the_device(family: str) -> None:
    model, tokens = decoder(family).to(SHAPES), torch.empty(5, 3, dtype=torch.int64, device=SHAPES)
    with torch.no_grad():
        assert model(torch.empty(5, 2, LENGTH, device=SHAPES)).device == SHAPES
        _, cache = model.next_logits(tokens)
        logits, _ = model.next_logits(tokens[:, :1], cache)
    assert (logits.device, logits.shape) == (SHAPES, (5, VOCABULARY))


def test_norms_of_queries_in_mixed_precision_raise_no_warning() -> None:
    """torch warns of values in bfloat16 beside weights in single precision, and takes no fused kernel."""
    model, tokens = Reduced(decoder("qwen3")), torch.ones(3, 2, LENGTH)
    plan_of(model, NextTokenLoss(), tokens, torch.full((3,), LENGTH - 1))  # warnings are errors here


def test_tiles_are_larger_where_kernels_take_long_to_start() -> None:
    """Of a head of 32,000 tokens, the logits of a tile count too: 64 records of 512 places had 2 GiB of them."""
    records, tokens, width = 64, 32_000, 768
    assert tile_shape(records, tokens, width, CPU, records * 511) == (4, 128)
    together, size = tile_shape(records, tokens, width, CUDA, records * 511)
    assert together == records
    assert tiles.OUTPUTS <= size < tokens
    assert size * max(records * width, records * 511) <= tiles.CACHE << 9
    assert tile_shape(8, 10_000, 64, CUDA, 1 << 20)[1] == (tiles.CACHE << 9) >> 20
    assert layers.count_logits(CUDA) == 16 * layers.count_logits(CPU)


@pytest.mark.parametrize("start", [0, 5, 20])
def test_lookups_are_added_without_counting_them(start: int) -> None:
    torch.manual_seed(0)
    places, gradients = torch.randint(30, (4, 9)) - start, torch.randn(4, 9, 6)
    expected = torch.zeros(4, 7, 6)
    for record in range(4):
        for place, gradient in zip(places[record].tolist(), gradients[record], strict=True):
            if 0 <= place < 7:
                expected[record, place] += gradient
    for counted in (True, False):
        rows = torch.zeros(4, 7, 6)
        add_lookups(rows, places, gradients, counted=counted)
        torch.testing.assert_close(rows, expected)


def test_lookups_of_a_record_that_is_not_finite_stay_its_own() -> None:
    places, gradients, rows = torch.tensor([[0, 9], [0, 1]]), torch.ones(2, 2, 3), torch.zeros(2, 4, 3)
    gradients[0] = torch.nan
    add_lookups(rows, places, gradients, counted=False)
    assert rows[1].sum() == 6


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("positions", [6, 300])
def test_off_a_cpu_the_clock_decides_where_norms_of_tiles_come_from(
    positions: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of positions, or the tiles themselves: the sums of both are the same."""
    torch.manual_seed(0)
    left, right = torch.randn(3, positions, 260), torch.randn(3, 256, positions)
    term = Products(lambda part: left[part, None], right[:, None], 260)
    arguments = [term], 3, 260 * 256
    more = 1 << 25, GradientStore()
    on_cpu = shares.list_candidates(*arguments, torch.empty(()), *more)
    assert list(on_cpu) == ["tiles" if positions == 6 else "tiles_twice"]
    tried = shares.list_candidates(*arguments, torch.empty((), device=SHAPES), *more)
    assert set(tried) == {"tiles", "tiles_twice"}
    time, real = [0.0], tiles.squares_of_pairs

    def timed(*given: Any, **named: Any) -> torch.Tensor:
        time[0] += 1.0
        return real(*given, **named)

    monkeypatch.setattr(tiles, "squares_of_pairs", timed)
    monkeypatch.setattr(shares, "read_clock", lambda device: time[0] if slow else -time[0])
    weights = Weights(torch.ones(3, dtype=torch.float64), sound=True)
    assert shares.choose_cheapest(tried, weights, 260 * 256) == ("tiles_twice" if slow else "tiles")
    sums = []
    for make in tried.values():
        strategy, total = make(), torch.zeros(260 * 256, dtype=torch.float64)
        expected = (right @ left).flatten(1).double().norm(dim=1)
        torch.testing.assert_close(strategy.squares().sqrt(), expected, rtol=1e-4, atol=0)
        strategy.add([total], weights)
        sums.append(total)
    torch.testing.assert_close(*sums)
