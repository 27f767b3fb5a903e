"""What a certificate says of its tensors, held against the models of recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dprecipe.data.facts import describe_data
from dprecipe.models.build import build
from dprecipe.models.schema import LogisticRegression, Mlp
from dprecipe.release.tensors import expected_shapes

MODELS = [
    LogisticRegression(kind="logistic_regression"),
    LogisticRegression(kind="logistic_regression", bias=False),
    Mlp(kind="mlp", hidden=(16, 8), activation="relu"),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_recipe_s_model_has_as_many_numbers_as_are_known_without_building_it(model: Any, plan_of: Any) -> None:
    """And the very tensors: a model of ours has none that is not known."""
    plan = replace(plan_of(), model=model)
    public = describe_data(plan.data)
    module = build(model, public.shape, public.outputs, 0)
    assert expected_shapes(plan) == {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
