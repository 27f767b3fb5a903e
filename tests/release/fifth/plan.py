"""Its plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dprecipe.contract.plan import Length, Recorded, UsualPlan
from dprecipe.privacy.events import Charge
from fifth.events import NoisyWeights


@dataclass(frozen=True)
class FifthPlan(UsualPlan):
    kind: ClassVar[str] = "fifth"
    released: ClassVar[tuple[str, ...]] = ("noisy weights",)
    scheme: ClassVar[str] = "at_once"
    size: int
    charge: Recorded

    @property
    def events(self) -> tuple[Charge, ...]:
        return (self.charge,)

    @property
    def event(self) -> NoisyWeights:
        assert isinstance(self.charge.event, NoisyWeights)
        return self.charge.event

    @property
    def length(self) -> Length:
        return Length(1, 1)

    @property
    def expected_batch(self) -> float:
        return float(self.size)

    def describe(self) -> list[tuple[str, str]]:
        return [("noise", f"{self.event.noise_multiplier:g}")]


PLAN = FifthPlan
