"""Blocks computed again in the backward pass: the same sums, from fewer stored numbers."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.lora import add_adapters
from dprecipe.models.schema import Lora
from dprecipe.models.zoo.causal_lm import causal_model
from dprecipe.training.engine.backward import run_pass
from dprecipe.training.engine.bookkeeping import add_clipped, describe_plan
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.full_precision import Reduced
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.recompute import Recompute
from dprecipe.training.program.losses import NextTokenLoss, cross_entropy
from tests.decoders import DECODERS, LENGTH, VOCABULARY
from tests.training.engine.reference import CLASSES, check_sums

WIDTH = 12


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, shift: Tensor) -> Tensor:
        mixed = self.norm(x) + shift
        result: Tensor = x + self.out(torch.tanh(self.attention(mixed, mixed, mixed, need_weights=False)[0]))
        return result


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, shift=x.detach().mean(2, keepdim=True))
        result: Tensor = self.last(x.mean(1))
        return result


def deep(kind: str) -> Deep:
    torch.manual_seed(0)
    model = Deep()
    if kind == "adapters":
        add_adapters(model, Lora(rank=2, alpha=4.0, target=("*.out",)), (), 0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("kind", ["all", "adapters"])
def test_sums_are_those_of_a_loop(kind: str) -> None:
    model = deep(kind)
    check_sums(Recompute(model, list(model.blocks)), torch.randn(7, 6, 5))


@pytest.mark.slow
def test_nothing_of_a_sum_is_left_in_memory() -> None:
    """The head's input belongs to the graph of the blocks, which refer to the taps, which have the head's input."""
    model = deep("all")
    wrapped, features, labels = Recompute(model, list(model.blocks)), torch.randn(4, 6, 5), torch.arange(4)
    total, tensors = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64), []
    for _ in range(3):
        add_clipped(wrapped, cross_entropy, features, labels, Clipping.flat(0.1), total)
        gc.collect()
        tensors.append(sum(isinstance(value, Tensor) for value in gc.get_objects()))
    assert tensors[1] == tensors[2], tensors


def test_in_reduced_precision() -> None:
    """Both computations of a block are in bfloat16, so the sums are the same bits as without recomputation."""
    model, features, labels = deep("all"), torch.randn(4, 6, 5), torch.arange(4)
    sums = []
    for some in (Reduced(model), Reduced(Recompute(model, list(model.blocks)))):
        assert not any("whole model" in text for text in describe_plan(some, cross_entropy, features, labels).values())
        sums.append(torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64))
        add_clipped(some, cross_entropy, features, labels, Clipping.flat(0.1), sums[-1])
    torch.testing.assert_close(*sums, rtol=1e-3, atol=1e-6)


def test_blocks_are_computed_twice_and_adapters_keep_rows_alone() -> None:
    model, features, labels = deep("adapters"), torch.randn(20, 40, 5), torch.zeros(20, dtype=torch.int64)
    wrapped = Recompute(model, list(model.blocks))
    plan = plan_of(wrapped, cross_entropy, features, labels)
    calls: list[int] = []
    hook = model.blocks[1].get_submodule("norm").register_forward_hook(lambda *_: calls.append(1))
    found = run_pass(wrapped, cross_entropy, features, labels, plan)
    hook.remove()
    assert len(calls) == 2
    assert len(found) == 6
    assert all(call.terms is not None and not call.tensors() and not call.gradients for call in found)


@pytest.mark.slow
def test_a_block_before_all_that_is_trained_is_not_computed_again() -> None:
    """Nothing of it is differentiated: neither its weights nor its inputs."""
    model = deep("all")
    for parameter in [*model.first.parameters(), *model.blocks[0].parameters()]:
        parameter.requires_grad_(False)
    check_sums(Recompute(model, list(model.blocks)), torch.randn(7, 6, 5))
    texts = describe_plan(
        Recompute(model, list(model.blocks)), cross_entropy, torch.randn(3, 6, 5), torch.zeros(3, dtype=torch.int64)
    )
    assert not any("whole model" in text for text in texts.values())


class Counting(nn.Module):
    """Calls its layer more often each time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(5, 5), 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        for _ in range(self.count):
            x = self.layer(x)
        return x


def test_a_block_that_changes_between_its_computations_is_not_planned() -> None:
    block = Counting()
    model = Recompute(nn.Sequential(nn.Linear(5, 5), block, nn.Linear(5, CLASSES)), [block])
    texts = describe_plan(model, cross_entropy, torch.randn(3, 5), torch.zeros(3, dtype=torch.int64)).values()
    assert all("whole model" in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_decoders_have_the_same_sums(family: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = causal_model(check_decoder_config(DECODERS[family]), LENGTH)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    tokens = torch.randint(VOCABULARY, (5, 1, LENGTH)).expand(5, 2, LENGTH).float()
    labels, loss = torch.full((5,), LENGTH - 1), NextTokenLoss()
    sums = []
    for some in (model, Recompute(model, model.blocks)):
        assert not any("whole model" in text for text in describe_plan(some, loss, tokens, labels).values())
        sums.append(torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64))
        add_clipped(some, loss, tokens, labels, Clipping.flat(0.1), sums[-1])
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6)
