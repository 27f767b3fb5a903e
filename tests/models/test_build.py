from __future__ import annotations

import pytest
from pydantic import TypeAdapter

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.geometry import CNN_WINDOWS, smallest, spatial  # noqa: E402
from dprecipe.models.schema import Cnn, Location, LogisticRegression, Mlp, Model  # noqa: E402

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
        (LOGISTIC, MNIST, 7_850),
        (Mlp(kind="mlp", hidden=(20, 5)), (7,), 20 * 8 + 5 * 21 + 10 * 6),
    ],
    ids=["tempered-mnist", "tempered-cifar", "lenet", "lenet-norm", "logistic_regression", "mlp"],
)
def test_sizes_are_those_of_the_literature(model, shape: tuple[int, ...], parameters: int) -> None:
    module = build(model, shape, 10, 0)
    assert size(module) == parameters
    assert module(torch.zeros((2, *shape))).shape == (2, 10)


@pytest.mark.parametrize("preset", sorted(CNN_WINDOWS))
@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (3, 7)])
def test_presets_fit_any_image_from_the_smallest_on(preset: str, channels: int, classes: int) -> None:
    least = smallest(preset)
    for height, width in ((least, least), (least + 1, least + 9), (40, 33)):
        module = build(cnn(preset), (channels, height, width), classes, 0)
        assert module(torch.zeros(2, channels, height, width)).shape == (2, classes)
    assert spatial(CNN_WINDOWS[preset], least - 1) == 0


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
def test_regressions_learn_in_the_unit_interval_and_predict_in_units(kind: str, names: dict) -> None:
    module = build(TypeAdapter(Model).validate_python({"kind": kind}), (4,), 1, 0, (1e9, 1e9 + 2))
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == names
    assert module(torch.ones(3, 4)).tolist() == [[1e9 + 1]] * 3
    with torch.no_grad():
        next(reversed(list(module.parameters()))).fill_(0.25)
    assert module(torch.ones(3, 4)).tolist() == [[1e9 + 1.25]] * 3
    assert module(torch.ones(0, 4)).shape == (0, 1)


def test_a_regression_without_a_range_is_not_built() -> None:
    with pytest.raises(ValueError, match="range of its target"):
        build(Location(kind="location"), (4,), 1, 0)


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
