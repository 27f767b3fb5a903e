"""No sentence of the validator reaches a user, whatever it complains about."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic_core import ErrorDetails, ValidationError
from pydantic_core.core_schema import ErrorType

from dprecipe.faults import RecipeError
from dprecipe.recipe.json_schema import schema_text
from dprecipe.recipe.read import read_text
from dprecipe.recipe.synonyms import SYNONYMS, WORDS
from dprecipe.recipe.vocabulary import every_key, keys
from dprecipe.recipe.wording import word
from dprecipe.text.codes import CODES
from dprecipe.text.load import load

FINE = (Path(__file__).parents[1] / "golden" / "recipes" / "fine.yaml").read_text("utf-8")
KNOWN_PATHS = {known.path for known in every_key()}
ERRORS = get_args(ErrorType)
RAW = re.compile(r"Input should|Field required|not permitted|valid (?:dictionary|integer|number|string|tuple)|pydantic")
LOCATIONS = [
    (),
    ("recipe",),
    ("name",),
    ("data", "size"),
    ("data", "unit", "word"),
    ("data", "preprocess"),
    ("model", "mlp", "hidden", 0),
    ("mechanism", "kind"),
    ("mechanism", "noise", "gaussian", "multiplier", "number"),
    ("training", "optimizer"),
    ("runtime", "seed"),
    ("meta", "x"),
    ("nowhere", "at", "all"),
]


class Raised:
    """An error of any type at any location, as the validator would report it."""

    def __init__(self, kind: str, location: tuple[str | int, ...], context: dict[str, object]) -> None:
        self.item = ErrorDetails(type=kind, loc=location, msg="Input should be pydantic", input=None, ctx=context)

    def errors(self, *, include_url: bool, include_input: bool) -> list[ErrorDetails]:
        return [self.item]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_type_is_worded(kind: str) -> None:
    context = {"gt": 0, "ge": 0, "lt": 1, "le": 1, "min_length": 1, "actual_length": 0, "discriminator": "form()"}
    for location in LOCATIONS:
        error: ValidationError = Raised(kind, location, context)  # type: ignore[assignment]
        (finding,) = word(error, load(FINE, "r.yaml"), frozenset())
        assert finding.code in CODES
        assert finding.message
        assert finding.remedy
        assert finding.place is not None
        assert not RAW.search(finding.message + finding.remedy), finding


def test_a_value_that_cannot_be_placed_has_a_code_too() -> None:
    error: ValidationError = Raised("finite_number", ("meta", "x"), {})  # type: ignore[assignment]
    text = FINE + "meta: {x: 1}\n"
    assert [finding.code for finding in word(error, load(text, "r.yaml"), frozenset())] == ["R199"]


@pytest.mark.parametrize("name", SYNONYMS)
def test_every_synonym_leads_to_a_key_of_the_language(name: str) -> None:
    synonym = SYNONYMS[name]
    assert synonym.remedy
    assert not synonym.path or synonym.path in KNOWN_PATHS
    for path in re.findall(r"\b(?:data|mechanism|budget|training|runtime)\.[a-z_.]*[a-z]", synonym.remedy):
        assert path in KNOWN_PATHS, path


@pytest.mark.parametrize("name", sorted(set(SYNONYMS) - {known.path.rpartition(".")[2] for known in every_key()}))
def test_a_synonym_is_answered_wherever_it_stands(name: str) -> None:
    for text in (FINE + f"{name}: 1\n", FINE.replace("  kind: dpsgd", f"  kind: dpsgd\n  {name}: 1")):
        with pytest.raises(RecipeError) as caught:
            read_text(text)
        (finding,) = caught.value.findings
        assert finding.code == "R112"
        assert finding.remedy == SYNONYMS[name].remedy


def test_every_translated_word_is_a_word_of_the_language() -> None:
    enums = re.findall(r'"(?:const|enum)": (\[[^\]]*\]|"[^"]*")', schema_text("recipe.schema.json"))
    assert set(WORDS.values()) <= set(re.findall(r'"([^"]*)"', " ".join(enums)))


def test_keys_of_the_table_are_not_keys_at_the_same_place() -> None:
    from dprecipe.recipe.root import Recipe

    assert not set(SYNONYMS) & set(keys(Recipe))
