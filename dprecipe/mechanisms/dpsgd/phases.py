"""A recipe's run of DP-SGD as arithmetic: its schedules cut into phases.

Noise, clip norm and batch size may follow schedules. Each schedule is cut into pieces of constant value, and the
account charges for the phases that result. The run uses exactly these phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding
from dprecipe.language.base import Schedule
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.noise.schema import phases
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.clip import AdaptiveClip, PerLayerClip
from dprecipe.noisy_sum.clipped_plan import Phase, PlannedAdaptation, PlannedClip, plan_clip
from dprecipe.noisy_sum.sampling import (
    BatchSchedule,
    CappedDealtSampling,
    FixedSizeSampling,
    Pace,
    PermutedSampling,
    TruncatedPoissonSampling,
    count_batches,
    piece_starts,
    split_steps,
)
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian, EpochEvent, PermutedGaussian
from dprecipe.privacy.events import Charge, Event, run_lengths
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.rounding import round_up

MAX_PHASES = 64
"""The most phases; half as many if they differ in cost, because each multiplier tried composes them again."""
COUNT_NOISE = 20
"""The ratio of the expected batch size to the default noise on the count."""


class DpsgdRun:
    """A recipe's run as arithmetic."""

    def __init__(self, spec: Dpsgd, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        self.noises = phases(spec.noise)
        self.family = self.noises[0][1].family
        self.l1 = self.family == "laplace"
        self.norm = getattr(spec.clip, "norm", None)
        costly = any(path != "mechanism.clip.norm" for path in self.schedules)
        max_phases = MAX_PHASES // 2 if costly else MAX_PHASES
        self.pieces = (max_phases - len(self.noises)) // max(1, len(self.schedules)) - 1
        self.pace = Pace.of(spec.sampling, facts.size, self._batch_events(), self.pieces)

    def _batch_events(self) -> int:
        """Counts the steps over which the batch size moves; 1 if it is constant, or if the length is not known yet."""
        moving = getattr(self.spec.sampling, "batch_size", None)
        if not isinstance(moving, BatchSchedule):
            return 1
        training = self.facts.training
        epochs = moving.epochs if moving.epochs is not None else training.epochs
        if moving.epochs is None and training.steps is not None:
            return 1 if training.steps == "auto" else training.steps
        return 1 if epochs is None or epochs == "auto" else count_batches(moving, self.facts.size, epochs)

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """The values that follow a schedule, by path."""
        places = {
            "mechanism.clip.norm": self.norm,
            "mechanism.sampling.batch_size": getattr(self.spec.sampling, "batch_size", None),
            **{f"{path}.multiplier": noise.multiplier for path, noise in self.noises},
        }
        return {path: value for path, value in places.items() if isinstance(value, Schedule)}

    @cached_property
    def problem(self) -> solve.Problem:
        auto = [f"{path}.multiplier" for path, noise in self.noises if noise.multiplier == "auto"]
        path, last = f"{self.noises[-1][0]}.multiplier", self.noises[-1][1].multiplier
        multiplier = None if auto else last.from_ if isinstance(last, Schedule) else float(last)
        stretched = any(moving.epochs is None for moving in self.schedules.values())
        return solve.Problem(
            self.facts,
            self.pace,
            self.charges,
            multiplier,
            auto[0] if auto else path,
            None if stretched else self.opening,
            _scale_schedule(path, last) if isinstance(last, Schedule) else None,
        )

    @cached_property
    def opening(self) -> int:
        """The number of events before all are equal, if no schedule extends over the whole run."""
        ends = [sum(self.lengths())]
        ends += [self._events_of(moving, 0) - 1 for moving in self.schedules.values() if moving.epochs is not None]
        return max(ends)

    def charges(self, multiplier: float, count: int) -> tuple[Charge, ...]:
        """Returns the charges of `count` events.

        `multiplier` is the solved one, or else the last phase's; a schedule is scaled in proportion.
        """
        return run_lengths(phase.charge for phase in self.phases(multiplier, count))

    def phases(self, multiplier: float, events: int) -> tuple[Phase, ...]:
        """Returns at most `MAX_PHASES` phases, of `events` events in total."""
        cuts = {first for first, _ in self.pace.batches} | set(self._starts())
        for moving in self.schedules.values():
            if not isinstance(moving, BatchSchedule):
                length = self._events_of(moving, events)
                cuts |= piece_starts(length, length, self.pieces)
        results: list[Phase] = []
        for first, end in split_steps(cuts, events):
            batch, count = self.pace.batch(first), end - first
            event = self._event(self._multiplier(multiplier, first, events), batch)
            constants = (event, self._norm(first, events), batch)
            if results and (results[-1].charge.event, results[-1].clip_norm, results[-1].divisor) == constants:
                count += results.pop().charge.count
            results.append(Phase(Charge(event, count), *constants[1:]))
        return self._cut_last(results, events)

    def _cut_last(self, whole: list[Phase], events: int) -> tuple[Phase, ...]:
        """Returns the phases of a run that ends within an epoch if the recipe's length does."""
        training = self.facts.training
        if events != self.problem.events or training.epochs == "auto" or training.steps == "auto":
            return tuple(whole)
        steps, last, event = self.pace.last_steps(training.epochs, training.steps), whole[-1], whole[-1].charge.event
        if steps == event.steps or not isinstance(event, EpochEvent):
            return tuple(whole)
        before = [replace(last, charge=Charge(event, last.charge.count - 1))] if last.charge.count > 1 else []
        return (*whole[:-1], *before, replace(last, charge=Charge(event.take(steps), 1)))

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The noise of each group of layers over its norm, in units of the multiplier; `None`: one noise for all."""
        return self.spec.clip.noise if isinstance(self.spec.clip, PerLayerClip) else None

    @property
    def joint_weight(self) -> float:
        """The factor from the solved multiplier to that of all groups together."""
        weights = (1.0,) if self.weights is None else self.weights
        return 1 / math.sqrt(math.fsum(weight**-2 for weight in weights))

    def _event(self, z: float, batch: float) -> Event:
        """Returns the event of a step with noise multiplier `z` and a batch of this expected size."""
        size, q = self.facts.size, batch / self.facts.size
        match self.spec.sampling:
            case TruncatedPoissonSampling(max_batch_size=cap) if cap < size:
                return TruncatedPoissonGaussian(q, z, size, cap)
            case FixedSizeSampling(batch_size=fixed) if fixed < size:
                return FixedSizeGaussian(size, fixed, z)
            case PermutedSampling(batch_size=fixed) if fixed < size:
                return PermutedGaussian(size, fixed, self.pace.steps_per_event, z)
            case CappedDealtSampling(batch_limit=int(cap)) if cap < size:
                return CappedDealtGaussian(z, self.pace.steps_per_event, size, cap)
            case CappedDealtSampling() if self.pace.steps_per_event > 1:
                return DealtGaussian(z, self.pace.steps_per_event)
        if self.l1:
            return PoissonLaplace(q, z)
        if self.weights is not None:
            return GroupedGaussian.of(min(q, 1.0), [z * weight for weight in self.weights])
        return PoissonGaussian(q, z) if self.pace.sampled and q < 1 else Gaussian(z)

    def _events_of(self, moving: Schedule, events: int) -> int:
        """Counts the events over which a schedule moves in a run of `events` events."""
        if isinstance(moving, BatchSchedule):
            return self._batch_events()
        return events if moving.epochs is None else self.pace.events_for(moving.epochs, None)

    def lengths(self) -> list[int]:
        """Counts the events of every phase of noise but the last."""
        noise = self.spec.noise
        return [self.pace.events_for(p.epochs, p.steps) for p in noise[:-1]] if isinstance(noise, tuple) else []

    def _starts(self) -> list[int]:
        """Returns the number of the first event of each noise phase."""
        lengths = self.lengths()
        return [sum(lengths[:index]) for index in range(len(self.noises))]

    def _norm(self, event: int, events: int) -> float:
        if self.norm is None:
            return 1.0
        return self.norm.at(event, self._events_of(self.norm, events)) if isinstance(self.norm, Schedule) else self.norm

    def _multiplier(self, multiplier: float, event: int, events: int) -> float:
        index = max(index for index, first in enumerate(self._starts()) if first <= event)
        configured = self.noises[index][1].multiplier
        if isinstance(configured, Schedule):
            return configured.at(event, self._events_of(configured, events)) * (multiplier / configured.from_)
        auto = any(noise.multiplier == "auto" for _, noise in self.noises)
        last = index == len(self.noises) - 1
        return multiplier if configured == "auto" or (last and not auto) else float(configured)

    @cached_property
    def clip(self) -> PlannedClip:
        """The clipping as the run applies it."""
        layers = self.facts.layers if isinstance(self.spec.clip, PerLayerClip) else ()
        return plan_clip(self.spec.clip, "l1" if self.l1 else "l2", layers, self.adaptation)

    @cached_property
    def adaptation(self) -> PlannedAdaptation | None:
        """The adaptation of an adaptive norm; `None` for other clipping."""
        clip = self.spec.clip
        if not isinstance(clip, AdaptiveClip):
            return None
        noise = self.pace.expected_batch / COUNT_NOISE if clip.count_noise is None else clip.count_noise
        return PlannedAdaptation(clip.quantile, clip.learning_rate, noise)

    def check_count_noise(self, planned: Sequence[Phase]) -> Finding | None:
        """Returns P115 if the count by itself leaks more than a whole step may."""
        largest = max(phase.noise_multiplier for phase in planned)
        if self.adaptation is None or largest < 2 * self.adaptation.count_noise:
            return None
        return Finding(
            "P115",
            f"noise of {self.adaptation.count_noise:g} units on the count of clipped gradients is too small for a "
            f"noise multiplier of {largest:g}: the count by itself leaks more than the whole step may",
            f"set mechanism.clip.count_noise to {largest:.3g} or more",
            "mechanism.clip.count_noise",
        )


def _scale_schedule(path: str, moving: Schedule) -> Callable[[float], str]:
    """Returns the remedy for a schedule whose values have to be scaled by `multiplier` / from."""
    return lambda multiplier: (
        f"set {path}.from to {multiplier:.6g} and {path}.to to {round_up(moving.to * (multiplier / moving.from_)):.6g}"
    )
