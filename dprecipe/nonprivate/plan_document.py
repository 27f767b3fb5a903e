"""The document of a plan without privacy; imported only where it is written."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dprecipe.contract.document import Document, RecipeName
from dprecipe.contract.facts import Digest
from dprecipe.language.base import PositiveInt
from dprecipe.models.public_record import NO_GUARANTEE


class PublicPlanDocument(Document):
    """A plan without privacy: `plan.json`, and what `dprecipe plan --format json` prints."""

    model_config = ConfigDict(title="dprecipe plan without privacy", extra="forbid")

    schema_: Literal["dprecipe.public-plan/v1"] = Field("dprecipe.public-plan/v1", alias="schema")
    recipe: RecipeName
    digest: Digest
    mechanism: Literal["none"] = "none"
    guarantee: None = None
    notice: Annotated[str, Field(json_schema_extra={"const": NO_GUARANTEE})] = NO_GUARANTEE
    steps: PositiveInt
    batch_size: PositiveInt
