"""The origin of a release: its recipe, its plan, the program, and what came from elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dprecipe.contract.facts import Digest, Word
from dprecipe.language.base import Block, PositiveFloat, PositiveInt
from dprecipe.models.public_record import PublicRecord
from dprecipe.priors.record import PriorFacts

PackageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PackageVersion = Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+!_-]{0,63}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Parent(Block):
    """A text that belongs to the recipe: one that it extends, or the summary of a file."""

    name: Word
    text: str


class RecipeFacts(Block):
    """The recipe, verbatim."""

    name: Word
    file: Word
    text: str
    overrides: Annotated[tuple[str, ...], Field(max_length=1000)]
    parents: Annotated[tuple[Parent, ...], Field(max_length=8)]
    attachments: Annotated[tuple[Parent, ...], Field(max_length=8)] = Field(
        (), description="what the accounting needs from other files that the recipe names, by name"
    )
    digest: Digest
    resolved: dict[str, Any]


class Commitment(Block):
    """A commitment to the private data under a key that stays in `private/`; a plain digest would leak."""

    algorithm: Literal["hmac-sha256"]
    value: Hex


class InitialWeightsFacts(Block):
    """The file of weights that training started from, declared to be learned from public data alone, or from none."""

    file: Word
    digest: Digest
    head: Literal["taken over", "new"] = Field(description="the last layer: `new` where the file's has another shape")
    prior: PriorFacts | None = Field(None, description="of weights learned from images made from a seed; else null")
    learned: PublicRecord | None = Field(
        None, description="what the file says of the public records it was learned from; null: nothing"
    )


class PolicyFacts(Block):
    """A policy that the recipe was checked against before the run."""

    name: Word
    digest: Digest = Field(description="of the policy's text")


class Provenance(Block):
    """Origin of the release."""

    recipe: RecipeFacts
    plan: Digest
    solved: Annotated[dict[Word, PositiveFloat | PositiveInt], Field(max_length=100)] = Field(
        description="by path, the values that the plan's solver gave to what the recipe leaves open"
    )
    model: Literal["recipe", "python"] = Field(description="`python`: the module was passed from Python")
    data: Literal["recipe", "python"] = Field(description="`python`: any set of records was passed from Python")
    trainer: Literal["recipe", "python"] = Field(
        description="`python`: somebody's own trainer took the steps, with callbacks between them"
    )
    initial_weights: InitialWeightsFacts | None = Field(None, description="null: drawn from the recipe's seed")
    versions: Annotated[dict[PackageName, PackageVersion], Field(max_length=100)]
    policies: Annotated[tuple[PolicyFacts, ...], Field(max_length=100)] = Field(
        (), description="recorded; `verify --policy` holds a certificate against a policy"
    )
    device: Word
    started: Word
    finished: Word
    data_commitment: Commitment | None
