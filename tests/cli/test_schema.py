"""`dprecipe schema`."""

from __future__ import annotations

from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dprecipe.cli.recipe_schema import recipe_schema
from dprecipe.cli.schema import SCHEMAS, schema, schema_text
from dprecipe.faults import RecipeError, UsageFault
from dprecipe.recipe.read import read
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter
from dprecipe.text.load import parse
from dprecipe.text.tree import to_plain
from tests.text.reading import load


@pytest.mark.slow
def test_written_schemas_are_current_and_drift_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "schemas"
    assert schema(out, check=True) == 1
    assert schema(out) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(SCHEMAS)
    assert schema(out, check=True) == 0
    with (out / "recipe.schema.json").open("a") as file:
        file.write(" ")
    assert schema(out, check=True) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageFault):
        schema(tmp_path / "file")


ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "recipes"
VALIDATOR = Draft202012Validator(recipe_schema())


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_committed_schemas_are_current_and_valid(name: str) -> None:
    assert (ROOT / "schemas" / name).read_text("utf-8") == schema_text(name)
    schema = SCHEMAS[name]()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_two_validators_agree_on_every_golden_recipe() -> None:
    compared = 0
    for path in sorted(GOLDEN.glob("*.yaml")):
        try:
            tree, findings = parse(path.read_text("utf-8"), str(path))
        except UnicodeDecodeError:
            continue
        if findings or tree is None or "extends" in (value := to_plain(tree)):  # type: ignore[operator]
            continue
        try:
            read(path)
            ours = True
        except RecipeError as error:
            # A secret under `meta` is well-formed; anywhere else its key is unknown as well.
            ours = all(f.code == "R113" and f.path.startswith("meta.") for f in error.findings)
        assert VALIDATOR.is_valid(value) == ours, path.name
        compared += 1
    assert compared >= 35


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_starters_are_valid(mechanism: str, source: str) -> None:
    VALIDATOR.validate(to_plain(load(make_starter(mechanism, source, "s"), "s.yaml")))


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("extends: base.yaml", True),
        ("extends: base.yaml\nbudget: {epsilon: 1}", True),
        ("extends: base.yaml\nmodel: {hidden: [3]}", True),
        ("extends: base.yaml\nbudget: {epsilom: 1}", False),
        ("extends: base.yaml\nmodel: {kind: mlp, preset: lenet}", False),
        ("extends: [a, b]", False),
        ("name: alone", False),
    ],
)
def test_a_recipe_that_extends_another_writes_only_a_part(text: str, valid: bool) -> None:
    assert VALIDATOR.is_valid(to_plain(load(text, "r.yaml"))) is valid


def test_an_error_in_a_kind_speaks_of_that_kind_only() -> None:
    value = to_plain(load((GOLDEN / "r101-of-another-kind.yaml").read_text("utf-8"), "r.yaml"))
    messages = [error.message for error in VALIDATOR.iter_errors(value)]
    assert len(messages) == 2
    assert all("unexpected" in message for message in messages)


def test_a_clip_block_without_a_mode_is_flat() -> None:
    value = to_plain(load((GOLDEN / "r101-of-another-kind.yaml").read_text("utf-8"), "r.yaml"))
    value["training"]["optimizer"].pop("beta1")
    value["mechanism"]["noise"].pop("df")
    for clip, unexpected in (
        ({"norm": 1.0, "quantile": 0.5}, 1),
        ({"mode": "adaptive", "norm": 1.0, "quantile": 0.5}, 0),
    ):
        value["mechanism"]["clip"] = clip
        messages = [error.message for error in VALIDATOR.iter_errors(value)]
        assert len(messages) == unexpected
        assert all("'quantile' was unexpected" in message for message in messages)
