import math

import pytest

from dprecipe.models.build import build
from dprecipe.models.initial import head_of
from dprecipe.models.layout import TREES, layer_shapes, layer_sizes, trained_parameters
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
