"""The root of a recipe: twelve blocks, each with one job; and that of a recipe without privacy, which has no budget.

The two are different types. What plans, spends, certifies or verifies takes a `Recipe` and nothing else, so no road
leads from `mechanism: {kind: none}` to a guarantee.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

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
