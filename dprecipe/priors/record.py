"""Record of the prior that weights were learned from: JSON in the metadata of a safetensors file.

The file is untrusted: its header is bounded and parsed strictly, and the record counts only if the numbers beside it
have the digest that it names. No torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dprecipe.durable import read_bytes
from dprecipe.faults import DataFault
from dprecipe.language.base import Block
from dprecipe.priors.schema import Prior

KEY = "dprecipe.prior"
"""Key of the record in the metadata."""
MAX_HEADER = 16 << 20
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Version = Annotated[str, Field(max_length=100)]


class PriorFacts(Block):
    """Facts about a prior: digests that a stranger can compute again."""

    images: Digest = Field(description="SHA-256 of the bytes of all images in their order: (N, C, H, W)")
    weights: Digest = Field(description="of the tensors that were learned: names, types, shapes and bytes")
    versions: Annotated[dict[Annotated[str, Field(max_length=50)], Version], Field(max_length=20)]
    device: Annotated[str, Field(max_length=100)] = Field(description="other devices and versions may round otherwise")


class PriorRecord(Block):
    """The metadata `dprecipe.prior` of a file of weights, schema `dprecipe.prior/v1`."""

    schema_: Literal["dprecipe.prior/v1"] = Field("dprecipe.prior/v1", alias="schema")
    prior: Prior = Field(description="generator, seed and objective, as in the recipe")
    shape: tuple[int, int, int] = Field(description="of an image: channels, height, width")
    network: dict[str, Any] = Field(description="the recipe's `model`, without what it starts from and what it trains")
    preprocess: tuple[dict[str, Any], ...] = Field((), description="the recipe's steps, which images go through")
    facts: PriorFacts

    def to_json(self) -> str:
        """Writes compact JSON in one order, so that the same record is the same bytes."""
        content = self.model_dump(mode="json", by_alias=True)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, slots=True)
class PriorFile:
    """A file of weights that were learned from a prior, as it was read."""

    record: PriorRecord
    weights: str
    """The digest of the tensors that are in it."""


def read_prior(path: Path) -> PriorFile | None:
    """Reads the record of its prior from a file of weights; None if it has none.

    Raises:
        DataFault: it can't be read, is no safetensors file, or what it says of a prior is damaged.
    """
    try:
        content = read_bytes(path)
    except OSError as error:
        raise DataFault(
            f"{path}: {error.strerror or 'no such file'}", "make the file with `dprecipe prior RECIPE`"
        ) from None
    return parse_prior(content, str(path))


def parse_prior(content: bytes, name: str) -> PriorFile | None:
    """Reads the bytes of a file as `read_prior` does."""
    header, body = split_header(content, name)
    metadata = header.pop("__metadata__", {})
    text = metadata.get(KEY) if isinstance(metadata, dict) else None
    if text is None:
        return None
    try:
        record = PriorRecord.model_validate_json(str(text))
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_url=False, include_input=False)[0]["loc"])) or "its text"
        raise DataFault(
            f"{name}: what it says of its prior is damaged, first at {where}",
            "make it again with `dprecipe prior RECIPE`",
        ) from None
    return PriorFile(record, _digest_entries(header, body, name))


def digest_tensors(content: bytes, name: str = "the file") -> str:
    """Returns `sha256:…` of the tensors of a safetensors file, in the order of their names, whatever else its
    header says.
    """
    header, body = split_header(content, name)
    header.pop("__metadata__", None)
    return _digest_entries(header, body, name)


def split_header(content: bytes, name: str) -> tuple[dict[str, Any], memoryview]:
    """Returns the parsed header of a safetensors file, and the bytes behind it.

    Raises:
        DataFault: it is none.
    """
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(MAX_HEADER, len(content) - 8):
        raise _no_safetensors(name)
    try:
        header = json.loads(content[8 : 8 + length])
    except (ValueError, RecursionError):
        raise _no_safetensors(name) from None
    if not isinstance(header, dict):
        raise _no_safetensors(name)
    return header, memoryview(content)[8 + length :]


def _digest_entries(header: dict[str, Any], body: memoryview, name: str) -> str:
    result = hashlib.sha256()
    unread = len(body)  # tensors that share bytes would have them read again and again
    for tensor, entry in sorted(header.items()):
        try:
            start, end = entry["data_offsets"]
            described = json.dumps([tensor, entry["dtype"], entry["shape"]])
            if not (type(start) is int and type(end) is int and 0 <= start <= end <= len(body)):
                raise ValueError
            unread -= end - start
            if unread < 0:
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise _no_safetensors(name) from None
        result.update(described.encode())
        result.update(body[start:end])
    return f"sha256:{result.hexdigest()}"


def _no_safetensors(name: str) -> DataFault:
    return DataFault(f"{name}: is no safetensors file, or is damaged", "name a file that `dprecipe prior` has written")
