from __future__ import annotations

import pytest

from dprecipe.data.facts import DataFacts
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget
from dprecipe.models.checks import check_data, find_unsupported
from dprecipe.models.schema import (
    Cnn,
    GradientBoosting,
    HuberRegression,
    HuberSvm,
    LeastSquares,
    Linear,
    Location,
    LogisticRegression,
    Lora,
    Mlp,
    Model,
    RandomForest,
    SoftmaxRegression,
    TrainedLayers,
    Transformer,
    Transformers,
    WideResNet,
)

REGRESSIONS = [
    LeastSquares(kind="least_squares"),
    HuberRegression(kind="huber_regression"),
    Location(kind="location", threshold=0.1),
]
CLASSIFIERS = [
    LogisticRegression(kind="logistic_regression"),
    SoftmaxRegression(kind="softmax_regression"),
    HuberSvm(kind="huber_svm"),
    RandomForest(kind="random_forest"),
]
NETWORKS = [
    Linear(kind="linear"),
    Mlp(kind="mlp", hidden=(3,)),
]
NUMBER = DataFacts((3,), NumberTarget(0.0, 9.0), (3,))
COUNT = DataFacts((3,), CountTarget(9), (3,))


def facts(*shape: int) -> DataFacts:
    return DataFacts(shape, ClassTarget(10), shape)


def test_vector_models_read_everything() -> None:
    for shape in ((3,), (1, 1, 1)):
        assert check_data(Mlp(kind="mlp", hidden=(3,)), facts(*shape)) == []
        assert check_data(LogisticRegression(kind="logistic_regression"), facts(*shape)) == []
        assert check_data(RandomForest(kind="random_forest"), facts(*shape)) == []
        assert check_data(GradientBoosting(kind="gradient_boosting"), facts(*shape)) == []


@pytest.mark.parametrize(
    ("preset", "shape"),
    [
        ("tempered-mnist", (1, 28, 28)),
        ("tempered-cifar", (3, 32, 32)),
        ("lenet", (1, 12, 12)),
        ("scattering", (81, 2, 2)),
    ],
)
def test_presets_read_their_images(preset: str, shape: tuple[int, ...]) -> None:
    assert check_data(Cnn(kind="cnn", preset=preset), facts(*shape)) == []


def test_a_cnn_on_a_vector() -> None:
    result = check_data(Cnn(kind="cnn", preset="lenet"), DataFacts((784,), ClassTarget(10), (1, 28, 28)))
    assert [(f.code, f.path) for f in result] == [("R250", "model.kind")]
    assert "flatten" in result[0].remedy


@pytest.mark.parametrize(
    ("preset", "shape", "remedy"),
    [
        ("tempered-mnist", (1, 8, 8), "tempered-cifar"),
        ("lenet", (1, 11, 28), "tempered-cifar"),
        ("lenet", (1, 4, 4), "mlp"),
        ("scattering", (81, 1, 2), "mlp"),
    ],
)
def test_a_cnn_on_an_image_too_small(preset: str, shape: tuple[int, ...], remedy: str) -> None:
    result = check_data(Cnn(kind="cnn", preset=preset), facts(*shape))
    assert [(f.code, f.path) for f in result] == [("R251", "model.preset")]
    assert remedy in result[0].remedy


@pytest.mark.parametrize("model", [*REGRESSIONS, *CLASSIFIERS], ids=lambda model: model.kind)
def test_regressions_learn_numbers_and_classifiers_classes(model: Model) -> None:
    number, two = check_data(model, NUMBER), check_data(model, DataFacts((3,), ClassTarget(2), (3,)))
    wrong = two if model in REGRESSIONS else number
    right = number if model in REGRESSIONS else two
    assert right == []
    assert [(f.code, f.path) for f in wrong] == [("R252" if model in REGRESSIONS else "R253", "model.kind")]
    assert wrong[0].remedy


@pytest.mark.parametrize("model", [*REGRESSIONS, *CLASSIFIERS], ids=lambda model: model.kind)
def test_nothing_but_networks_learns_counts(model: Model) -> None:
    result = check_data(model, COUNT)
    assert [(f.code, f.path) for f in result] == [("R252" if model in REGRESSIONS else "R253", "model.kind")]
    assert "the label is a count" in result[0].message
    assert "linear" in result[0].remedy


@pytest.mark.parametrize("model", NETWORKS, ids=lambda model: model.kind)
def test_networks_learn_any_label(model: Model) -> None:
    for facts_of_label in (NUMBER, COUNT, DataFacts((3,), ClassTarget(2), (3,))):
        assert check_data(model, facts_of_label) == []
    lenet = Cnn(kind="cnn", preset="lenet")
    assert check_data(lenet, DataFacts((1, 28, 28), NumberTarget(0.0, 1.0), (1, 28, 28))) == []


def test_a_huber_svm_tells_two_classes_apart() -> None:
    result = check_data(HuberSvm(kind="huber_svm"), facts(3))
    assert [(f.code, f.path) for f in result] == [("R254", "model.kind")]
    assert "softmax_regression" in result[0].remedy


@pytest.mark.parametrize(
    ("model", "fitted", "path"),
    [
        *((model, False, "model.kind") for model in REGRESSIONS),
        (SoftmaxRegression(kind="softmax_regression"), False, "model.kind"),
        (LogisticRegression(kind="logistic_regression", l2=0.1), False, "model.l2"),
        (LogisticRegression(kind="logistic_regression", bias=False), True, "model.bias"),
        (LogisticRegression(kind="logistic_regression", bias=False), False, None),
        (LogisticRegression(kind="logistic_regression"), True, None),
        (RandomForest(kind="random_forest"), True, None),
    ],
)
def test_what_only_hidden_steps_have_a_use_for(model: Model, fitted: bool, path: str | None) -> None:
    result = list(find_unsupported(model, "pate", fitted=fitted))
    assert [(f.code, f.path) for f in result] == ([] if path is None else [("R280", path)])


TEXT = Transformer(kind="transformer", vocabulary=9)


def part(**written: object) -> TrainedLayers:
    return TrainedLayers.model_validate(written)


@pytest.mark.parametrize(
    ("change", "shape", "vocabulary", "codes"),
    [
        ({}, (5,), None, []),
        ({"vocabulary": None}, (5,), 9, []),
        ({}, (5,), 9, []),
        ({"vocabulary": None}, (5,), None, ["R255"]),
        ({}, (5,), 8, ["R255"]),
        ({}, (1, 8, 8), None, ["R255"]),
        ({"width": 10, "heads": 4}, (5,), 9, ["R256"]),
        ({"train": "head"}, (5,), 9, ["R257"]),
        ({"lora": Lora()}, (5,), 9, ["R257"]),
        ({"lora": Lora(), "init": "w.safetensors"}, (5,), 9, []),
        ({"train": "head", "init": "w.safetensors"}, (5,), 9, []),
        ({"lora": Lora(), "train": "head", "init": "w.safetensors"}, (5,), 9, ["R257"]),
        ({"train": part(only=("layers.0", "head")), "init": "w.safetensors"}, (5,), 9, []),
        ({"train": part(only=("layers.2", "heads")), "init": "w.safetensors"}, (5,), 9, ["R285", "R285"]),
        ({"train": part(only=("head",))}, (5,), 9, ["R257"]),
        ({"train": part(), "init": "w.safetensors"}, (5,), 9, ["R257"]),
        ({"train": part(**{"from": "head"}, only=("head",)), "init": "w.safetensors"}, (5,), 9, ["R257"]),
        ({"lora": Lora(), "train": part(only=("head",)), "init": "w.safetensors"}, (5,), 9, ["R257"]),
    ],
)
def test_a_transformer(change: dict, shape: tuple[int, ...], vocabulary: int | None, codes: list[str]) -> None:
    result = check_data(TEXT.model_copy(update=change), DataFacts(shape, ClassTarget(3), shape, vocabulary=vocabulary))
    assert [f.code for f in result] == codes
    assert all(f.remedy and f.path.startswith("model") for f in result)


def test_a_wide_residual_network_reads_images() -> None:
    spec = WideResNet(kind="wide_resnet")
    assert check_data(spec, facts(3, 32, 32)) == check_data(spec, facts(1, 4, 5)) == []
    assert [(f.code, f.path) for f in check_data(spec, facts(784))] == [("R250", "model.kind")]
    assert [(f.code, f.path) for f in check_data(spec, facts(1, 3, 9))] == [("R251", "model.kind")]


@pytest.mark.parametrize("name", ["w.pt", "safetensors", "w.safetensors.bin", "folder"])
def test_weights_are_read_from_safetensors_files_alone(name: str) -> None:
    spec = Mlp(kind="mlp", hidden=(3,), init=name)
    assert [(f.code, f.path) for f in check_data(spec, facts(5))] == [("R259", "model.init")]
    assert check_data(spec.model_copy(update={"init": "weights/w.safetensors"}), facts(5)) == []
    encoder = check_data(
        Transformers(kind="transformers", init="folder"), DataFacts((5,), ClassTarget(3), (5,), vocabulary=9)
    )
    assert "R259" not in {finding.code for finding in encoder}
