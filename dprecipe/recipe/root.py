"""The root of a recipe: twelve blocks, each with one job; and that of a recipe without privacy, which has no budget.

The two are different types. What plans, spends, certifies or verifies takes a `Recipe` and nothing else, so no road
leads from `mechanism: {kind: none}` to a guarantee.
"""

from __future__ import annotations

import json
from collections.abc import Mapping as AnyMapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from dprecipe.contract.table import mechanism_block
from dprecipe.data.schema import Data
from dprecipe.language.audit import AuditBlock
from dprecipe.language.base import Block, NonNegativeInt, SparseBlock
from dprecipe.language.blocks import Budget, Reason, Release, Runtime
from dprecipe.language.training import Training
from dprecipe.language.tuning import Tuning
from dprecipe.models.schema import Model
from dprecipe.text.tree import Mapping, Scalar

if TYPE_CHECKING:
    from dprecipe.contract.mechanism import MechanismBlock
else:
    MechanismBlock = mechanism_block()

Description = Annotated[str, Field(max_length=1000)]
"""Description that stands before the claim in a report and a card: at most 1,000 characters."""


class Recipe(SparseBlock):
    """One recipe: what is to be learned, and how much privacy may be spent."""

    left_out = ("audit",)

    recipe: Literal["dprecipe/v1"] = Field(description="the version of the language")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    description: Description = ""
    data: Data
    model: Model
    mechanism: MechanismBlock
    budget: Budget
    training: Training = Field(default_factory=Training)
    tuning: Tuning | None = Field(None, description="train several times and release the best; the budget is for all")
    audit: AuditBlock | None = Field(None, description="attack the claim before the first private record")
    runtime: Runtime = Field(default_factory=Runtime)
    release: Release = Field(default_factory=Release)
    accept: dict[Annotated[str, Field(max_length=20)], Reason] = Field(
        default_factory=dict, max_length=20, description="warnings that are accepted: the code, and the reason"
    )
    meta: dict[str, Any] = Field(
        default_factory=dict, description="free-form; of it only `license` is read, for a model card"
    )


class NoMechanism(Block):
    """No privacy: plain training on records that are declared public."""

    kind: Literal["none"]


class PublicRuntime(Block):
    """Device of the run, and its seed."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    seed: NonNegativeInt = Field(0, description="of the initial weights, the order of records and augmentation")


class PublicRecipe(Block):
    """A recipe without privacy: weights are learned from records that are declared public, and nothing is spent."""

    recipe: Literal["dprecipe/v1"] = Field(description="the version of the language")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    description: Description = ""
    data: Data
    model: Model
    mechanism: NoMechanism
    training: Training = Field(default_factory=Training)
    runtime: PublicRuntime = Field(default_factory=PublicRuntime)
    meta: dict[str, Any] = Field(default_factory=dict, description="free-form; nothing reads it")


AnyRecipe = Recipe | PublicRecipe
Root = type[Recipe] | type[PublicRecipe]


def choose_root(tree: Mapping) -> Root:
    """Returns the type of the recipe that a text states: without privacy if `mechanism.kind` is the word `none`."""
    mechanism = tree.entries.get("mechanism")
    block = None if mechanism is None else mechanism.value
    kind = block.entries.get("kind") if isinstance(block, Mapping) else None
    named = kind is not None and isinstance(kind.value, Scalar) and kind.value.value == "none"
    return PublicRecipe if named else Recipe


class PointError(ValueError):
    """The values make no recipe; the text says why."""


def set_values(recipe: Recipe, values: AnyMapping[str, Any]) -> Recipe:
    """Returns the recipe with `values` (JSON types) at their dotted paths; blocks that are not written are begun.

    Raises:
        PointError: no such key, or no value that it can have.
    """
    plain = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in values.items():
        _set(plain, path, value)
    try:
        return Recipe.model_validate_json(json.dumps(plain))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise PointError(_explain(first["type"], first["msg"])) from None


def look_up(plain: Any, path: str) -> Any:
    """Returns the value at a dotted path of a resolved recipe (JSON types).

    Raises:
        PointError: there is no such key.
    """
    for step in path.split("."):
        if isinstance(plain, list):
            plain = plain[_index(plain, step)]
        elif isinstance(plain, AnyMapping) and step in plain:
            plain = plain[step]
        else:
            raise PointError("a recipe has no such key")
    return plain


def _explain(kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return "a recipe has no such key"
    return message.replace("Input should", "it should").replace("array", "list")


def _set(plain: Any, path: str, value: Any) -> None:
    *steps, last = path.split(".")
    for step in steps:
        plain = _enter(plain, step)
    if isinstance(plain, list):
        plain[_index(plain, last)] = value
    elif isinstance(plain, dict):
        plain[last] = value
    else:
        raise PointError("a recipe has no such key")


def _enter(plain: Any, step: str) -> Any:
    if isinstance(plain, list):
        return plain[_index(plain, step)]
    if not isinstance(plain, dict):
        raise PointError("a recipe has no such key")
    if plain.get(step) is None:
        plain[step] = {}
    return plain[step]


def _index(items: list[Any], step: str) -> int:
    if not (step.isdecimal() and step.isascii() and len(step) < 6 and int(step) < len(items)):
        raise PointError(f"the list has no item `{step[:40]}`")
    return int(step)
