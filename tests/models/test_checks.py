from __future__ import annotations

import pytest

from dprecipe.data.facts import DataFacts
from dprecipe.models.checks import check
from dprecipe.models.schema import Cnn, GradientBoosting, LogisticRegression, Mlp, RandomForest


def facts(*shape: int) -> DataFacts:
    return DataFacts(shape, 10, shape)


def test_vector_models_read_everything() -> None:
    for shape in ((3,), (1, 1, 1)):
        assert check(Mlp(kind="mlp", hidden=(3,)), facts(*shape)) == []
        assert check(LogisticRegression(kind="logistic_regression"), facts(*shape)) == []
        assert check(RandomForest(kind="random_forest"), facts(*shape)) == []
        assert check(GradientBoosting(kind="gradient_boosting"), facts(*shape)) == []


@pytest.mark.parametrize(
    ("preset", "shape"), [("tempered-mnist", (1, 28, 28)), ("tempered-cifar", (3, 32, 32)), ("lenet", (1, 12, 12))]
)
def test_presets_read_their_images(preset: str, shape: tuple[int, ...]) -> None:
    assert check(Cnn(kind="cnn", preset=preset), facts(*shape)) == []


def test_a_cnn_on_a_vector() -> None:
    found = check(Cnn(kind="cnn", preset="lenet"), DataFacts((784,), 10, (1, 28, 28)))
    assert [(f.code, f.path) for f in found] == [("R250", "model.kind")]
    assert "flatten" in found[0].remedy


@pytest.mark.parametrize(
    ("preset", "shape", "remedy"),
    [
        ("tempered-mnist", (1, 8, 8), "tempered-cifar"),
        ("lenet", (1, 11, 28), "tempered-cifar"),
        ("lenet", (1, 4, 4), "mlp"),
    ],
)
def test_a_cnn_on_an_image_too_small(preset: str, shape: tuple[int, ...], remedy: str) -> None:
    found = check(Cnn(kind="cnn", preset=preset), facts(*shape))
    assert [(f.code, f.path) for f in found] == [("R251", "model.preset")]
    assert remedy in found[0].remedy
