"""What a certificate says of its tensors, held against the models of recipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dprecipe.data.facts import facts
from dprecipe.models.build import build
from dprecipe.models.schema import LogisticRegression, Mlp
from dprecipe.release.tensors import whole_numbers

MODELS = [
    LogisticRegression(kind="logistic_regression"),
    LogisticRegression(kind="logistic_regression", bias=False),
    Mlp(kind="mlp", hidden=(16, 8), activation="relu"),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_recipe_s_model_has_as_many_numbers_as_are_known_without_building_it(model: Any, plan_of: Any) -> None:
    """Of all that its state holds: a model of ours has no tensor that is not counted."""
    plan = replace(plan_of(), model=model)
    public = facts(plan.data)
    module = build(model, public.shape, public.classes, 0)
    assert whole_numbers(plan) == sum(tensor.numel() for tensor in module.state_dict().values())
