"""The clipped sum of whole models, from one backward pass, equals that of a loop over single records."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.models.build import build
from dprecipe.models.schema import Cnn, LogisticRegression, Mlp, Model, Transformer, WideResNet
from dprecipe.training.engine import bookkeeping
from dprecipe.training.engine.bookkeeping import describe_plan
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.clipping import layer_numbers as clipped_layers
from dprecipe.training.engine.taps import Taps, Unplanned
from dprecipe.training.program.losses import cross_entropy
from tests.training.engine.reference import CLASSES, TOKENS, WHOLE, check_sums, classified, ids, looped


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
    """The weight of a layer is used outside it too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.linear(torch.tanh(self.inner(x)), self.inner.weight))


@pytest.mark.parametrize(
    ("net", "features"),
    [(Tied(), ids()), (Again(), torch.randn(7, 5)), (nn.Sequential(Again(), nn.Linear(CLASSES, 4)), torch.randn(7, 5))],
    ids=["tied", "again", "nested"],
)
def test_shared_parameters(net: nn.Module, features: Tensor) -> None:
    check_sums(net, features)


def test_frozen_parameters() -> None:
    net, features = classified(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 2), shape=(3, 6, 6))
    for i, parameter in enumerate(net.parameters()):
        parameter.requires_grad_(i % 3 > 0)
    check_sums(net, features)


@pytest.mark.parametrize(
    "net",
    [Outside(), nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), nn.Linear(5, CLASSES))],
    ids=["outside", "parametrised"],
)
def test_what_layers_do_not_account_for_is_left_to_gradients_of_single_records(net: nn.Module) -> None:
    check_sums(net, torch.randn(7, 5), planned=False)


def test_a_parameter_that_is_read_outside_of_its_layer_is_noticed_in_every_pass() -> None:
    """Not by the check of the plan alone: a model may do so later."""
    with Taps(net := Outside(), 7) as taps, pytest.raises(Unplanned, match="used outside its layer"):
        taps.backward(cross_entropy(net(torch.randn(7, 5)), torch.zeros(7).long()))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (LogisticRegression(kind="logistic_regression"), (1, 8, 8)),
        (Mlp(kind="mlp", hidden=(8, 4), activation="tanh"), (7,)),
        (Cnn(kind="cnn", preset="tempered-mnist"), (1, 28, 28)),
        pytest.param(Cnn(kind="cnn", preset="tempered-cifar"), (3, 16, 16), marks=pytest.mark.slow),
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
    result = (
        ids(*shape).float()
        if isinstance(model, Transformer)
        else torch.randn(7, *shape, generator=torch.Generator().manual_seed(0))
    )
    check_sums(build(model, shape, CLASSES, 0), result)


@pytest.mark.slow
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
        result = clipped_sum(net, cross_entropy, batch, Clipping.flat(0.1), physical).value
        assert seen == rows
        assert float((result - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("stability", [None, 0.01])
def test_each_layer_by_itself_and_automatic_clipping(groups: int, stability: float | None) -> None:
    net, features = classified(nn.Conv2d(2, 4, 3, groups=groups), nn.GroupNorm(2, 4), shape=(2, 5, 5))
    labels = torch.arange(7) % CLASSES
    clipping = Clipping((0.1, 0.2, 0.3), clipped_layers(net), stability)
    result_P = clipped_sum(net, cross_entropy, BatchPart(features, labels), clipping, 4).value
    expected = []
    rows = torch.split(looped(net, features, labels), [p.numel() for p in net.parameters()], 1)
    for layer, threshold in enumerate(clipping.thresholds):
        of_layer = torch.cat(rows[2 * layer : 2 * layer + 2], 1)
        norms_N = of_layer.norm(dim=1)
        weights_N = (threshold / norms_N).clamp(max=1.0) if stability is None else threshold / (norms_N + stability)
        expected.append(weights_N @ of_layer)
    expected_P = torch.cat(expected)
    assert float((result_P - expected_P).norm() / expected_P.norm()) < 1e-5


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
    check_sums(net, features)
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
