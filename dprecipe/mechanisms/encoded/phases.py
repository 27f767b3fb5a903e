"""A recipe's run of gradient encoding as arithmetic: its codebook's box, and the events of each phase of noise.

Codebooks and noise distributions need numpy and are imported where they are used: a recipe whose noise is `auto`
validates without numpy.
"""

from __future__ import annotations

import json
import math
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import canonical_json
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.encoded.events import EncodedSum as EncodedEvent
from dprecipe.mechanisms.encoded.plan import ATTACHMENT
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook
from dprecipe.noise.schema import Noise, phases, shape_of
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.sampling import Pace
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

if TYPE_CHECKING:
    from dprecipe.mechanisms.encoded.box import GradientBox, Shifts


def box_of(spec: Encoded, facts: Facts) -> GradientBox:
    """Returns the envelope of the recipe's codebook: drawn from its seed, or read from the recipe's attachments.

    Raises:
        PlanRefused: the codebook can't be made: its table is too large, or the floor is above every magnitude (R260).
    """
    if not isinstance(spec.codebook, GaussianCodebook):
        return box_of_text(facts.attachments[ATTACHMENT])
    from dprecipe.mechanisms.encoded.codebook import CodebookError

    try:
        return _draw_box(groups_of(spec, facts), spec.codebook.size, spec.codebook.floor, spec.codebook.seed)
    except CodebookError as error:
        remedy = "lower mechanism.codebook.size or mechanism.codebook.floor"
        raise PlanRefused([Finding("R260", str(error), remedy, "mechanism.codebook")]) from None


def groups_of(spec: Encoded, facts: Facts) -> tuple[int, ...]:
    """Returns the number of coordinates of each group; coordinates are ranked within their group."""
    return facts.layers if spec.groups == "layer" else (sum(facts.layers),)


@lru_cache(maxsize=8)
def _draw_box(sizes: tuple[int, ...], words: int, floor: float, seed: int) -> GradientBox:
    from dprecipe.mechanisms.encoded.codebook import draw_gaussian_codebook

    return draw_gaussian_codebook(sizes, words, floor, seed).box


@lru_cache(maxsize=8)
def box_of_text(text: str) -> GradientBox:
    from dprecipe.mechanisms.encoded.box import GradientBox

    box = GradientBox.from_json(json.loads(text))
    if canonical_json(box.to_json()) != text:
        raise ValueError("the summary of a codebook is not in canonical form")
    return box


class EncodedRun:
    """A recipe's run as arithmetic."""

    def __init__(self, spec: Encoded, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        self.pace = Pace.of(spec.sampling, facts.size)
        self.phases = phases(spec.noise)
        self.exchanged = spec.microbatch_size > 1
        self.slots = max(1, round(self.pace.expected_batch / spec.microbatch_size)) if self.exchanged else None

    @cached_property
    def box(self) -> GradientBox:
        return box_of(self.spec, self.facts)

    @cached_property
    def _relative(self) -> tuple[float, Shifts]:
        return self.box.shifts(self.spec.group_noise)

    @cached_property
    def sensitivity(self) -> float:
        """Largest distance that one unit can move a sum, in codeword norms, each group over its relative noise."""
        relative = 1.0 if self.spec.group_noise is None else self._relative[0]
        return relative * (2 if self.exchanged else 1)

    @property
    def problem(self) -> solve.Problem:
        auto = [f"{path}.multiplier" for path, noise in self.phases if noise.multiplier == "auto"]
        last, noise = self.phases[-1]
        multiplier = None if auto or noise.multiplier == "auto" else noise.multiplier
        path = auto[0] if auto else f"{last}.multiplier"
        return solve.Problem(self.facts, self.pace, self.split, multiplier, path, sum(self.openings()))

    @property
    def min_multiplier(self) -> float:
        """Smallest multiplier at which a solved phase has no more Fisher information than Gaussian noise of multiplier
        `MIN_NOISE`."""
        from dprecipe.noise.distributions import Distribution

        solved = [noise for _, noise in self.phases if noise.multiplier == "auto"]
        return min(
            (solve.MIN_NOISE * math.sqrt(Distribution(n.family, shape_of(n)).fisher) for n in solved), default=0.0
        )

    def split(self, multiplier: float, count: int) -> tuple[Charge, ...]:
        """Splits `count` events over the phases; `multiplier` is the solved one, or else the last phase's."""
        auto = any(noise.multiplier == "auto" for _, noise in self.phases)
        charges = []
        for index, (_, noise) in enumerate(self.phases):
            last = index == len(self.phases) - 1
            value = multiplier if noise.multiplier == "auto" or (last and not auto) else float(noise.multiplier)
            part = count if last else min(count, self.openings()[index])
            if part:
                charges.append(Charge(self.event(noise, value), part))
            count -= part
        return tuple(charges)

    def openings(self) -> list[int]:
        """Returns the number of events in every phase but the last."""
        if not isinstance(self.spec.noise, tuple):
            return []
        return [self.pace.events_for(phase.epochs, phase.steps) for phase in self.spec.noise[:-1]]

    def event(self, noise: Noise, multiplier: float) -> Event:
        q = self.pace.sampling_rate
        scale = multiplier / self.sensitivity
        if noise.family == "gaussian":
            return Gaussian(scale) if q is None else PoissonGaussian(q, scale)
        return EncodedEvent(
            sampling_rate=1.0 if q is None else q,
            noise_multiplier=scale,
            family=noise.family,
            shape=shape_of(noise),
            shifts=self._relative[1],
            exchanged=self.exchanged,
            codebook=self.box.digest,
        )
