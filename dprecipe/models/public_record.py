"""Origin of a network's first weights, and the record that weights learned without privacy carry.

The record is JSON in the metadata of a safetensors file.

A run with `mechanism: {kind: none}` writes it, and a run that starts from the file repeats it in its certificate, as an
assumption. The file is untrusted: the record counts only if the tensors have the digest that it names. It is not
signed: no program can see that the records were public, or that they made these weights. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dprecipe.faults import DataFault
from dprecipe.language.base import Block, NonNegativeInt, PositiveInt
from dprecipe.priors.record import Digest, PriorFacts, Version, digest_tensors, split_header

KEY = "dprecipe.public-weights"
"""Key of the record in the metadata."""
SCHEMA = "dprecipe.public-weights/v1"
NoGuarantee = Literal["no privacy guarantee: the records were used as they are, without clipping and without noise"]
NO_GUARANTEE: NoGuarantee = (
    "no privacy guarantee: the records were used as they are, without clipping and without noise"
)
Name = Annotated[str, Field(min_length=1, max_length=200)]
MAX_FILES = 100
"""Whose digests are listed one by one."""
REMEDY = "name the file as `dprecipe run` wrote it"


class UsedRecords(Block):
    """Records that were read, declared public by the recipe."""

    role: Literal["train", "test"]
    source: Name
    part: Annotated[str, Field(max_length=200)] = Field(description="the split or array that was read; empty: all")
    files: Annotated[dict[Name, Digest], Field(max_length=MAX_FILES)] = Field(
        description="SHA-256 of each file by its name; of many, one of their sorted digests"
    )
    records: tuple[NonNegativeInt, NonNegativeInt] | None = Field(None, description="[first, end); null: all of them")
    count: NonNegativeInt
    digest: Digest = Field(description="SHA-256 of types, shapes and bytes of features and labels, before any step")


class UsedRecipe(Block):
    """The recipe of the run."""

    name: Name
    digest: Digest


class PublicRecord(Block):
    """The metadata of a file of weights, and `provenance.json` beside it."""

    schema_: Literal["dprecipe.public-weights/v1"] = Field("dprecipe.public-weights/v1", alias="schema")
    guarantee: NoGuarantee = Field(NO_GUARANTEE, description="no certificate, and nothing for `verify` to recompute")
    recipe: UsedRecipe
    data: Annotated[tuple[UsedRecords, ...], Field(min_length=1, max_length=2)]
    steps: PositiveInt
    seed: NonNegativeInt
    initial_weights: Digest | None = Field(None, description="SHA-256 of the file that it began from; null: the seed")
    weights: Digest = Field(description="of the tensors: names, types, shapes and bytes")
    versions: Annotated[dict[Annotated[str, Field(max_length=50)], Version], Field(max_length=20)]
    device: Annotated[str, Field(max_length=100)]

    @property
    def training(self) -> UsedRecords:
        """Records that the weights were learned from."""
        return self.data[0]

    def describe(self) -> str:
        """Describes the records that the weights were learned from."""
        files = ", ".join(f"{name} {digest}" for name, digest in self.training.files.items())
        return (
            f"the recipe {self.recipe.name} ({self.recipe.digest}) learned it without privacy (mechanism none) from "
            f"{self.training.count:,} records that it declares public: {files or self.training.source}, "
            f"records {self.training.digest}"
        )


def parse_record(content: bytes, name: str) -> PublicRecord | None:
    """Reads the record of public training from the bytes of a safetensors file; None if they have none.

    Raises:
        DataFault: it is no safetensors file, what it says is damaged, or its tensors have another digest.
    """
    header, _ = split_header(content, name)
    metadata: Any = header.get("__metadata__", {})
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    if text is None:
        return None
    try:
        record = PublicRecord.model_validate_json(str(text))
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False, include_input=False)[0]["loc"])) or "its text"
        raise DataFault(f"{name}: what it says of its training is damaged, first at {where}", REMEDY) from None
    if record.data[0].role != "train" or len({used.role for used in record.data}) != len(record.data):
        raise DataFault(f"{name}: what it says of its training is damaged, first at data", REMEDY)
    if record.weights != digest_tensors(content, name):
        raise DataFault(f"{name}: its tensors are not those that its record speaks of: their digest differs", REMEDY)
    return record


Head = Literal["taken over", "new"]


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """A file that a run started from."""

    name: str
    """Name of the file, without its folders."""
    digest: str
    """`sha256:…` of its bytes."""
    head: Head
    """Origin of the last layer: `new` where the file has none of this shape."""
    prior: PriorFacts | None = None
    """Prior that the weights were learned from, images made from a seed, where the recipe states it."""
    learned: PublicRecord | None = None
    """Statement of the file about the public records that it was learned from, if it has one."""
