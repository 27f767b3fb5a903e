"""The clipped sum of each kind of layer, from one backward pass, equals that of a loop over single records."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.training.engine import layers
from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.program.losses import cross_entropy
from tests.training.engine.reference import CLASSES, ISOLATED, TOKENS, Scaled, check_sums, classified, ids


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.recurrent = kind(5, 6, batch_first=batch_first, bidirectional=True)
        self.last = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.recurrent.batch_first:
            return self.last(self.recurrent(x)[0][:, -1])
        return self.last(self.recurrent(x.transpose(0, 1))[0][-1])


class Attending(nn.Module):
    """Tokens, learned positions, masked self-attention, with records first or second."""

    def __init__(self, batch_first: bool = True, need_weights: bool = False, crossed: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 8, padding_idx=0)
        self.positions = nn.Embedding(6, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.norm = nn.RMSNorm(8)
        self.last = nn.Linear(8, CLASSES)
        self.need_weights, self.crossed = need_weights, crossed
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        padding = (x == 0) & (torch.arange(6) > 0)
        hidden = self.tokens(x) + self.positions(torch.arange(6))
        if not self.attention.batch_first:
            hidden = hidden.transpose(0, 1)
        keys = hidden * 2 if self.crossed else hidden
        mixed, _ = self.attention(
            hidden, keys, keys, attn_mask=self.mask, key_padding_mask=padding, need_weights=self.need_weights
        )
        hidden = self.norm(hidden + mixed)
        return self.last(hidden.mean(1 if self.attention.batch_first else 0))


CONVOLUTIONS = [
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    (nn.Conv1d(4, 6, 4, padding="same", groups=2), (4, 9)),
    (nn.Conv1d(48, 3, 3, dilation=2, bias=False), (48, 7)),
    (nn.Conv2d(3, 6, 3, padding="same"), (3, 7, 6)),
    (nn.Conv2d(32, 4, 4, stride=2, padding=(1, 2), groups=4), (32, 6, 7)),
    (nn.Conv2d(4, 6, (3, 2), padding=(1, 2), dilation=(2, 1), padding_mode="circular"), (4, 7, 8)),
    (nn.Conv2d(4, 6, 1), (4, 3, 3)),
    (nn.Conv3d(4, 6, 2, padding=1, stride=(1, 2, 1)), (4, 3, 4, 5)),
]


NORMS = [
    (nn.LayerNorm((3, 4)), (5, 3, 4)),
    (nn.LayerNorm(4, bias=False), (4,)),
    (nn.RMSNorm(4, eps=0.1), (3, 4)),
    (nn.GroupNorm(2, 4), (4, 5)),
    (nn.GroupNorm(2, 4), (4, 5, 3)),
    (nn.InstanceNorm1d(4, affine=True), (4, 6)),
    (nn.InstanceNorm2d(4, affine=True), (4, 5, 3)),
    (nn.InstanceNorm3d(4, affine=True), (4, 2, 3, 2)),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS + NORMS, ids=str)
def test_layers_with_a_formula_of_their_own(layer: nn.Module, shape: tuple[int, ...]) -> None:
    net, features = classified(layer, nn.Tanh(), shape=shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    check_sums(net, features)
    assert not any(
        ISOLATED in strategy for strategy in describe_plan(net, cross_entropy, features, torch.zeros(7).long()).values()
    )


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_linear_on_vectors_and_on_sequences(shape: tuple[int, ...]) -> None:
    check_sums(*classified(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 3, bias=False), shape=shape))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention(batch_first: bool, need_weights: bool) -> None:
    torch.manual_seed(1)
    net = Attending(batch_first, need_weights)
    check_sums(net, ids())
    assert not any(
        ISOLATED in strategy for strategy in describe_plan(net, cross_entropy, ids(), torch.zeros(7).long()).values()
    )


def test_attention_to_something_else_is_differentiated_by_itself() -> None:
    torch.manual_seed(1)
    net = Attending(crossed=True)
    check_sums(net, ids())
    message = describe_plan(net, cross_entropy, ids(), torch.zeros(7).long())
    assert ISOLATED in message["attention.in_proj_weight"]
    assert ISOLATED in message["attention.out_proj.bias"]
    assert ISOLATED not in message["tokens.weight"]


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_layer(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    check_sums(nn.Sequential(nn.Embedding(TOKENS, 8), layer, nn.Flatten(), nn.Linear(48, CLASSES)), ids())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_differentiated_by_themselves(kind: type[nn.RNNBase], batch_first: bool) -> None:
    torch.manual_seed(0)
    net, features = Recurrent(kind, batch_first), torch.randn(7, 4, 3)
    check_sums(net, features)
    message = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert {name for name, strategy in message.items() if ISOLATED in strategy} == {
        n for n in message if n.startswith("recurrent")
    }


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Scaled(5), (5,)),
        (Scaled(5), (3, 5)),
        (nn.PReLU(), (5,)),
        (nn.ConvTranspose1d(2, 3, 3), (2, 5)),
        (nn.Bilinear(4, 4, 3), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_nobody_knows(layer: nn.Module, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        shape, layer = (4,), Doubled(layer)
    net, features = classified(nn.Linear(shape[-1], shape[-1]), layer, shape=shape)
    check_sums(net, features)
    message = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert {ISOLATED in strategy for strategy in message.values()} == {True, False}


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x.flip(1))


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 8, 4), nn.Conv2d(2, 40, 4), nn.Conv2d(4, 8, 4, groups=2), nn.Conv2d(3, 6, 4, bias=False)],
    ids=["small", "large", "groups", "no bias"],
)
def test_a_convolution_with_one_window(layer: nn.Conv2d) -> None:
    net, features = classified(layer, nn.Tanh(), shape=(layer.in_channels, 4, 4))
    check_sums(net, features)
    strategies = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert not any("whole model" in strategy for strategy in strategies.values())


@pytest.mark.parametrize("on_sum", [False, True], ids=["CPU", "GPU"])
@pytest.mark.parametrize("stride", [1, 2])
def test_standardised_kernels(stride: int, on_sum: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "one_size", lambda device: on_sum)
    net, features = classified(StandardisedConv2d(2, 4, 3, stride, 1), nn.Tanh(), shape=(2, 5, 5))
    with torch.no_grad():
        net[0][0].weight[0] = 0.5 + 1e-4 * torch.randn(2, 3, 3)  # so short that its length is held from below
    check_sums(net, features)
    message = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert ISOLATED not in message["0.0.weight"]


def test_low_rank_adapters_beside_a_frozen_layer() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.down, self.up = nn.Linear(5, 6), nn.Linear(5, 2, bias=False), nn.Linear(2, 6, bias=False)
            self.base.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    check_sums(*classified(Adapted(), nn.Tanh(), shape=(3, 5)))
