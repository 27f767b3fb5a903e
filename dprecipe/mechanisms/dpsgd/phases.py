"""A recipe's run of DP-SGD as arithmetic: what its schedules come to, step by step.

Noise, clip norm and batch size may follow schedules: each is cut into a staircase, and the account charges for the
phases of all of them together. The run takes exactly these phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from dprecipe.faults import Finding, Severity
from dprecipe.language.schedules import Schedule
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.dpsgd.clipping import PlannedAdaptation, PlannedClip
from dprecipe.mechanisms.dpsgd.plan import Phase
from dprecipe.mechanisms.dpsgd.schema import AdaptiveClip, AutomaticClip, Dpsgd, PerLayerClip
from dprecipe.mechanisms.noisy_sum import solve, staircase
from dprecipe.mechanisms.noisy_sum.sampling import (
    BatchSchedule,
    FixedSizeSampling,
    Pace,
    TruncatedPoissonSampling,
    batches_over,
)
from dprecipe.noise.schema import phases
from dprecipe.privacy.events import Charge, Event, run_lengths
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PartitionedGaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.rounding import round_up

MAX_PHASES = 64
"""Half as many where each costs something else: all of them are composed again for every multiplier that is tried."""
COUNT_NOISE = 20
"""Of the expected batch, the part that the count's noise is where the recipe does not say."""


class DpsgdRun:
    """A recipe's run as arithmetic."""

    def __init__(self, spec: Dpsgd, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        self.noises = phases(spec.noise)
        self.family = self.noises[0][1].family
        self.l1 = self.family == "laplace"
        self.norm = getattr(spec.clip, "norm", None)
        costly = any(path != "mechanism.clip.norm" for path in self.schedules)
        most = MAX_PHASES // 2 if costly else MAX_PHASES
        self.stairs = (most - len(self.noises)) // max(1, len(self.schedules)) - 1
        self.pace = Pace.of(spec.sampling, facts.size, self._batch_events(), self.stairs)

    def _batch_events(self) -> int:
        """Steps over which the batches move; 1 where they don't, or where nobody knows."""
        moving = getattr(self.spec.sampling, "batch_size", None)
        if not isinstance(moving, BatchSchedule):
            return 1
        training = self.facts.training
        epochs = moving.epochs if moving.epochs is not None else training.epochs
        if moving.epochs is None and training.steps is not None:
            return 1 if training.steps == "auto" else training.steps
        return 1 if epochs is None or epochs == "auto" else batches_over(moving, self.facts.size, epochs)

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        """What moves, by its path."""
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
        given = None if auto else last.from_ if isinstance(last, Schedule) else float(last)
        stretched = any(moving.epochs is None for moving in self.schedules.values())
        return solve.Problem(
            self.facts,
            self.pace,
            self.charges,
            given,
            auto[0] if auto else path,
            None if stretched else self.opening,
            _both_ends(path, last) if isinstance(last, Schedule) else None,
        )

    @cached_property
    def opening(self) -> int:
        """Events before all are alike, where no schedule stretches over the whole run."""
        at = [sum(self.lengths())]
        at += [self._events_of(moving, 0) - 1 for moving in self.schedules.values() if moving.epochs is not None]
        return max(at)

    def charges(self, multiplier: float, count: int) -> tuple[Charge, ...]:
        """`count` events; the multiplier is the solved one, or else the last phase's, with a schedule in proportion."""
        return run_lengths(phase.charge for phase in self.phases(multiplier, count))

    def phases(self, multiplier: float, events: int) -> tuple[Phase, ...]:
        """At most `MAX_PHASES` phases that together take so many events."""
        cuts = {first for first, _ in self.pace.batches} | set(self._starts())
        for moving in self.schedules.values():
            if not isinstance(moving, BatchSchedule):
                length = self._events_of(moving, events)
                cuts |= staircase.schedule_starts(length, length, self.stairs)
        results: list[Phase] = []
        for first, end in staircase.schedule_pieces(cuts, events):
            batch, count = self.pace.batch(first), end - first
            event = self._event(self._multiplier(multiplier, first, events), batch)
            alike = (event, self._norm(first, events), batch)
            if results and (results[-1].charge.event, results[-1].clip_norm, results[-1].divisor) == alike:
                count += results.pop().charge.count
            results.append(Phase(Charge(event, count), *alike[1:]))
        return tuple(results)

    def _event(self, z: float, batch: float) -> Event:
        """What a step with this noise and a batch of this expected size releases."""
        size, q = self.facts.size, batch / self.facts.size
        match self.spec.sampling:
            case TruncatedPoissonSampling(max_batch_size=most) if most < size:
                return TruncatedPoissonGaussian(q, z, size, most)
            case FixedSizeSampling(batch_size=fixed) if fixed < size:
                return FixedSizeGaussian(size, fixed, z)
        if self.spec.sampling.scheme == "shuffle":
            return PartitionedGaussian(z, self.pace.steps_per_event)
        if self.l1:
            return PoissonLaplace(q, z)
        return PoissonGaussian(q, z) if self.pace.sampled and q < 1 else Gaussian(z)

    def _events_of(self, moving: Schedule, events: int) -> int:
        """Events over which a schedule moves in a run of so many."""
        if isinstance(moving, BatchSchedule):
            return self._batch_events()
        return events if moving.epochs is None else self.pace.events_for(moving.epochs, None)

    def lengths(self) -> list[int]:
        """Events of every phase of noise but the last."""
        noise = self.spec.noise
        return [self.pace.events_for(p.epochs, p.steps) for p in noise[:-1]] if isinstance(noise, tuple) else []

    def _starts(self) -> list[int]:
        """Where phases of noise begin."""
        lengths = self.lengths()
        return [sum(lengths[:index]) for index in range(len(self.noises))]

    def _norm(self, event: int, events: int) -> float:
        if self.norm is None:
            return 1.0
        return self.norm.at(event, self._events_of(self.norm, events)) if isinstance(self.norm, Schedule) else self.norm

    def _multiplier(self, multiplier: float, event: int, events: int) -> float:
        index = max(index for index, first in enumerate(self._starts()) if first <= event)
        written = self.noises[index][1].multiplier
        if isinstance(written, Schedule):
            return written.at(event, self._events_of(written, events)) * (multiplier / written.from_)
        auto = any(noise.multiplier == "auto" for _, noise in self.noises)
        last = index == len(self.noises) - 1
        return multiplier if written == "auto" or (last and not auto) else float(written)

    @cached_property
    def clip(self) -> PlannedClip:
        """The clipping as the run takes it."""
        clip = self.spec.clip
        return PlannedClip(
            mode=clip.mode,
            norm_kind="l1" if self.l1 else "l2",
            norms=self._norms(),
            stability=clip.stability if isinstance(clip, AutomaticClip) else None,
            adaptation=self.adaptation,
        )

    def _norms(self) -> tuple[float, ...] | None:
        """See `PlannedClip.norms`."""
        if not isinstance(self.spec.clip, PerLayerClip):
            return None
        if self.spec.clip.norms is not None:
            return self.spec.clip.norms
        count = len(self.facts.layers)
        return (1 / (count if self.l1 else math.sqrt(count)),) * count if count else None

    @cached_property
    def adaptation(self) -> PlannedAdaptation | None:
        """What an adaptive norm follows."""
        clip = self.spec.clip
        if not isinstance(clip, AdaptiveClip):
            return None
        noise = self.pace.expected_batch / COUNT_NOISE if clip.count_noise is None else clip.count_noise
        return PlannedAdaptation(clip.quantile, clip.learning_rate, noise)

    def least_count_noise(self, found: Sequence[Phase]) -> Finding | None:
        """P115 where the count alone tells more than a whole step may."""
        largest = max(phase.noise_multiplier for phase in found)
        if self.adaptation is None or largest < 2 * self.adaptation.count_noise:
            return None
        return Finding(
            "P115",
            f"noise of {self.adaptation.count_noise:g} units on the count of clipped gradients is too little for a "
            f"noise multiplier of {largest:g}: the count alone tells more than the whole step may",
            f"set mechanism.clip.count_noise to {largest:.3g} or more, or lower the noise multiplier",
            "mechanism.clip.count_noise",
        )

    def truncation(self) -> Iterator[Finding]:
        """A cap that batches reach so often that it costs."""
        sampling = self.spec.sampling
        if isinstance(sampling, TruncatedPoissonSampling):
            safe = math.ceil(sampling.batch_size + 8 * math.sqrt(sampling.batch_size))
            if sampling.max_batch_size < sampling.batch_size + 4 * math.sqrt(sampling.batch_size):
                yield Finding(
                    "P117",
                    f"batches of {sampling.batch_size:,} on average reach {sampling.max_batch_size:,} so often that "
                    "the cap costs privacy: in a full batch one unit displaces another",
                    f"raise max_batch_size to {safe} or more; or use scheme: poisson, with runtime.physical_batch for "
                    "the memory",
                    "mechanism.sampling.max_batch_size",
                    severity=Severity.WARNING,
                )


def _both_ends(path: str, moving: Schedule) -> Callable[[float], str]:
    """The remedy of a schedule that has to be `multiplier` / from as high."""
    return lambda multiplier: (
        f"set {path}.from to {multiplier:.6g} and {path}.to to {round_up(moving.to * (multiplier / moving.from_)):.6g}"
    )
