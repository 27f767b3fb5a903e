"""Where a network's first weights came from, for ledger and certificate. No torch."""

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
    """Without its folders."""
    digest: str
    """`sha256:…` of its bytes."""
    head: Head
    """What became of the last layer: `new` where the file has none of this shape."""
    prior: PriorFacts | None = None
    """Of weights that were learned from images made from a seed, where the recipe says so."""
    learned: PublicRecord | None = None
    """What the file says of the public records that it was learned from, where it says anything."""
