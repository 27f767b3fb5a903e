"""A prior in a recipe, and the file that stands for it."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.data.facts import DataFacts
from dprecipe.data.image_steps import Crop
from dprecipe.data.schema import Scale, Step
from dprecipe.data.targets import ClassTarget
from dprecipe.faults import DataFault
from dprecipe.models.checks import check_data
from dprecipe.models.prior_checks import check_prior_file, describe_network, describe_steps, read_network
from dprecipe.models.schema import Cnn, Mlp, WideResNet
from dprecipe.priors.record import PriorFacts, PriorFile, PriorRecord
from dprecipe.priors.schema import Prior

PRIOR = Prior(generator="mixed")
FACTS = PriorFacts(images="sha256:" + "1" * 64, weights="sha256:" + "2" * 64, versions={}, device="cpu")
MODEL = Cnn(kind="cnn", preset="lenet", init="w.safetensors", prior=PRIOR, train="head")


def facts(*shape: int) -> DataFacts:
    return DataFacts(shape, ClassTarget(10), shape)


def record(**more: Any) -> PriorRecord:
    parts = {"prior": PRIOR, "shape": (1, 28, 28), "network": describe_network(MODEL), "facts": FACTS}
    return PriorRecord(**{**parts, **more})


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (MODEL, (1, 28, 28), []),
        (MODEL.model_copy(update={"init": None, "train": "all"}), (1, 28, 28), ["set model.init"]),
        (Mlp(kind="mlp", hidden=(3,), init="w.safetensors", prior=PRIOR), (64,), ["remove model.prior"]),
        (MODEL, (2, 28, 28), ["remove model.prior"]),
        (
            WideResNet(kind="wide_resnet", init="w.safetensors", prior=PRIOR),
            (3, 300, 300),
            ["remove model.prior"],
        ),
    ],
)
def test_a_prior_needs_a_file_and_images(model: Any, shape: tuple[int, ...], expected: list[str]) -> None:
    result = check_data(model, facts(*shape))
    assert [finding.code for finding in result] == ["R284"] * len(expected)
    assert [finding.path for finding in result] == ["model.prior"] * len(expected)
    for finding, remedy in zip(result, expected, strict=True):
        assert remedy in finding.remedy
    followed = {"init": "prior.safetensors"} if "set" in "".join(expected) else {"prior": None}
    assert check_data(model.model_copy(update=followed), facts(*shape)) == []


def test_the_file_of_the_declared_prior_is_taken() -> None:
    file = PriorFile(record(), FACTS.weights)
    assert check_prior_file("w", MODEL, PRIOR, file) == FACTS
    pinned = PRIOR.model_copy(update={"digest": FACTS.images})
    assert check_prior_file("w", MODEL, pinned, file) == FACTS


@pytest.mark.parametrize(
    ("file", "prior", "words"),
    [
        (None, PRIOR, "says nothing of a prior"),
        (PriorFile(record(), "sha256:" + "3" * 64), PRIOR, "not those that its prior made"),
        (
            PriorFile(record(network={"kind": "cnn", "preset": "scattering"}), FACTS.weights),
            PRIOR,
            "model.preset differs",
        ),
        (PriorFile(record(), FACTS.weights), Prior(generator="mixed", seed=1), "seed differ"),
        (PriorFile(record(), FACTS.weights), Prior(generator="spectrum", steps=5), "generator, steps differ"),
        (
            PriorFile(record(), FACTS.weights),
            PRIOR.model_copy(update={"digest": "sha256:" + "4" * 64}),
            "other images",
        ),
    ],
)
def test_any_other_file_is_refused(file: PriorFile | None, prior: Prior, words: str) -> None:
    with pytest.raises(DataFault, match=words) as fault:
        check_prior_file("w", MODEL, prior, file)
    assert "dprecipe prior RECIPE" in fault.value.remedy


def test_what_learned_is_described_and_read_again() -> None:
    steps = (Step(scale=Scale(mean=0.5, std=0.25)), Step(crop=Crop(padding=4)))
    message = record(preprocess=describe_steps(steps))
    assert read_network(message, "w") == (Cnn(kind="cnn", preset="lenet"), steps[:1])


@pytest.mark.parametrize(
    "change",
    [
        {"network": {"kind": "logistic_regression"}},
        {"network": {"kind": "cnn", "preset": "evil"}},
        {"network": {}},
        {"shape": (1, 28, 2)},
        {"preprocess": ({"fit": {}},)},
    ],
)
def test_a_strange_network_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(DataFault, match="damaged"):
        read_network(record(**change), "w")
