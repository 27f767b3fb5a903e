"""Layers by name: what a recipe's `model.train` selects, and what it says of names that are none."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.models.layout import find_unknown_layers, select_tensors
from dprecipe.models.schema import TrainedLayers

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
