"""Plans of noisy sums of clipped gradients: batches, clipping and noise, phase by phase.

Clipping is as the run applies it, with the scale of noise that follows from it.

*Guarantees*: a phase samples, adds noise and is charged by one event. The public divisor of a phase's sums is the
expected size of the batches that its event draws; a plan that violates this can't be constructed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from dprecipe.contract.plan import Length, Recorded, UsualPlan
from dprecipe.noisy_sum import sampling
from dprecipe.noisy_sum.clip import AutomaticClip, Clip, PerLayerClip
from dprecipe.privacy.events import Charge, run_lengths
from dprecipe.privacy.grouped_sums import GroupedGaussian


@dataclass(frozen=True, slots=True)
class PlannedAdaptation:
    """The adaptation of a clip norm, which follows a quantile of the gradients' norms."""

    quantile: float
    learning_rate: float
    count_noise: float
    """σ_b, in units: the deviation of the noise on the count of gradients within the norm."""


@dataclass(frozen=True, slots=True)
class PlannedClip:
    """The bound on each unit's gradient; the clip norm itself belongs to the phase."""

    mode: Literal["flat", "per_layer", "automatic", "adaptive"]
    norm_kind: Literal["l2", "l1"]
    norms: tuple[float, ...] | None = None
    """The norm of each layer over the phase's clip norm; `None` if one norm holds for all parameters, or is split over
    layers that only the model knows."""
    groups: tuple[int, ...] | None = None
    """The number of layers in each group, if layers are clipped in groups; `norms` are then those of groups."""
    stability: float | None = None
    """γ of automatic clipping."""
    adaptation: PlannedAdaptation | None = None
    """The adaptation of an adaptive norm; `None` for other clipping."""

    def noise_scale(self, clip_norm: float, multiplier: float) -> float:
        """Returns the scale of the noise on a coordinate of the gradients' sum, in the layer with the most noise; for
        Gaussian noise, the standard deviation."""
        if self.adaptation is not None:
            return gradient_multiplier(multiplier, self.adaptation.count_noise) * clip_norm
        if self.norms is None:
            return multiplier * clip_norm
        count = len(self.norms)
        return multiplier * clip_norm * (count if self.norm_kind == "l1" else math.sqrt(count)) * max(self.norms)


def plan_clip(
    clip: Clip, norm_kind: Literal["l2", "l1"], layers: Sequence[int], adaptation: PlannedAdaptation | None = None
) -> PlannedClip:
    """Returns the clipping of a block as a run applies it. `layers`: those of the model, as far as they are known."""
    return PlannedClip(
        mode=clip.mode,
        norm_kind=norm_kind,
        norms=_relative_norms(clip, norm_kind, layers),
        groups=clip.groups if isinstance(clip, PerLayerClip) else None,
        stability=clip.stability if isinstance(clip, AutomaticClip) else None,
        adaptation=adaptation,
    )


def _relative_norms(clip: Clip, norm_kind: str, layers: Sequence[int]) -> tuple[float, ...] | None:
    """Returns the relative norms: see `PlannedClip.norms`."""
    if not isinstance(clip, PerLayerClip):
        return None
    if clip.norms is not None:
        return clip.norms
    count = len(clip.groups or clip.noise or layers)
    return (1 / (count if norm_kind == "l1" else math.sqrt(count)),) * count if count else None


def gradient_multiplier(joint: float, count_noise: float) -> float:
    """Returns z_Δ, the noise multiplier of the gradients in a joint release with a count of units.

    1/z² = 1/z_Δ² + 1/(2 σ_b)². `joint` is z, the multiplier of the release; `count_noise` is σ_b, in units. The count
    adds ½ or -½ for each unit, so one unit moves it by ½. Source: Andrew et al. 2021, Theorem 1.

    Raises:
        ValueError: z >= 2 σ_b: the count by itself leaks more than the release may.
    """
    remainder = 1 - (joint / (2 * count_noise)) ** 2
    if not remainder > 0:
        raise ValueError(f"noise of {count_noise} on the count leaves nothing for the gradients")
    return joint / math.sqrt(remainder)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of equal steps."""

    charge: Recorded
    """The event of the steps, and its count."""
    clip_norm: float
    divisor: float
    """The expected batch size in units, by which each noisy sum is divided."""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sampling.count_steps([self.charge])

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the event."""
        return sampling.noise_multiplier(self.charge.event)


@dataclass(frozen=True)
class ClippedPlan(UsualPlan):
    """A run on noisy sums of clipped gradients: a base class."""

    kind: ClassVar[str]
    size: int
    """Units in the data set."""
    scheme: str
    phases: tuple[Phase, ...]
    """The phases in order, at least one."""
    steps_per_epoch: int
    clip: PlannedClip
    augmentations: int
    """Copies of a record whose gradients are averaged before clipping."""

    def __post_init__(self) -> None:
        for phase in self.phases:
            if not sampling.is_divisor(phase.divisor, phase.charge.event, self.size):
                raise ValueError(f"batches of a {phase.charge.event.kind} don't have {phase.divisor} units on average")

    @property
    def events(self) -> tuple[Charge, ...]:
        return run_lengths(phase.charge for phase in self.phases)

    @property
    def length(self) -> Length:
        return Length(sum(phase.steps for phase in self.phases), self.steps_per_epoch)

    @property
    def sampling_rate(self) -> float | None:
        return self.rate_of(self.phases[0])

    @property
    def expected_batch(self) -> float:
        return self.phases[0].divisor

    @property
    def largest_expected_batch(self) -> float:
        return max(phase.divisor for phase in self.phases)

    @property
    def copies(self) -> int:
        return self.augmentations

    @property
    def noise_family(self) -> str:
        """The family of the noise: Laplace if gradients are clipped in L1 norm, Gaussian if in L2."""
        return "laplace" if self.clip.norm_kind == "l1" else "gaussian"

    def noise_scale(self, phase: Phase) -> float:
        """Returns the scale of the noise on a coordinate of a sum, in the layer with the most noise."""
        multipliers = self.group_multipliers(phase)
        if multipliers is not None and self.clip.norms is not None:
            return phase.clip_norm * max(z * norm for z, norm in zip(multipliers, self.clip.norms, strict=True))
        return self.clip.noise_scale(phase.clip_norm, phase.noise_multiplier)

    def group_multipliers(self, phase: Phase) -> tuple[float, ...] | None:
        """Returns the noise multiplier of each group of layers in a phase; `None`: one noise for all."""
        event = phase.charge.event
        return event.group_multipliers if isinstance(event, GroupedGaussian) else None

    def noise_deviation(self, phase: Phase) -> float:
        """Returns the standard deviation of the noise whose scale is `noise_scale`."""
        return self.noise_scale(phase) * (math.sqrt(2) if self.noise_family == "laplace" else 1.0)

    def rate_of(self, phase: Phase) -> float | None:
        """Returns the sampling rate of a phase; `None`: no unit joins at a rate."""
        return sampling.sampling_rate(phase.charge.event, self.scheme, self.size)

    def format_norms(self) -> str:
        """Formats the clip norm, or those of layers that differ."""
        norms = self.clip.norms
        if norms is not None and len(set(norms)) > 1:
            return ", ".join(f"{norm:g}" for norm in norms)
        return format_range([phase.clip_norm for phase in self.phases])

    def describe(self) -> list[tuple[str, str]]:
        """Returns the rows of `dprecipe plan` about clipping that is not flat, and about copies of records."""
        clip, phases = self.clip, self.phases
        rows: list[tuple[str, str]] = []
        if clip.mode == "per_layer":
            layers = "layers" if clip.groups is None else f"groups, of {', '.join(map(str, clip.groups))} layers"
            shares = "the same share for each layer" if clip.norms is None else f"{len(clip.norms)} {layers}"
            rows.append(("clipping", f"layer by layer, {shares}"))
        elif clip.stability is not None:
            rows.append(("clipping", f"automatic, γ = {clip.stability:g}"))
        elif clip.adaptation is not None:
            count = clip.adaptation
            gradient_noise = gradient_multiplier(max(phase.noise_multiplier for phase in phases), count.count_noise)
            rows.append(
                (
                    "clipping",
                    f"adaptive, to quantile {count.quantile:g}; the count has noise of {count.count_noise:g} units, "
                    f"the gradients have noise of multiplier {gradient_noise:.6g}",
                )
            )
        if self.augmentations > 1:
            rows.append(("augmentations", f"{self.augmentations} copies of each record, averaged before clipping"))
        return rows


def format_range(values: Sequence[float]) -> str:
    """Formats a value, or the first and the last of several."""
    first, last = f"{values[0]:g}", f"{values[-1]:g}"
    return first if min(values) == max(values) else f"{first} to {last}"
