"""The sum from one backward pass against a loop of single records' gradients, for every kind of layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.build import build
from dprecipe.models.schema import Cnn, LogisticRegression, Mlp, Model, Transformer, WideResNet
from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.training.engine import bookkeeping
from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.clipping import layer_numbers as clipped_layers
from dprecipe.training.engine.taps import Taps, Unplanned
from dprecipe.training.losses import cross_entropy
from tests.training.engine.reference import ALONE, CLASSES, WHOLE, Scaled, classified, hold, looped

TOKENS = 11


def ids(length: int = 6) -> Tensor:
    return torch.randint(TOKENS, (7, length), generator=torch.Generator().manual_seed(0))


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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 8)
        self.out = nn.Linear(8, TOKENS, bias=False)
        self.out.weight = self.tokens.weight
        self.last = nn.Linear(TOKENS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.out(torch.tanh(self.tokens(x).mean(1))))


class Again(nn.Module):
    """One layer called twice, and the gradient of one that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last, self.unused = nn.Linear(5, 5), nn.Linear(5, CLASSES), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        return self.last(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Outside(nn.Module):
    """The weight of a layer is read outside of it too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.linear(torch.tanh(self.inner(x)), self.inner.weight))


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
    hold(net, features)
    assert not any(
        ALONE in strategy for strategy in describe_plan(net, cross_entropy, features, torch.zeros(7).long()).values()
    )


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_linear_on_vectors_and_on_sequences(shape: tuple[int, ...]) -> None:
    hold(*classified(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 3, bias=False), shape=shape))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention(batch_first: bool, need_weights: bool) -> None:
    torch.manual_seed(1)
    net = Attending(batch_first, need_weights)
    hold(net, ids())
    assert not any(
        ALONE in strategy for strategy in describe_plan(net, cross_entropy, ids(), torch.zeros(7).long()).values()
    )


def test_attention_to_something_else_is_differentiated_by_itself() -> None:
    torch.manual_seed(1)
    net = Attending(crossed=True)
    hold(net, ids())
    told = describe_plan(net, cross_entropy, ids(), torch.zeros(7).long())
    assert ALONE in told["attention.in_proj_weight"]
    assert ALONE in told["attention.out_proj.bias"]
    assert ALONE not in told["tokens.weight"]


@pytest.mark.parametrize("norm_first", [True, False])
def test_a_transformer_layer(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    hold(nn.Sequential(nn.Embedding(TOKENS, 8), layer, nn.Flatten(), nn.Linear(48, CLASSES)), ids())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_differentiated_by_themselves(kind: type[nn.RNNBase], batch_first: bool) -> None:
    torch.manual_seed(0)
    net, features = Recurrent(kind, batch_first), torch.randn(7, 4, 3)
    hold(net, features)
    told = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert {name for name, strategy in told.items() if ALONE in strategy} == {
        n for n in told if n.startswith("recurrent")
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
    hold(net, features)
    told = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert {ALONE in strategy for strategy in told.values()} == {True, False}


class Doubled(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x.flip(1))


@pytest.mark.parametrize(
    ("net", "features"),
    [(Tied(), ids()), (Again(), torch.randn(7, 5)), (nn.Sequential(Again(), nn.Linear(CLASSES, 4)), torch.randn(7, 5))],
    ids=["tied", "again", "nested"],
)
def test_shared_parameters(net: nn.Module, features: Tensor) -> None:
    hold(net, features)


def test_frozen_parameters() -> None:
    net, features = classified(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 2), shape=(3, 6, 6))
    for i, parameter in enumerate(net.parameters()):
        parameter.requires_grad_(i % 3 > 0)
    hold(net, features)


@pytest.mark.parametrize(
    "net",
    [Outside(), nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), nn.Linear(5, CLASSES))],
    ids=["outside", "parametrised"],
)
def test_what_layers_do_not_account_for_is_left_to_gradients_of_single_records(net: nn.Module) -> None:
    hold(net, torch.randn(7, 5), planned=False)


def test_a_parameter_that_is_read_outside_of_its_layer_is_noticed_in_every_pass() -> None:
    """Not by the check of the plan alone: a model may do so later."""
    with Taps(net := Outside(), 7) as taps, pytest.raises(Unplanned, match="read outside of its layer"):
        taps.backward(cross_entropy(net(torch.randn(7, 5)), torch.zeros(7).long()))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (LogisticRegression(kind="logistic_regression"), (1, 8, 8)),
        (Mlp(kind="mlp", hidden=(8, 4), activation="tanh"), (7,)),
        (Cnn(kind="cnn", preset="tempered-mnist"), (1, 28, 28)),
        (Cnn(kind="cnn", preset="tempered-cifar"), (3, 16, 16)),
        (Cnn(kind="cnn", preset="lenet"), (1, 28, 28)),
        (Cnn(kind="cnn", preset="lenet-norm"), (1, 28, 28)),
        (Cnn(kind="cnn", preset="scattering"), (27, 7, 6)),
        (WideResNet(kind="wide_resnet", depth=10, width=1), (3, 8, 8)),
        (WideResNet(kind="wide_resnet", depth=10, width=1, weight_standardisation=False), (3, 8, 8)),
        (Transformer(kind="transformer", width=16, vocabulary=TOKENS), (9,)),
    ],
    ids=[
        "linear",
        "mlp",
        "tempered-mnist",
        "tempered-cifar",
        "lenet",
        "lenet-norm",
        "scattering",
        "wrn-ws",
        "wrn",
        "transformer",
    ],
)
def test_the_zoo(model: Model, shape: tuple[int, ...]) -> None:
    made = (
        ids(*shape).float()
        if isinstance(model, Transformer)
        else torch.randn(7, *shape, generator=torch.Generator().manual_seed(0))
    )
    hold(build(model, shape, CLASSES, 0), made)


@pytest.mark.parametrize("planned", [True, False])
def test_a_few_records_are_computed_as_more_are(planned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more would move another's gradient at a kink by all of its length, if other instructions made it."""
    torch.manual_seed(0)
    net: nn.Module = nn.Sequential(nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    layer = net.get_submodule("0")
    assert isinstance(layer, nn.Linear)
    if not planned:
        monkeypatch.setattr(bookkeeping, "plan_of", lambda *given: (_ for _ in ()).throw(Unplanned("not this")))
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    for unit in range(24):
        j = unit % 8
        x = torch.randn(784, dtype=torch.float64)
        x -= (weight[j] @ x + bias[j]) / (weight[j] @ weight[j]) * weight[j]
        for count in (2, 3, 4, 5, 8, 9, 12, 16):
            features, labels = x.float().repeat(count, 1), torch.zeros(count, dtype=torch.int64)
            sums = [
                clipped_sum(net, cross_entropy, BatchPart(features[:n], labels[:n]), Clipping.flat(0.1), 512)
                for n in (count - 1, count)
            ]
            assert float((sums[1].value - sums[0].value).norm()) <= float(sums[0].bound)


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 8, 4), nn.Conv2d(2, 40, 4), nn.Conv2d(4, 8, 4, groups=2), nn.Conv2d(3, 6, 4, bias=False)],
    ids=["small", "large", "groups", "no bias"],
)
def test_a_convolution_with_one_window(layer: nn.Conv2d) -> None:
    net, features = classified(layer, nn.Tanh(), shape=(layer.in_channels, 4, 4))
    hold(net, features)
    strategies = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert not any("whole model" in strategy for strategy in strategies.values())


def test_few_records_are_filled_up_no_further_than_memory_was_asked_for() -> None:
    seen = []

    class Seeing(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(len(inputs))
            return inputs

    net, batch = nn.Sequential(Seeing(), nn.Linear(5, CLASSES)), BatchPart(torch.randn(3, 5), torch.zeros(3).long())
    expected = clipped_sum(net, cross_entropy, batch, Clipping.flat(0.1), 512).value
    for physical, rows in ((512, [16]), (9, [9]), (3, [3]), (2, [2, 2]), (1, [1, 1, 1])):
        seen.clear()
        found = clipped_sum(net, cross_entropy, batch, Clipping.flat(0.1), physical).value
        assert seen == rows
        assert float((found - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stability", [None, 0.01])
def test_each_layer_by_itself_and_automatic_clipping(groups: int, stability: float | None) -> None:
    net, features = classified(nn.Conv2d(2, 4, 3, groups=groups), nn.GroupNorm(2, 4), shape=(2, 5, 5))
    labels = torch.arange(7) % CLASSES
    clipping = Clipping((0.1, 0.2, 0.3), clipped_layers(net), stability)
    found_P = clipped_sum(net, cross_entropy, BatchPart(features, labels), clipping, 4).value
    expected = []
    rows = torch.split(looped(net, features, labels), [p.numel() for p in net.parameters()], 1)
    for layer, threshold in enumerate(clipping.thresholds):
        of_layer = torch.cat(rows[2 * layer : 2 * layer + 2], 1)
        norms_N = of_layer.norm(dim=1)
        weights_N = (threshold / norms_N).clamp(max=1.0) if stability is None else threshold / (norms_N + stability)
        expected.append(weights_N @ of_layer)
    expected_P = torch.cat(expected)
    assert float((found_P - expected_P).norm() / expected_P.norm()) < 1e-5


@pytest.mark.parametrize("stride", [1, 2])
def test_standardised_kernels(stride: int) -> None:
    net, features = classified(StandardisedConv2d(2, 4, 3, stride, 1), nn.Tanh(), shape=(2, 5, 5))
    with torch.no_grad():
        net[0][0].weight[0] = 0.5 + 1e-4 * torch.randn(2, 3, 3)  # so short that its length is held from below
    hold(net, features)
    told = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert ALONE not in told["0.0.weight"]


def test_low_rank_adapters_beside_a_frozen_layer() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.down, self.up = nn.Linear(5, 6), nn.Linear(5, 2, bias=False), nn.Linear(2, 6, bias=False)
            self.base.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.base(x) + self.up(self.down(x))

    hold(*classified(Adapted(), nn.Tanh(), shape=(3, 5)))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-19, 1.0, 1e6, 1e19, 1e30, float("inf"), float("nan")])
def test_t11_one_record_moves_the_sum_of_a_convolution_by_at_most_the_bound(scale: float) -> None:
    net, features = classified(nn.Conv2d(3, 20, 3), nn.ReLU(), nn.Conv2d(20, 8, 2), nn.GroupNorm(2, 8), shape=(3, 6, 6))
    labels = torch.arange(8) % CLASSES
    before = clipped_sum(net, cross_entropy, BatchPart(features, labels[:7]), Clipping.flat(0.5), 16).value
    more = torch.cat([features, torch.full((1, 3, 6, 6), scale)])
    after = clipped_sum(net, cross_entropy, BatchPart(more, labels), Clipping.flat(0.5), 16).value
    assert torch.isfinite(after).all()
    # The gradients of the others are those of another batch, rounded otherwise in single precision.
    assert float((after - before).norm()) <= 0.5 * (1 + 1e-5)
    if scale != scale:
        assert float((after - before).norm()) < 1e-5


def test_sums_hold_their_bound_when_gradients_are_large_and_cancel() -> None:
    """A sequence whose positions all but cancel: single precision would lose the norm altogether."""
    torch.manual_seed(0)
    half = torch.randn(1, 200, 4, 30)
    features = torch.cat([half, -half + 1e-4 * torch.randn_like(half)], 1).flatten(1, 2)
    net = nn.Sequential(nn.Linear(30, 3, bias=False), nn.Flatten(), nn.Linear(4800, CLASSES, bias=False))
    net[2].weight.requires_grad_(False)
    with torch.no_grad():
        net[2].weight.copy_(torch.ones(4800).expand(CLASSES, -1) * torch.arange(4.0)[:, None] * 1e-3)
    hold(net, features)
    assert (
        float(
            clipped_sum(net, cross_entropy, BatchPart(features, torch.tensor([1])), Clipping.flat(1e-6), 4).value.norm()
        )
        <= 1e-6
    )


def test_dropout_draws_for_each_record_on_its_own() -> None:
    net = nn.Sequential(nn.Linear(50, 50, bias=False), nn.Dropout(0.5), nn.Linear(50, CLASSES))
    features, labels = torch.ones(64, 50), torch.zeros(64, dtype=torch.int64)
    assert not any(
        strategy.startswith(WHOLE) for strategy in describe_plan(net, cross_entropy, features, labels).values()
    )
    value = clipped_sum(net, cross_entropy, BatchPart(features, labels), Clipping.flat(1.0), 64).value
    # Equal draws would add up to exactly 64 equal gradients.
    assert 10 < float(value.norm()) < 63


def test_the_model_is_left_as_it_was_after_an_exception() -> None:
    class Raising(nn.Module):
        armed = False

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.armed:
                raise KeyError("a model's own fault")
            return x

    net, features = classified(nn.Linear(5, 3), Raising(), shape=(5,))
    net[0][0].register_forward_hook(lambda *_: None)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    inner = {id(p) for p in net.parameters()}
    hooks = [dict(layer._forward_hooks) for layer in net.modules()]
    for armed in (False, True):
        net[0][1].armed = armed
        if armed:
            with pytest.raises(KeyError):
                clipped_sum(net, cross_entropy, BatchPart(features, torch.zeros(7).long()), Clipping.flat(1.0), 8)
        else:
            clipped_sum(net, cross_entropy, BatchPart(features, torch.zeros(7).long()), Clipping.flat(1.0), 8)
        assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
        assert inner == {id(p) for p in net.parameters() if p.requires_grad}
        assert hooks == [dict(layer._forward_hooks) for layer in net.modules()]
        assert not any("forward" in vars(layer) for layer in net.modules())
