"""The recipe's models form a closed world: strict, frozen, finite, without free-form corners but `meta`."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from dprecipe.contract.table import MECHANISMS, mechanism_block
from dprecipe.data.sources.table import SOURCES
from dprecipe.recipe.root import Recipe
from dprecipe.recipe.vocabulary import expect_form, find_tag, list_every_key, list_keys, list_kinds
from dprecipe.text.merge import TAGS

FREE = {("Recipe", "meta")}


def annotations_in(annotation: Any) -> Iterator[Any]:
    yield annotation
    if get_origin(annotation) is Annotated:
        yield from annotations_in(get_args(annotation)[0])
    elif get_origin(annotation) is not Literal:
        for argument in get_args(annotation):
            yield from annotations_in(argument)


def models(model: type[BaseModel], seen: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    if model.__name__ in seen:
        assert seen[model.__name__] is model, "two models share a name: their JSON Schemas would collide"
        return seen
    seen[model.__name__] = model
    for field in model.model_fields.values():
        for part in annotations_in(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                models(part, seen)
    return seen


MODELS = models(Recipe, {})


def test_the_walk_finds_the_models() -> None:
    assert {"Recipe", "Dpsgd", "Csv", "Numeric", "Scale", "LearningRateSchedule", "GaussianNoise"} <= set(MODELS)
    assert len(MODELS) >= 40


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_model_is_closed(model: type[BaseModel]) -> None:
    config = model.model_config
    assert config["extra"] == "forbid"
    assert config["frozen"] is True
    assert config["strict"] is True
    assert config["allow_inf_nan"] is False
    assert model.__doc__, "the docstring is the editor's help"
    for name, field in model.model_fields.items():
        if (model.__name__, name) in FREE:
            continue
        for part in annotations_in(field.annotation):
            assert part is not Any
            assert part is not bytes
            origin = get_origin(part)
            assert origin not in (list, set, frozenset), "use a tuple: blocks are frozen"
            if origin is dict:
                where = {
                    "columns": {block.__name__ for blocks in SOURCES for block in blocks},
                    "roles": {"Sequences"},
                    "tables": {"DuckDb", "PublicDuckDb", "Postgres", "PublicPostgres"},
                    "accept": {"Recipe"},
                    "class_weights": {"Training"},
                    "bounds": {"DpQuantiles", "DpStandardize"},
                }
                assert model.__name__ in where[name]
            if origin in (Union, types.UnionType):
                blocks = expect_form(part).blocks
                kinds = tuple(block for block in blocks if find_tag((block,)) is not None)
                assert len(blocks) <= 1 or len(blocks) - len(kinds) <= 1, f"{model.__name__}.{name}: no kind"
                assert len(kinds) <= 1 or {*list_kinds(kinds).values()} == {*kinds}, f"{model.__name__}.{name}: no kind"
        expect_form(field.annotation)  # and messages can speak of it


def test_no_kind_is_called_like_a_key() -> None:
    """The walk back from a validator's location skips tags, which are no keys of the block at hand: of a union's
    blocks, none has a key that is called like a kind of that union."""
    words = {str(word) for model in MODELS.values() for form in list_keys(model).values() for word in form.words}  # type: ignore[arg-type]
    tags = {
        name
        for model in MODELS.values()
        for tag in TAGS
        if tag in model.model_fields
        for name in map(str, get_args(model.model_fields[tag].annotation))
    }
    assert tags <= words
    names = {known.path.rpartition(".")[2] for known in list_every_key()}
    checked = 0
    for model in MODELS.values():
        for field in model.model_fields.values():
            for part in annotations_in(field.annotation):
                is_union = get_origin(part) in (Union, types.UnionType)
                blocks = expect_form(part).blocks if is_union else ()
                kinds = set(list_kinds(blocks)) if len(blocks) > 1 else set()
                for block in blocks:
                    assert not kinds & set(list_keys(block)), block.__name__
                checked += len(kinds)
    assert checked > 30
    assert not {"word", "number", "block", "list", "one", "many"} & names


def test_every_mechanism_is_in_the_union() -> None:
    assert set(list_kinds(expect_form(mechanism_block()).blocks)) == set(MECHANISMS)
