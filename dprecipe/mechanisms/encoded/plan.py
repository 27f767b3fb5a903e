"""The plan of gradient encoding: batches, codebook and noise, phase by phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.contract.plan import Length, Recorded, UsualPlan
from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.encoded.schema import FileCodebook, GaussianCodebook, KolmogorovSmirnov
from dprecipe.noisy_sum import sampling
from dprecipe.privacy.events import Charge, run_lengths

ATTACHMENT = "codebook"
"""The name of the attachment that holds the summary of a codebook file."""


@dataclass(frozen=True, slots=True)
class CodeNoise:
    """The noise of one phase, on a coordinate of relative scale 1."""

    steps: int
    family: str
    shape: float | None
    multiplier: float
    """The scale of the noise over the codeword norm."""
    scale: float

    @property
    def deviation(self) -> float | None:
        """Standard deviation; `None`: infinite."""
        from dprecipe.noise.distributions import Distribution

        deviation = self.scale * Distribution(self.family, self.shape).standard_deviation
        return deviation if math.isfinite(deviation) else None


@dataclass(frozen=True)
class EncodedPlan(UsualPlan):
    """The plan of a run of gradient encoding."""

    kind: ClassVar[str] = "encoded"
    size: int
    """Number of units in the data set."""
    scheme: str
    phases: tuple[Recorded, ...]
    """The events of each phase of noise, in order."""
    steps_per_epoch: int
    codebook: GaussianCodebook | FileCodebook
    words: int
    """Number of codewords."""
    digest: str
    """The codebook's digest."""
    relative_sensitivity: float
    """Largest distance that one unit moves a sum, in codeword norms, each group over its relative noise."""
    groups: tuple[int, ...]
    """Number of coordinates in each group."""
    group_noise: tuple[float, ...] | None
    microbatch: int
    """Average number of units that share a code."""
    slots: int | None
    """Number of micro-batches in a batch; `None`: each unit has its own code."""
    denoise: KolmogorovSmirnov | None

    @property
    def events(self) -> tuple[Charge, ...]:
        return run_lengths(self.phases)

    @property
    def length(self) -> Length:
        return Length(sampling.count_steps(self.phases), self.steps_per_epoch)

    @property
    def sampling_rate(self) -> float | None:
        return sampling.sampling_rate(self.phases[0].event, self.scheme, self.size)

    @cached_property
    def expected_batch(self) -> float:
        return sampling.expected_batch(self.phases[0].event, self.size)

    @property
    def largest_expected_batch(self) -> float:
        return self.expected_batch

    @property
    def attachments(self) -> tuple[str, ...]:
        return () if isinstance(self.codebook, GaussianCodebook) else (ATTACHMENT,)

    @property
    def divisor(self) -> float:
        """Expected number of codes in a sum, by which the sum is divided."""
        return self.expected_batch if self.slots is None else float(self.slots)

    @property
    def draws_by_attempt(self) -> bool:
        """True if units keep their micro-batches in an attempt."""
        return self.slots is not None

    @property
    def dimension(self) -> int:
        """Number of coordinates of a sum."""
        return sum(self.groups)

    @property
    def sensitivity(self) -> float:
        """Largest L2 distance that one unit can move a sum, each group over its relative noise."""
        return self.relative_sensitivity * self.codebook.norm

    @property
    def noises(self) -> tuple[CodeNoise, ...]:
        """The noise of each phase."""
        return tuple(self._noise(charge) for charge in self.phases)

    def _noise(self, charge: Charge) -> CodeNoise:
        event = charge.event
        family, shape = (event.family, event.shape) if isinstance(event, EncodedSum) else ("gaussian", None)
        scale, sensitivity = sampling.noise_multiplier(event), self.relative_sensitivity
        multiplier = sampling.shortest_number(scale * sensitivity, lambda value: value / sensitivity == scale)
        return CodeNoise(charge.count, family, shape, multiplier, multiplier * self.codebook.norm)

    def describe(self) -> list[tuple[str, str]]:
        rate, noises = self.sampling_rate, self.noises
        rows = [
            ("steps", f"{self.length.steps:,}"),
            ("expected batch", f"{self.divisor:g}"),
            ("sampling rate", "none claimed" if rate is None else f"{rate:.6g}"),
            ("codebook", f"{self.words:,} codewords of norm {self.codebook.norm:g}, {self.digest[:23]}…"),
            ("coordinates", f"{self.dimension:,}{_in_groups(self.groups)}"),
        ]
        if self.slots is not None:
            rows.append(("micro-batches", f"{self.slots:,} a batch: twice the sensitivity"))
        for index, noise in enumerate(noises):
            shape = "" if noise.shape is None else f" ({noise.shape:g})"
            length = f", {noise.steps:,} steps" if len(noises) > 1 else ""
            name = "noise" if len(noises) == 1 else f"noise {index + 1}"
            rows.append((name, f"{noise.family}{shape}, multiplier {noise.multiplier:g} × codeword norm{length}"))
        return rows


def _in_groups(groups: Sequence[int]) -> str:
    return "" if len(groups) == 1 else f", ranked in {len(groups)} groups"


PLAN: type[MechanismPlan] = EncodedPlan
