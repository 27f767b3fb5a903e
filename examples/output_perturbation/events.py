"""What a run releases: one noisy minimum, which is ε-DP. Light: formulas are imported inside of methods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dprecipe.language.base import PositiveFloat
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import Event, check_positive
from dprecipe.privacy.questions import LibraryLoss

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair


@register_event
@dataclass(frozen=True, slots=True)
class NoisyMinimum(Event):
    """A vector that one replaced record moves by at most Δ in L2 norm, plus noise b of density proportional to
    exp(-‖b‖ / (`noise_multiplier` Δ)).

    Formal guarantee: ε-DP, ε = 1/`noise_multiplier`, for replacing one record: the densities differ by a factor of at
    most exp(Δ / (`noise_multiplier` Δ)). So it is dominated by randomised response, which tells the truth with
    probability exp(ε) / (1 + exp(ε)). Source: Chaudhuri, Monteleoni & Sarwate 2011, Theorem 6; Kairouz, Oh & Viswanath
    2015, Theorem 3.4.
    """

    kind: ClassVar[str] = "noisy_minimum"
    hides_iterates: ClassVar[bool] = True
    noise_multiplier: PositiveFloat

    def __post_init__(self) -> None:
        check_positive(noise_multiplier=self.noise_multiplier)

    @property
    def max_loss(self) -> float:
        return 1 / self.noise_multiplier

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        return Neighbouring.REPLACE_ONE if relation is Neighbouring.ZERO_OUT_ONE else relation

    def is_bounded(self, relation: Neighbouring) -> bool:
        return relation is Neighbouring.REPLACE_ONE

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        import numpy as np

        truth, lie = -np.logaddexp(0, -self.max_loss), -np.logaddexp(0, self.max_loss)  # logarithms
        at = np.array(orders)
        curve: Array = np.logaddexp(at * truth + (1 - at) * lie, at * lie + (1 - at) * truth) / (at - 1)
        return curve

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        import numpy as np

        from dprecipe.privacy.loss import LossPair, from_atoms

        truth = 1 / (1 + math.exp(-self.max_loss))
        atoms = np.array([self.max_loss, -self.max_loss])
        return LossPair(from_atoms(atoms, np.array([truth, 1 - truth]), step))

    def cross_check(self) -> LibraryLoss:
        def distribution(step: float, tail: float) -> Any:
            from dp_accounting.pld import common, privacy_loss_distribution

            parameters = common.DifferentialPrivacyParameters(self.max_loss, 0.0)
            return privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=step)

        return LibraryLoss(distribution)

    def describe_sensitivity(self) -> str:
        return "the minimum by 1 in L2 norm, replaced; one draw of noise for all coordinates together"


EVENTS = (NoisyMinimum,)
