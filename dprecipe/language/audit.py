"""The `audit` block: how a run's claim is attacked before its first private record."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.language.base import Block, Fraction, PositiveInt

MIN_STEPS, MAX_STEPS = 200, 1_000_000
"""Fewer steps would see no fault worth the name."""
MIN_RELEASES, MAX_RELEASES = 200, 1_000_000
MIN_CANARIES, MAX_CANARIES = 10, 100_000
DEFAULT_STEPS = 10_000
DEFAULT_RELEASES = 2_000
CONFIDENCE = 0.95
MIN_CONFIDENCE = 0.8
"""Least confidence: with less, a sound run might be refuted, and lose its release, as often as not."""
Confidence = Annotated[Fraction, Field(ge=MIN_CONFIDENCE)]


class AuditBlock(Block):
    """Attack on the program before its first private record; it can show a fault, never its absence."""

    program: bool = Field(True, description="sums, noise, batches and the ledger of the program, on synthetic records")
    steps: Annotated[PositiveInt, Field(ge=MIN_STEPS, le=MAX_STEPS)] | None = Field(
        None, description="this many steps with a synthetic canary in or out, by a coin: a lower bound of μ"
    )
    releases: Annotated[PositiveInt, Field(ge=MIN_RELEASES, le=MAX_RELEASES)] | None = Field(
        None, description="this many small whole runs on synthetic records, of mechanisms whose steps are hidden"
    )
    canaries: Annotated[int, Field(ge=MIN_CANARIES, le=MAX_CANARIES)] | None = Field(
        None,
        description="synthetic units, each in the run by a secret coin; whether it tells them apart is a "
        "test of the claimed curve",
    )
    canary: Literal["gradient", "record"] = Field(
        "gradient", description="what a canary is: a gradient of the full clip norm, or a record with its label"
    )
    confidence: Confidence = Field(CONFIDENCE, description="of every lower bound")

    @property
    def depths(self) -> tuple[str, ...]:
        """The depths that need no private record, in order."""
        asked = {"program": self.program, "steps": self.steps is not None, "releases": self.releases is not None}
        return tuple(depth for depth, wanted in asked.items() if wanted)
