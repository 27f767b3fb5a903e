"""The root of a recipe: eleven blocks, each with one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from dprecipe.data.schema import Data
from dprecipe.language.base import Block
from dprecipe.language.blocks import Budget, Reason, Release, Runtime
from dprecipe.language.training import Training
from dprecipe.language.tuning import Tuning
from dprecipe.mechanisms.table import mechanism_block
from dprecipe.models.schema import Model

if TYPE_CHECKING:
    from dprecipe.mechanisms.contract import MechanismBlock
else:
    MechanismBlock = mechanism_block()


class Recipe(Block):
    """One recipe: what is to be learned, and how much privacy may be spent."""

    recipe: Literal["dprecipe/v1"] = Field(description="the version of the language")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    description: str = ""
    data: Data
    model: Model
    mechanism: MechanismBlock
    budget: Budget
    training: Training = Field(default_factory=Training)
    tuning: Tuning | None = Field(None, description="train several times and release the best; the budget is for all")
    runtime: Runtime = Field(default_factory=Runtime)
    release: Release = Field(default_factory=Release)
    accept: dict[Annotated[str, Field(max_length=20)], Reason] = Field(
        default_factory=dict, max_length=20, description="warnings that are accepted: the code, and the reason"
    )
    meta: dict[str, Any] = Field(default_factory=dict, description="free-form; nothing reads it")
