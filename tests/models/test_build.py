from __future__ import annotations

import pytest
from pydantic import TypeAdapter

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.layout import CNN_WINDOWS, length_after, smallest_size  # noqa: E402
from dprecipe.models.schema import (  # noqa: E402
    Cnn,
    LogisticRegression,
    Mlp,
    Model,
    Transformer,
    WideResNet,
)
from dprecipe.models.zoo.layers import StandardisedConv2d  # noqa: E402

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
LOGISTIC = LogisticRegression(kind="logistic_regression")


def cnn(preset: str) -> Cnn:
    return Cnn(kind="cnn", preset=preset)


def size(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("model", "shape", "parameters"),
    [
        (cnn("tempered-mnist"), MNIST, 26_010),  # Papernot et al. 2021
        (cnn("tempered-cifar"), CIFAR, 550_570),
        (cnn("lenet"), MNIST, 6 * 26 + 16 * (6 * 25 + 1) + 120 * (16 * 25 + 1) + 10 * 121),
        (cnn("lenet-norm"), MNIST, 8 * 28 + 16 * (8 * 25 + 3) + 120 * (16 * 25 + 3) + 10 * 121),
        (cnn("scattering"), (243, 8, 8), 64 * 244 + 64 * (64 * 9 + 1) + 10 * (64 * 16 + 1)),
        (WideResNet(kind="wide_resnet"), CIFAR, 2_751_562),  # De et al. 2022: 2.7 million
        (WideResNet(kind="wide_resnet", depth=40), CIFAR, 8_955_466),  # 8.9 million
        (LOGISTIC, MNIST, 7_850),
        (Mlp(kind="mlp", hidden=(20, 5)), (7,), 20 * 8 + 5 * 21 + 10 * 6),
    ],
    ids=[
        "tempered-mnist",
        "tempered-cifar",
        "lenet",
        "lenet-norm",
        "scattering",
        "wrn-16-4",
        "wrn-40-4",
        "logistic_regression",
        "mlp",
    ],
)
def test_sizes_are_those_of_the_literature(model, shape: tuple[int, ...], parameters: int) -> None:
    module = build(model, shape, 10, 0)
    assert size(module) == parameters
    assert module(torch.zeros((2, *shape))).shape == (2, 10)


@pytest.mark.parametrize("preset", sorted(CNN_WINDOWS))
@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (3, 7)])
def test_presets_fit_any_image_from_the_smallest_on(preset: str, channels: int, classes: int) -> None:
    least = smallest_size(preset)
    for height, width in ((least, least), (least + 1, least + 9), (40, 33)):
        module = build(cnn(preset), (channels, height, width), classes, 0)
        assert module(torch.zeros(2, channels, height, width)).shape == (2, classes)
    assert length_after(CNN_WINDOWS[preset], least - 1) == 0


def test_the_preset_for_scattering_reads_the_means_of_cells() -> None:
    module = build(cnn("scattering"), (5, 4, 7), 3, 0)
    x = torch.randn(2, 5, 4, 7)
    cells = torch.nn.functional.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(module(torch.cat([cells, x[..., 6:]], 3)), module(x))
    assert not torch.allclose(module(x.flip(3)), module(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["logistic_regression", "softmax_regression", "huber_svm"])
def test_linear_classifiers_start_at_zero(kind: str, bias: bool) -> None:
    module = build(TypeAdapter(Model).validate_python({"kind": kind, "bias": bias}), (2, 2, 1), 2, 0)
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == (
        {"1.weight": (2, 4)} | ({"1.bias": (2,)} if bias else {})
    )
    assert all(not p.any() for p in module.parameters())
    assert module(torch.ones(3, 2, 2, 1)).shape == (3, 2)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("least_squares", {"1.weight": (1, 4), "1.bias": (1,)}),
        ("huber_regression", {"1.weight": (1, 4), "1.bias": (1,)}),
        ("location", {"location": (1,)}),
    ],
)
def test_regressions_start_at_the_middle_of_the_range(kind: str, names: dict) -> None:
    module = build(TypeAdapter(Model).validate_python({"kind": kind}), (4,), 1, 0)
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == names
    assert module(torch.ones(3, 4)).tolist() == [[0.0]] * 3
    assert module(torch.ones(0, 4)).shape == (0, 1)


def test_weights_follow_the_seed_and_the_global_generator_stays() -> None:
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    one, same, other = (build(cnn("lenet"), MNIST, 10, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_activations_differ() -> None:
    x = torch.randn(3, 4)
    tanh, relu = (build(Mlp(kind="mlp", hidden=(5,), activation=a), (4,), 2, 0) for a in ("tanh", "relu"))
    assert not torch.equal(tanh(x), relu(x))


@pytest.mark.parametrize("standardised", [True, False])
def test_wide_residual_networks_fit_any_image_and_look_at_one_record_at_a_time(standardised: bool) -> None:
    spec = WideResNet(kind="wide_resnet", depth=10, width=1, weight_standardisation=standardised)
    for shape in ((1, 4, 4), (2, 7, 9)):
        net, x = build(spec, shape, 3, 0), torch.randn(4, *shape)
        together, alone = net(x), torch.cat([net(x[i : i + 1]) for i in range(4)])
        assert together.shape == (4, 3)
        torch.testing.assert_close(together, alone)
        kinds = {type(layer) for layer in net.modules() if isinstance(layer, torch.nn.Conv2d)}
        assert kinds == {StandardisedConv2d if standardised else torch.nn.Conv2d}


TEXT = Transformer(kind="transformer", width=8, heads=2, vocabulary=11)


def test_a_transformer_takes_any_number_for_a_token() -> None:
    net = build(TEXT, (5,), 3, 0)
    logits = net(torch.tensor([[3.0, 10, 0, 0, 0], [3.4, 99, -1e30, -7, 0]]))
    assert logits.isfinite().all()
    assert torch.equal(logits[0], logits[1])
    for broken in (torch.nan, torch.inf):
        assert net(torch.tensor([[3.0, 10, broken, 0, 0], [3.0, 10, 0, 0, 0]])).isnan().all(1).tolist() == [True, False]


def test_a_transformer_does_not_look_at_padding() -> None:
    net, x = build(TEXT, (5,), 3, 0), torch.tensor([[3.0, 10, 0, 0, 0], [0, 0, 0, 0, 0]])
    before = net(x)
    with torch.no_grad():
        net.places.weight[2:].add_(1)
    assert torch.equal(net(x), before)
    assert before.isfinite().all()
    assert not torch.equal(net(torch.tensor([[3.0, 10, 1, 0, 0]]))[0], before[0])


def test_a_transformer_has_the_vocabulary_of_the_data_unless_it_names_one() -> None:
    silent = TEXT.model_copy(update={"vocabulary": None})
    assert build(silent, (5,), 3, 0, vocabulary=7).tokens.num_embeddings == 7
    assert build(TEXT, (5,), 3, 0, vocabulary=7).tokens.num_embeddings == 11
    with pytest.raises(ValueError, match="needs their number"):
        build(silent, (5,), 3, 0)
