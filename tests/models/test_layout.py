from __future__ import annotations

import math
from typing import Any

import pytest

from dprecipe.models.build import build
from dprecipe.models.initial import head_of
from dprecipe.models.layout import (
    TREES,
    find_unknown_layers,
    layer_shapes,
    layer_sizes,
    select_tensors,
    trained_parameters,
)
from dprecipe.models.lora import add_adapters, merge_adapters
from dprecipe.models.schema import (
    CausalLm,
    Cnn,
    GradientBoosting,
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Location,
    LogisticRegression,
    Lora,
    Mlp,
    Model,
    Pretrained,
    RandomForest,
    SoftmaxRegression,
    TrainedLayers,
    Transformer,
    WideResNet,
)
from dprecipe.training.publish.released import DTYPES, trained_names

CASES = [
    (LogisticRegression(kind="logistic_regression"), (1, 8, 8), 10),
    (LogisticRegression(kind="logistic_regression"), (105,), 2),
    (LogisticRegression(kind="logistic_regression", bias=False), (105,), 2),
    (SoftmaxRegression(kind="softmax_regression"), (1, 8, 8), 10),
    (SoftmaxRegression(kind="softmax_regression", bias=False), (7,), 3),
    (HuberSvm(kind="huber_svm"), (7,), 2),
    (LeastSquares(kind="least_squares", bias=False), (7,), 1),
    (HuberRegression(kind="huber_regression"), (2, 3, 3), 1),
    (Location(kind="location"), (7,), 1),
    (Mlp(kind="mlp", hidden=(96,)), (1, 8, 8), 10),
    (Mlp(kind="mlp", hidden=(5, 7, 3), activation="relu"), (20,), 4),
    (Cnn(kind="cnn", preset="tempered-mnist"), (1, 28, 28), 10),
    (Cnn(kind="cnn", preset="tempered-mnist"), (3, 33, 40), 7),
    (Cnn(kind="cnn", preset="tempered-cifar"), (3, 32, 32), 10),
    (Cnn(kind="cnn", preset="tempered-cifar"), (1, 28, 30), 3),
    (Cnn(kind="cnn", preset="lenet"), (1, 28, 28), 10),
    (Cnn(kind="cnn", preset="lenet"), (2, 20, 25), 5),
    (Cnn(kind="cnn", preset="lenet-norm"), (1, 28, 28), 10),
    (Cnn(kind="cnn", preset="lenet-norm"), (3, 20, 25), 4),
    (Cnn(kind="cnn", preset="scattering"), (243, 8, 8), 10),
    (Cnn(kind="cnn", preset="scattering"), (81, 7, 6), 4),
    (WideResNet(kind="wide_resnet"), (3, 32, 32), 10),
    (WideResNet(kind="wide_resnet", depth=22, width=2, weight_standardisation=False), (1, 9, 11), 3),
    (Transformer(kind="transformer", vocabulary=50), (9,), 4),
    (Transformer(kind="transformer", width=12, layers=3, heads=3, vocabulary=7), (1,), 2),
    (RandomForest(kind="random_forest"), (20,), 5),
    (GradientBoosting(kind="gradient_boosting"), (20,), 5),
]


@pytest.mark.parametrize(("model", "shape", "classes"), CASES)
def test_sizes_are_those_of_the_network(model: Model, shape: tuple[int, ...], classes: int) -> None:
    layers: dict[str, int] = {}
    for name, parameter in build(model, shape, classes, 0).named_parameters():
        layer = name.rsplit(".", 1)[0]
        layers[layer] = layers.get(layer, 0) + math.prod(parameter.shape)
    assert layer_sizes(model, shape, classes) == tuple(layers.values())
    if isinstance(model, Pretrained):
        head = model.model_copy(update={"train": "head"})
        assert layer_sizes(head, shape, classes) == (list(layers.values())[-1],)


@pytest.mark.parametrize(("model", "shape", "classes"), CASES)
def test_tensors_are_those_of_the_network(model: Model, shape: tuple[int, ...], classes: int) -> None:
    built = build(model, shape, classes, 0)
    state, found = built.state_dict(), layer_shapes(model, shape, classes)
    types = {name: DTYPES[tensor.dtype] for name, tensor in state.items()}
    if isinstance(model, RandomForest | GradientBoosting):
        assert found is None
        assert types == TREES
        return
    assert found == {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert set(types.values()) == {"F32"}
    assert trained_parameters(model, found) == frozenset(found)
    if isinstance(model, Pretrained):
        assert trained_parameters(model.model_copy(update={"train": "head"}), found) == head_of(built)


@pytest.mark.parametrize("target", [None, ("*.mix_in",), ("*.1.up", "*.mix_*")])
def test_adapters_train_the_tensors_that_they_are_merged_into(target: tuple[str, ...] | None) -> None:
    lora = Lora(rank=2, target=target)
    model = Transformer(kind="transformer", width=12, layers=3, heads=3, lora=lora)
    built = build(model, (5,), 3, 0, vocabulary=11)
    add_adapters(built, lora, head_of(built), 0)
    found = layer_shapes(model, (5,), 3, 11)
    assert found == {name: tuple(tensor.shape) for name, tensor in merge_adapters(built, built.state_dict()).items()}
    assert trained_parameters(model, found) == trained_names(built)


def test_the_sizes_of_a_decoder_are_unknown_until_it_is_built() -> None:
    decoder = CausalLm(kind="causal_lm", init="decoder")
    assert layer_shapes(decoder, (2, 8), 7, 16) is None
    assert layer_sizes(decoder, (2, 8), 7, 16) == ()


NETWORK = [
    "tokens.weight",
    *(
        f"layers.{block}.{layer}.{kind}"
        for block in (0, 1, 10)
        for layer in ("norm", "up")
        for kind in ("weight", "bias")
    ),
    "head.weight",
    "head.bias",
]


def spec(**written: Any) -> TrainedLayers:
    return TrainedLayers.model_validate(written)


def layers(trained: frozenset[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in trained}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"from": "head"}, {"head"}),
        ({"from": "layers.10"}, {"layers.10.norm", "layers.10.up", "head"}),
        ({"from": "layers.1.up"}, {"layers.1.up", "layers.10.norm", "layers.10.up", "head"}),
        ({"from": "tokens"}, {name.rpartition(".")[0] for name in NETWORK}),
        ({"only": ("layers.1",)}, {"layers.1.norm", "layers.1.up"}),
        ({"only": ("layers.*.norm", "head")}, {"layers.0.norm", "layers.1.norm", "layers.10.norm", "head"}),
        ({"only": ("layers.1?",)}, {"layers.10.norm", "layers.10.up"}),
        ({"only": ("*",)}, {name.rpartition(".")[0] for name in NETWORK}),
    ],
)
def test_names_select_whole_layers(written: dict[str, Any], expected: set[str]) -> None:
    trained = select_tensors(spec(**written), NETWORK)
    assert layers(trained) == expected
    assert trained == {name for name in NETWORK if name.rpartition(".")[0] in expected}
    assert list(find_unknown_layers(spec(**written), NETWORK)) == []


def test_layers_of_a_sequence_are_numbers() -> None:
    network = ["1.weight", "1.bias", "3.weight", "3.bias", "13.weight"]
    assert layers(select_tensors(spec(**{"from": 3}), network)) == {"3", "13"}
    assert layers(select_tensors(spec(only=(3, "1")), network)) == {"1", "3"}


@pytest.mark.parametrize(
    ("written", "path", "remedy"),
    [
        ({"from": "heads"}, "model.train.from", "write head"),
        ({"from": "layer.1"}, "model.train.from", "write layers.1"),
        ({"from": "layers.*"}, "model.train.from", "write layers.1"),  # `from` names one place
        ({"from": 7}, "model.train.from", "such as head"),
        ({"from": "head.weight"}, "model.train.from", "write head"),
        ({"only": ("head", "token")}, "model.train.only.1", "write tokens"),
        ({"only": ("layers.2*",)}, "model.train.only.0", "write layers.1"),
    ],
)
def test_a_name_that_fits_nothing_is_told_with_the_nearest_and_the_list(
    written: dict[str, Any], path: str, remedy: str
) -> None:
    (finding,) = find_unknown_layers(spec(**written), NETWORK)
    assert (finding.code, finding.path) == ("R285", path)
    assert remedy in finding.remedy
    assert "tokens, layers.0.norm, layers.0.up" in finding.message
    if "from" in written:
        assert select_tensors(spec(**written), NETWORK) == frozenset()


def test_a_large_network_is_not_listed_whole() -> None:
    (finding,) = find_unknown_layers(spec(**{"from": "x"}), [f"{number}.weight" for number in range(500)])
    assert finding.message.endswith("59 and 440 more")
