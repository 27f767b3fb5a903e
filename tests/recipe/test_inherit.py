"""Columns, label and shape are written once, in `data.train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dprecipe.cli.recipe_schema import recipe_schema
from dprecipe.faults import RecipeError
from dprecipe.recipe.read import Loaded, read_text
from tests.schemas import validator_of

RECIPE = """\
recipe: dprecipe/v1
name: shared
data:
  train:
    source: csv
    path: train.csv
    delimiter: ";"
    columns: {{age: {{kind: numeric, min: 0, max: {top}}}}}
    label: {{column: ill, values: ["no", "yes"]}}
  test: {test}
  size: 100
model: {{kind: logistic_regression}}
mechanism:
  kind: dpsgd
  clip: {{norm: 1.0}}
  noise: {{family: gaussian, multiplier: 1.0}}
  sampling: {{scheme: poisson, batch_size: 10}}
budget: {{epsilon: auto, delta: 1e-5}}
training: {{steps: 10, optimizer: {{kind: sgd, lr: 0.5}}}}
"""


def load(test: str, top: str = "100", overrides: tuple[str, ...] = ()) -> Loaded:
    return read_text(RECIPE.format(test=test, top=top), "r.yaml", overrides)


def test_a_held_out_source_states_what_differs() -> None:
    loaded = load("{path: test.csv, access: public}")
    train, test = loaded.recipe.data.train, loaded.recipe.data.test
    assert test is not None
    assert test.model_dump() == {**train.model_dump(), "path": "test.csv", "access": "public"}
    assert loaded.place("data.test.columns.age.max").line == loaded.place("data.train.columns.age.max").line == 8


def test_what_a_source_states_itself_is_its_own() -> None:
    own = load('{path: t.csv, delimiter: ",", label: {column: sick, values: ["no", "yes"]}}').recipe.data.test
    assert own is not None
    assert own.model_dump()["delimiter"] == ","
    assert own.model_dump()["label"]["column"] == "sick"


def test_overrides_of_the_training_source_reach_the_others() -> None:
    loaded = load("{path: test.csv}", overrides=("data.train.columns.age.max=50",))
    assert loaded.recipe.data.test is not None
    assert loaded.recipe.data.test.table_columns == loaded.recipe.data.train.table_columns


def test_a_source_of_another_kind_takes_nothing() -> None:
    with pytest.raises(RecipeError) as caught:
        load("{source: parquet, path: test.parquet}")
    assert [(f.code, f.path) for f in caught.value.findings] == [("R102", "data.test.label")]


def test_a_mistake_is_reported_once_where_it_is_written() -> None:
    with pytest.raises(RecipeError) as caught:
        load("{path: test.csv}", top='"high"')
    assert [(f.code, f.path) for f in caught.value.findings] == [("R103", "data.train.columns.age.max")]
    with pytest.raises(RecipeError) as caught:
        load("{access: public}")
    assert [(f.code, f.path) for f in caught.value.findings] == [("R102", "data.test.path")]


@pytest.mark.parametrize("test", ["5", "[1]", "{}", "{source: [csv]}", "{source: {}}"])
def test_anything_else_is_reported_as_ever(test: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(test)
    assert all(finding.path.startswith("data.test") for finding in caught.value.findings)


def test_no_held_out_records_stay_none() -> None:
    assert load("null").recipe.data.test is None


@pytest.mark.parametrize("source", ["npz", "idx", "parquet"])
def test_public_records_take_what_describes_records(source: str) -> None:
    blocks: dict[str, dict[str, Any]] = {
        "npz": {"source": "npz", "path": "a.npz", "shape": [4], "classes": 3},
        "idx": {"source": "idx", "images": "i", "labels": "l", "shape": [8, 8], "classes": 3},
        "parquet": {
            "source": "parquet",
            "path": "p",
            "image": {"column": "i", "shape": [8, 8, 3]},
            "label": {"column": "y", "classes": 3},
        },
    }
    tree = yaml.safe_load(RECIPE.format(test="null", top="1").replace("1e-5", "0.00001"))
    tree["data"] |= {"train": blocks[source], "public": {"path": "b"} if source != "idx" else {"images": "b"}}
    recipe = read_text(json.dumps(tree)).recipe
    assert recipe.data.public is not None
    assert recipe.data.public.source == source
    assert recipe.data.public.record_shape == recipe.data.train.record_shape


def test_the_schema_for_editors_agrees() -> None:
    tree = yaml.safe_load(RECIPE.format(test="{path: test.csv}", top="100").replace("1e-5", "0.00001"))
    validator_of(recipe_schema).validate(tree)


def test_recipes_of_the_repository_do_not_repeat_columns() -> None:
    root = Path(__file__).parents[2]
    for file in sorted((root / "recipes").rglob("*.yaml")):
        data = yaml.safe_load(file.read_text(encoding="utf-8")).get("data") or {}
        train = data.get("train") or {}
        for role in ("test", "public"):
            block = data.get(role) or {}
            repeated = [key for key in ("columns", "label", "image") if key in block and block[key] == train.get(key)]
            assert repeated == [], f"{file.name}: data.{role}"
