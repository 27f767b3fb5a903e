"""The sum from one backward pass against a loop of single records' gradients, for every kind of layer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.build import build
from dprecipe.models.schema import Cnn, LogisticRegression, Mlp, Model, Transformer, WideResNet
from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.training.engine import bookkeeping, layers, sizes
from dprecipe.training.engine.bookkeeping import add_clipped, describe_plan
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.clipping import layer_numbers as clipped_layers
from dprecipe.training.engine.several import MeanLoss, Several
from dprecipe.training.engine.taps import Taps, Unplanned
from dprecipe.training.engine.terms import Lookups, Products, Rows
from dprecipe.training.engine.ways import (
    FEWEST,
    SLACK,
    Ghost,
    Reserve,
    Small,
    Sparse,
    StoredGradients,
    Twice,
    Vectors,
    Way,
    Weights,
)
from dprecipe.training.losses import cross_entropy

CLASSES = 4
TOKENS = 11
WHOLE = "gradients of single records, for the whole model"
ALONE = ", of this layer by itself"


def looped(net: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """(N, P) float64: the gradient of each record by itself, by plain backpropagation."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    rows = []
    for i in range(len(labels)):
        loss = cross_entropy(net(features[i : i + 1]), labels[i : i + 1]).sum()
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, grads, strict=True)]
        rows.append(torch.cat([g.flatten() for g in flat]).double())
    return torch.stack(rows)


def hold(net: nn.Module, features: Tensor, *, planned: bool | None = True) -> bool:
    """Equal with some records clipped, with none, in parts, and for one record; the model is left as it was.
    `planned`: whether there is to be a plan; None where there may be one. Returns whether there is."""
    count = len(features)
    labels = torch.arange(count) % CLASSES
    before, forwards = copy.deepcopy(net.state_dict()), [vars(layer).get("forward") for layer in net.modules()]
    rows_NP = looped(net, features, labels)
    norms_N = rows_NP.norm(dim=1)
    assert norms_N.min() > 0
    for clip in (float(norms_N.median()), 2 * float(norms_N.max())):
        expected_P = (clip / norms_N).clamp(max=1.0) @ rows_NP
        for physical in (count, 3):
            found_P = clipped_sum(net, cross_entropy, BatchPart(features, labels), Clipping.flat(clip), physical).value
            assert float((found_P - expected_P).norm() / expected_P.norm()) < 1e-5
        one_P = clipped_sum(net, cross_entropy, BatchPart(features[:1], labels[:1]), Clipping.flat(clip), 8).value
        assert float(one_P.norm()) <= clip
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert forwards == [vars(layer).get("forward") for layer in net.modules()]
    assert all(p.grad is None and isinstance(p, nn.Parameter) for p in net.parameters())
    whole = [way for way in describe_plan(net, cross_entropy, features, labels).values() if way.startswith(WHOLE)]
    assert planned is None or bool(whole) != planned, whole
    return not whole


def classified(*stem: nn.Module, shape: tuple[int, ...], seed: int = 0) -> tuple[nn.Module, Tensor]:
    """The layers with a classifier behind them, and records of the shape."""
    torch.manual_seed(seed)
    features = torch.randn(7, *shape)
    body = nn.Sequential(*copy.deepcopy(stem), nn.Flatten())
    return nn.Sequential(body, nn.Linear(body(features[:1]).shape[1], CLASSES)), features


def ids(length: int = 6) -> Tensor:
    return torch.randint(TOKENS, (7, length), generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """Parameters of its own around a layer that has its own too."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width))
        self.shift = nn.Parameter(torch.rand(()))
        self.inner = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale + self.shift


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
def test_layers_with_a_way_of_their_own(layer: nn.Module, shape: tuple[int, ...]) -> None:
    net, features = classified(layer, nn.Tanh(), shape=shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    hold(net, features)
    assert not any(ALONE in way for way in describe_plan(net, cross_entropy, features, torch.zeros(7).long()).values())


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_linear_on_vectors_and_on_sequences(shape: tuple[int, ...]) -> None:
    hold(*classified(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.Linear(6, 3, bias=False), shape=shape))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention(batch_first: bool, need_weights: bool) -> None:
    torch.manual_seed(1)
    net = Attending(batch_first, need_weights)
    hold(net, ids())
    assert not any(ALONE in way for way in describe_plan(net, cross_entropy, ids(), torch.zeros(7).long()).values())


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
    assert {name for name, way in told.items() if ALONE in way} == {n for n in told if n.startswith("recurrent")}


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
    assert {ALONE in way for way in told.values()} == {True, False}


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


class Seen(nn.Module):
    """The identity; keeps the strides of what it saw last."""

    strides: tuple[int, ...] = ()

    def forward(self, images: Tensor) -> Tensor:
        self.strides = images.stride()
        return images


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("channels", [1, 4])
def test_channels_lie_either_way(channels: int, last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeping, "_faster_last", lambda *given: last)
    seen = Seen()
    net, features = classified(
        seen,
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
        nn.InstanceNorm2d(6, affine=True),
        nn.Tanh(),
        StandardisedConv2d(6, 8, 2),
        shape=(channels, 8, 9),
    )
    hold(net, features)
    seen = next(layer for layer in net.modules() if isinstance(layer, Seen))
    clipped_sum(net, cross_entropy, BatchPart(features, torch.zeros(7, dtype=torch.int64)), Clipping.flat(1.0), 7)
    assert seen.strides == ((72 * channels, 1, 9 * channels, channels) if last else (72 * channels, 72, 9, 1))


class Ordered(nn.Module):
    """Stands for a kink at which a rounding decides: with channels last it computes something else."""

    def forward(self, images: Tensor) -> Tensor:
        return images * (2.0 if images.is_contiguous(memory_format=torch.channels_last) else 1.0)


@pytest.mark.parametrize("last", [False, True])
def test_a_pass_is_held_against_one_in_the_same_order(last: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeping, "_faster_last", lambda *given: last)
    net, features = classified(nn.Conv2d(2, 4, 3), Ordered(), nn.Conv2d(4, 3, 2), shape=(2, 6, 5))
    plan = bookkeeping.plan_of(net, cross_entropy, features, torch.zeros(7).long())
    assert plan.channels_last == last


def test_the_order_of_channels_of_units_and_of_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bookkeeping, "_faster_last", lambda *given: True)
    net, _ = classified(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 2), shape=(2, 6, 5))
    several, loss, labels = Several(net), MeanLoss(cross_entropy), torch.randint(CLASSES, (5, 3))
    batch = BatchPart(torch.randn(5, 3, 2, 6, 5), labels)
    found_P = clipped_sum(several, loss, batch, Clipping.flat(0.1), 15).value
    expected_P = clipped_sum_of_rows(several, loss, batch, Clipping.flat(0.1), 15).value
    assert float((found_P - expected_P).norm() / expected_P.norm()) < 1e-5
    monkeypatch.setattr(bookkeeping, "_faster_last", lambda *given: pytest.fail("there is no image"))
    hold(*classified(nn.Conv3d(2, 3, 2), nn.Tanh(), shape=(2, 4, 3, 3)))


@st.composite
def architectures(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Random stacks of one to four layers that fit each other, some parameters frozen."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    dims = draw(st.integers(0, 3))
    channels = draw(st.sampled_from([2, 4, 6]))
    shape = (channels, *(draw(st.integers(3, 7)) for _ in range(dims)))
    features, stack, width = torch.randn(5, *shape), [], channels
    for _ in range(draw(st.integers(1, 4))):
        wide = draw(st.sampled_from([2, 4, 6]))
        kind = draw(st.sampled_from(["linear", "norm", "group", "rms", "scale", "conv", "act"]))
        now = nn.Sequential(*stack)(features)
        if kind == "conv" and dims:
            convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
            stack.append(
                convolution(
                    width,
                    wide,
                    draw(st.integers(1, min(3, *now.shape[2:]))),
                    stride=draw(st.integers(1, 2)),
                    padding=draw(st.integers(1, 2)),
                    dilation=draw(st.integers(1, 2)) if min(now.shape[2:]) > 2 else 1,
                    groups=draw(st.sampled_from([1, 2])),
                    bias=draw(st.booleans()),
                )
            )
            width = wide
        elif kind == "linear":
            size = wide if dims else (width := wide)
            stack.append(nn.Linear(now.shape[-1], size, bias=draw(st.booleans())))
        elif kind == "norm":
            stack.append(nn.LayerNorm(now.shape[-1]))
        elif kind == "rms":
            stack.append(nn.RMSNorm(now.shape[-1], eps=0.1))
        elif kind == "scale":
            stack.append(Scaled(now.shape[-1]))
        elif kind == "group" and dims:
            stack.append(nn.GroupNorm(2, width))
        else:
            stack.append(nn.Tanh())
    net = nn.Sequential(*stack, nn.Flatten())
    net.append(nn.Linear(net(features).shape[1], CLASSES))
    for layer in stack:
        for parameter in layer.parameters():
            parameter.requires_grad_(draw(st.integers(0, 4)) > 0)
    return net, features


def hold_random(examples: int) -> None:
    """Sums are held whatever the architecture. A plan is asked for of four in five: where a gradient all but cancels,
    such as that of a bias before a norm that takes it out, its length is the root of what rounding leaves, and the plan
    is given up."""
    planned: list[bool] = []

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None)
    @given(architectures())
    def held(drawn: tuple[nn.Module, Tensor]) -> None:
        planned.append(hold(*drawn, planned=None))

    held()
    assert sum(planned) > 0.8 * len(planned)


def test_random_architectures() -> None:
    hold_random(25)


def test_a_gradient_that_cancels_gives_the_plan_up_and_the_sums_hold() -> None:
    """A bias before a norm that takes it out has no gradient but what rounding leaves."""
    torch.manual_seed(0)
    features = torch.randn(5, 2, 3, 3)
    net = nn.Sequential(nn.GroupNorm(2, 2), nn.LayerNorm(3), nn.LayerNorm(3), nn.Flatten(), nn.Linear(18, CLASSES))
    for parameter in (net[0].weight, *net[1].parameters(), *net[2].parameters()):
        parameter.requires_grad_(False)
    assert not hold(net, features, planned=None)


@pytest.mark.slow
def test_many_random_architectures() -> None:
    hold_random(100)


def products(positions: int, groups: int = 1) -> Products:
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(6, groups, positions, 70, generator=generator)
    return Products(lambda part: left[part], torch.randn(6, groups, 3, positions, generator=generator), 70)


def lookups() -> Lookups:
    generator = torch.Generator().manual_seed(0)
    return Lookups(torch.randint(4, (6, 9), generator=generator), torch.randn(6, 9, 5, generator=generator), 4)


def kept(*terms: Products, twice: bool = False) -> Way:
    return (Twice if twice else StoredGradients)(terms, 6, terms[0].size, torch.empty(()))


WAYS: dict[str, Callable[[], tuple[Way, Tensor]]] = {
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


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("name", WAYS)
def test_all_ways_agree_and_norms_are_never_too_small(
    name: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dprecipe.training.engine.ways.CACHE", 1000)  # several parts
    monkeypatch.setattr("dprecipe.training.engine.ways.LARGE", 1)
    way, rows_NP = WAYS[name]()
    weights_N = torch.tensor([1.0, 0.5, 0.0, 0.25, 1e-3, 1.0], dtype=torch.float64)
    squares_N = way.squares()
    found_P = torch.ones(rows_NP.shape[1], dtype=torch.float64)
    way.add([found_P], Weights(weights_N, together=together))
    torch.testing.assert_close(squares_N, rows_NP.double().square().sum(1), rtol=2e-5, atol=0)
    torch.testing.assert_close(found_P - 1, weights_N @ rows_NP.double(), rtol=1e-5, atol=1e-6)
    for n in range(6):  # what one record adds is no longer than its norm
        alone_P = torch.zeros(len(found_P), dtype=torch.float64)
        way.add([alone_P], Weights(torch.eye(6, dtype=torch.float64)[n]))
        assert float(alone_P.norm()) <= float(squares_N[n].sqrt()) * (1 + 1e-14)


def test_rows_that_come_out_longer_the_second_time_are_shortened() -> None:
    values = torch.ones(3, 100)
    way = Twice([Rows(values)], 3, 100, torch.empty(()))
    norms_N = way.squares().sqrt()
    values *= 1.5
    found_P = torch.zeros(100, dtype=torch.float64)
    way.add([found_P], Weights(torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)))
    assert float(found_P.norm()) <= float(norms_N[0])


@pytest.mark.parametrize("told", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("parts", [[256], [1], [100, 300, 50], [1024] * 4, [64] * 200, [5000], [16] * 3])
def test_single_precision_stays_within_what_is_reserved(told: float, parts: list[int]) -> None:
    """The sum of what each part may be off by, in clip norms, for the batch and for one of a record more; also of a
    batch
    that is longer than was told."""
    batches = []
    for more in (0, 1):
        sizes = [*parts[:-1], parts[-1] + more]
        reserve = Reserve(int(told * sum(sizes)))
        together = [reserve.together(size) for size in sizes]
        if told == 1 and sum(parts) <= 1000:
            assert all(c >= min(size, FEWEST) for c, size in zip(together, sizes, strict=True))
        batches.append(sum(2.0**-24 * n * (c / 2 + 3) for n, c in zip(sizes, together, strict=True) if c > 1))
    assert sum(batches) <= SLACK


@pytest.mark.parametrize("processes", [2, 3, 64])
def test_several_processes_share_what_is_reserved(processes: int) -> None:
    """Each unit may be in another process's part when one is left out, so that all their sums are rounded anew."""
    off = 0.0
    for count in [256] * processes:
        together = Reserve(count, processes).together(count)
        off += 2.0**-24 * (count + 1) * (together + 6) if together > 1 else 0.0
    assert off <= SLACK
    assert Reserve(256, 2).together(256) > 1


@pytest.mark.parametrize("clip", [1.3e-7, 6e-7, 1e-4, 1e-19])
def test_the_longest_gradients_pass_no_bound(clip: float) -> None:
    """Weights of gradients near the largest that count would be rounded in single precision, if they were smaller."""
    net = nn.Linear(128, 128)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs * scales[: len(outputs), None]).sum(1)

    for exponent in (29.0, 40.0, 60.0):
        scales = torch.full((32,), 2.0**exponent / 2)
        features = torch.zeros(32, 128)
        features[0] = 2.0**exponent
        features[1:] = 0.0
        sums = [
            clipped_sum(net, loss, BatchPart(features[part], torch.zeros(len(features[part]))), Clipping.flat(clip), 32)
            for part in (slice(None), slice(1, None))
        ]
        assert float((sums[0].value - sums[1].value).norm()) <= float(sums[0].bound) * (1 + 1e-9)


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
    ways = describe_plan(net, cross_entropy, features, torch.zeros(7).long())
    assert not any("whole model" in way for way in ways.values())


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


@pytest.mark.parametrize("distribution", ["alike", "cancelling", "any size"])
def test_sums_in_single_precision_are_off_by_no_more_than_what_is_reserved(distribution: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rows_NP = torch.randn(512, 300, generator=generator)
    if distribution == "alike":
        rows_NP = rows_NP[:1] * (1 + 1e-3 * rows_NP)
    if distribution == "cancelling":
        rows_NP[256:] = -rows_NP[:256] * (1 + 1e-6)
    if distribution == "any size":
        rows_NP *= 10 ** torch.empty(512, 1).uniform_(-15, 15, generator=generator)
    way = Small([Rows(rows_NP)], 512)
    weights_N = way.squares().rsqrt()
    found_P = torch.zeros(300, dtype=torch.float64)
    together = Reserve(512).together(512)
    assert together >= FEWEST
    way.add([found_P], Weights(weights_N, together=together))
    assert float((found_P - weights_N @ rows_NP.double()).norm()) <= SLACK / 2


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


def test_a_batch_whose_rows_have_no_room_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "KEPT", 200)
    monkeypatch.setattr(bookkeeping, "FEW", 2)
    net, features = classified(nn.Linear(5, 6), nn.Tanh(), shape=(9, 5))
    hold(net, features)
    assert bookkeeping.plan_of(net, cross_entropy, features, torch.zeros(7).long()).most < 7


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


def test_the_plan_takes_nothing_from_the_records_nor_from_the_generator() -> None:
    net, features = classified(nn.Linear(5, 3), nn.Dropout(0.5), shape=(5,))
    labels = torch.zeros(7, dtype=torch.int64)
    state = torch.random.get_rng_state()
    bookkeeping.plan_of(net, cross_entropy, features * torch.nan, labels)
    assert torch.equal(torch.random.get_rng_state(), state)
    made, _ = bookkeeping.made_up(features, labels, 3)
    assert torch.equal(made, bookkeeping.made_up(features * torch.nan, labels, 3)[0])


def test_dropout_draws_for_each_record_on_its_own() -> None:
    net = nn.Sequential(nn.Linear(50, 50, bias=False), nn.Dropout(0.5), nn.Linear(50, CLASSES))
    features, labels = torch.ones(64, 50), torch.zeros(64, dtype=torch.int64)
    assert not any(way.startswith(WHOLE) for way in describe_plan(net, cross_entropy, features, labels).values())
    value = clipped_sum(net, cross_entropy, BatchPart(features, labels), Clipping.flat(1.0), 64).value
    # Equal draws would add up to exactly 64 equal gradients.
    assert 10 < float(value.norm()) < 63


def test_a_wrong_formula_is_noticed_and_not_trained_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: object) -> object:
        for name, term in right(call):
            yield name, Rows(term.values * 1.01) if name == "bias" else term

    right = layers.KNOWN[nn.Linear]
    monkeypatch.setitem(layers.KNOWN, nn.Linear, wrong)
    net, features = classified(nn.Linear(5, 3), shape=(5,))
    hold(net, features, planned=False)
    with pytest.raises(Unplanned, match=r"bias' does not equal plain backpropagation"):
        add_clipped(net, cross_entropy, features, torch.zeros(7).long(), 1.0, torch.zeros(34, dtype=torch.float64))


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
