"""The recipes' own data sets, read as the recipes declare them; they lie under $DPRECIPE_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.facts import describe_data
from dprecipe.data.load import load
from dprecipe.data.schema import Data
from dprecipe.recipe.read import read

ROOT = Path(os.environ.get("DPRECIPE_DATA", ""))
RECIPES = Path(__file__).parents[2] / "recipes"


def needs(folder: str) -> pytest.MarkDecorator:
    present = "DPRECIPE_DATA" in os.environ and (ROOT / folder).is_dir()
    return pytest.mark.skipif(not present, reason=f"$DPRECIPE_DATA names no folder with {folder}")


def data_of(recipe: str) -> Data:
    return read(RECIPES / recipe).recipe.data


def both(data: Data):
    return load(data.train, data, ROOT, "train"), load(data.test, data, ROOT, "test")


@needs("mnist")
def test_mnist(block) -> None:
    files = {role: f"mnist/{prefix}" for role, prefix in (("train", "train"), ("test", "t10k"))}
    sources = {
        role: {
            "source": "idx",
            "images": f"{start}-images-idx3-ubyte.gz",
            "labels": f"{start}-labels-idx1-ubyte.gz",
        }
        for role, start in files.items()
    }
    steps = [{"scale": {"mean": 0.1307, "std": 0.3081}}]
    train, test = both(block(sources["train"], test=sources["test"], size=60000, preprocess=steps))
    assert train.features.shape == (60000, 1, 28, 28)
    assert abs(float(train.features.mean())) < 1e-3
    assert abs(float(train.features.std()) - 1) < 1e-3
    # The published class counts.
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(train.labels).tolist() == counts
    assert len(test) == 10000


@needs("adult")
def test_adult() -> None:
    data = data_of("adult-dpsgd.yaml")
    train, test = both(data)
    assert train.features.shape == (32561, *describe_data(data).shape)
    assert np.bincount(train.labels).tolist() == [24720, 7841]
    assert np.bincount(test.labels).tolist() == [12435, 3846]
    assert np.linalg.norm(train.features, axis=1).max() <= 3.0
    # `other` is the "?" of a missing answer and nothing else: no category was forgotten.
    for column in describe_data(data).columns:
        if column.width > 1 and column.name != "native-country":
            other = int((train.features[:, column.start + column.width - 1] > 0).sum())
            assert other == {"workclass": 1836, "occupation": 1843}.get(column.name, 0)


@needs("sms_spam")
def test_sms() -> None:
    data = data_of("sms-dpsgd.yaml")
    train, test = both(data)
    assert train.features.shape == (4574, *describe_data(data).shape)
    assert int(train.labels.sum() + test.labels.sum()) == 747
    assert np.linalg.norm(train.features, axis=1).max() <= 1.0


@pytest.mark.slow
@needs("cifar10")
def test_cifar10_test_part() -> None:
    data = data_of("cifar10-dpsgd.yaml")
    test = load(data.test, data, ROOT, "test")
    assert test.features.shape == (10000, 3, 32, 32)
    assert np.bincount(test.labels).tolist() == [1000] * 10
    # The published mean of the set, within the loss of its JPEG copy.
    np.testing.assert_allclose(test.features.mean(axis=(0, 2, 3)), 0, atol=0.03)


@pytest.mark.slow
@needs("cifar10")
def test_cifar10() -> None:
    data = data_of("cifar10-dpsgd.yaml")
    train = load(data.train, data, ROOT, "train")
    assert np.bincount(train.labels).tolist() == [5000] * 10
