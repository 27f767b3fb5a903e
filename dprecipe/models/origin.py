"""Origin of a network's first weights, for ledger and certificate. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dprecipe.models.public_record import PublicRecord
from dprecipe.priors.record import PriorFacts

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
