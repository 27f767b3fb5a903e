"""What it releases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dprecipe.language.base import PositiveFloat
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, check_positive
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.privacy.questions import GaussianSum, Question

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


@register_event
@dataclass(frozen=True, slots=True)
class NoisyWeights(Event):
    """Weights that one unit moves by 1, with Gaussian noise of this standard deviation."""

    kind: ClassVar[str] = "noisy_weights"
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)

    def squared_mu(self, count: int, relation: Neighbouring) -> float | None:
        return Gaussian(self.noise_multiplier).squared_mu(count, relation)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        return Gaussian(self.noise_multiplier).rdp(orders, relation)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        return Gaussian(self.noise_multiplier).losses(relation, step, tail)

    def cross_check(self) -> Question:
        return GaussianSum(self.noise_multiplier)

    def describe_sensitivity(self) -> str:
        return "the weights by 1"


EVENTS = (NoisyWeights,)
