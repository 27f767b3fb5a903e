"""DP-SGD's accounting: from a recipe's constants to the events of a run, with the free variable solved.

Noise, clip norm and lot size may follow schedules: each is cut into a staircase, and the account charges for the phases
of all of them together. The run takes exactly these phases.

Guarantees: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Abadi et al. 2016, Algorithm 1; the accountants cite theirs in `dprecipe.privacy`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from dprecipe.data.schema import Crop, Flip
from dprecipe.faults import Finding, PlanRefused, Severity
from dprecipe.language.schedules import Schedule
from dprecipe.mechanisms.contract import Facts, MechanismPlan
from dprecipe.mechanisms.dpsgd.schema import AdaptiveClip, AutomaticClip, Dpsgd, PerLayerClip
from dprecipe.mechanisms.noisy_sum import phased, solve, staircase
from dprecipe.mechanisms.noisy_sum.sampling import (
    FixedSizeSampling,
    LotSchedule,
    Pace,
    TruncatedPoissonSampling,
    lots_over,
)
from dprecipe.mechanisms.plan import Assumption
from dprecipe.noise.schema import phases
from dprecipe.privacy.events import (
    Charge,
    Event,
    FixedSizeGaussian,
    Gaussian,
    PartitionedGaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
    run_lengths,
)
from dprecipe.privacy.rounding import up

MULTIPLIER = "mechanism.noise.multiplier"
FAMILIES = ("gaussian", "laplace")
MOST_PHASES = 64
"""Half as many where each costs something else: all of them are composed again for every multiplier that is tried."""
COUNT_NOISE = 20
"""Of the expected lot, the part that the count's noise is where the recipe does not say."""

WHY_NO_BOUND = "there is no bound for it and gradients that are clipped in a norm"


@dataclass(frozen=True, slots=True)
class Phase:
    """Steps that are alike."""

    steps: int
    clip_norm: float
    noise_multiplier: float
    expected_lot: float


def check(spec: Dpsgd, facts: Facts) -> list[Finding]:
    """What makes this block impossible or unaccountable."""
    findings: list[Finding] = []
    for rule in RULES:
        findings += rule(spec, facts)
        if any(finding.is_error for finding in findings):
            return findings  # later rules are about blocks that pass the earlier ones
    run = _Run(spec, facts)
    findings += solve.check(run.problem)
    return [*findings, *run.truncation()]


def plan(spec: Dpsgd, facts: Facts) -> MechanismPlan:
    """Solve the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or holds so much that it means nothing (P107); or the
            count of adaptive clipping has too little noise (P115).
    """
    run = _Run(spec, facts)
    solution = solve.solve(run.problem)
    events = solution.length.steps // run.pace.steps_per_event
    found = run.phases(solution.multiplier, events)
    first, clip = found[0], run.clip
    least = run.least_count_noise(found)
    if least is not None:
        raise PlanRefused([least])
    scale = noise_scale(clip, first.clip_norm, first.noise_multiplier)
    return MechanismPlan(
        events=solution.charges,
        settings={
            "clip_norm": first.clip_norm,
            "noise_family": run.family,
            "noise_multiplier": first.noise_multiplier,
            "noise_std": scale * (math.sqrt(2) if run.l1 else 1.0),
            "scheme": spec.sampling.scheme,
            "sampling_rate": run.pace.sampling_rate,
            "expected_lot": run.pace.expected_lot,
            "clip": clip,
            "augmentations": spec.augmentations,
            "max_batch_size": getattr(spec.sampling, "max_batch_size", None),
            "phases": [asdict(phase) for phase in found],
        },
        solved=solution.solved,
        length=solution.length,
        sampling_rate=run.pace.sampling_rate,
        released=("final weights",),
        assumptions=_assumptions(spec, facts, run),
    )


def gradient_multiplier(joint: float, count_noise: float) -> float:
    """z_Δ, the noise multiplier of the gradients alone, where they and a count of units are one release of multiplier
    `joint` z: 1/z² = 1/z_Δ² + 1/(2 σ_b)².

    The count adds ½ or -½ a unit, so that one unit moves it by ½. Source: Andrew et al. 2021, Theorem 1.

    Raises:
        ValueError: z >= 2 σ_b: the count alone tells more than that.
    """
    rest = 1 - (joint / (2 * count_noise)) ** 2
    if not rest > 0:
        raise ValueError(f"noise of {count_noise} on the count leaves nothing for the gradients")
    return joint / math.sqrt(rest)


def noise_scale(clip: Mapping[str, Any], clip_norm: float, multiplier: float) -> float:
    """Scale of the noise on a coordinate of the gradients' sum (of Gaussian noise, its deviation), in the layer that
    has most of it; `clip` as a plan's settings have it."""
    if clip["count_noise"] is not None:
        return gradient_multiplier(multiplier, clip["count_noise"]) * clip_norm
    if clip["norms"] is None:
        return multiplier * clip_norm
    count = len(clip["norms"])
    return float(
        multiplier * clip_norm * (count if clip["norm_kind"] == "l1" else math.sqrt(count)) * max(clip["norms"])
    )


class _Run:
    """A recipe's run as arithmetic."""

    def __init__(self, spec: Dpsgd, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        self.noises = phases(spec.noise)
        self.family = self.noises[0][1].family
        self.l1 = self.family == "laplace"
        self.norm = getattr(spec.clip, "norm", None)
        costly = any(path != "mechanism.clip.norm" for path in self.schedules)
        most = MOST_PHASES // 2 if costly else MOST_PHASES
        self.stairs = (most - len(self.noises)) // max(1, len(self.schedules)) - 1
        self.pace = Pace.of(spec.sampling, facts.size, self._lot_events(), self.stairs)

    def _lot_events(self) -> int:
        """Steps over which the lots move; 1 where they don't, or where nobody knows."""
        moving = getattr(self.spec.sampling, "batch_size", None)
        if not isinstance(moving, LotSchedule):
            return 1
        training = self.facts.training
        epochs = moving.epochs if moving.epochs is not None else training.epochs
        if moving.epochs is None and training.steps is not None:
            return 1 if training.steps == "auto" else training.steps
        return 1 if epochs is None or epochs == "auto" else lots_over(moving, self.facts.size, epochs)

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
        at = [sum(self._lengths())]
        at += [self._events_of(moving, 0) - 1 for moving in self.schedules.values() if moving.epochs is not None]
        return max(at)

    def charges(self, multiplier: float, count: int) -> tuple[Charge, ...]:
        """`count` events; the multiplier is the solved one, or else the last phase's, with a schedule in proportion."""
        found, each = self.phases(multiplier, count), self.pace.steps_per_event
        return run_lengths(Charge(self._event(phase), phase.steps // each) for phase in found)

    def phases(self, multiplier: float, events: int) -> tuple[Phase, ...]:
        """At most `MOST_PHASES` phases that together take so many events."""
        cuts = {first for first, _ in self.pace.lots} | set(self._starts())
        for moving in self.schedules.values():
            if not isinstance(moving, LotSchedule):
                length = self._events_of(moving, events)
                cuts |= staircase.starts(length, length, self.stairs)
        found: list[Phase] = []
        for first, end in staircase.pieces(cuts, events):
            lot, steps = self.pace.lot(first), (end - first) * self.pace.steps_per_event
            values = (self._norm(first, events), self._multiplier(multiplier, first, events), lot)
            if found and (found[-1].clip_norm, found[-1].noise_multiplier, found[-1].expected_lot) == values:
                steps += found.pop().steps
            found.append(Phase(steps, *values))
        return tuple(found)

    def _event(self, phase: Phase) -> Event:
        z, size, q = phase.noise_multiplier, self.facts.size, phase.expected_lot / self.facts.size
        match self.spec.sampling:
            case TruncatedPoissonSampling(max_batch_size=most) if most < size:
                return TruncatedPoissonGaussian(q, z, size, most)
            case FixedSizeSampling(batch_size=lot) if lot < size:
                return FixedSizeGaussian(size, lot, z)
        if self.spec.sampling.scheme == "shuffle":
            return PartitionedGaussian(z, self.pace.steps_per_event)
        if self.l1:
            return PoissonLaplace(q, z)
        return PoissonGaussian(q, z) if self.pace.sampled and q < 1 else Gaussian(z)

    def _events_of(self, moving: Schedule, events: int) -> int:
        """Events over which a schedule moves in a run of so many."""
        if isinstance(moving, LotSchedule):
            return self._lot_events()
        return events if moving.epochs is None else self.pace.events_for(moving.epochs, None)

    def _lengths(self) -> list[int]:
        """Events of every phase of noise but the last."""
        noise = self.spec.noise
        return [self.pace.events_for(p.epochs, p.steps) for p in noise[:-1]] if isinstance(noise, tuple) else []

    def _starts(self) -> list[int]:
        """Where phases of noise begin."""
        lengths = self._lengths()
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
    def clip(self) -> dict[str, Any]:
        """The clipping as the run takes it."""
        clip = self.spec.clip
        return {
            "mode": clip.mode,
            "norm_kind": "l1" if self.l1 else "l2",
            "norms": self._norms(),
            "stability": clip.stability if isinstance(clip, AutomaticClip) else None,
            "quantile": clip.quantile if isinstance(clip, AdaptiveClip) else None,
            "learning_rate": clip.learning_rate if isinstance(clip, AdaptiveClip) else None,
            "count_noise": self.count_noise,
        }

    def _norms(self) -> list[float] | None:
        """Of each layer, over the phase's clip norm; `None` where one norm is shared out over layers that only the
        model itself knows."""
        if not isinstance(self.spec.clip, PerLayerClip):
            return None
        if self.spec.clip.norms is not None:
            return list(self.spec.clip.norms)
        count = len(self.facts.layers)
        return [1 / (count if self.l1 else math.sqrt(count))] * count if count else None

    @cached_property
    def count_noise(self) -> float | None:
        """σ_b, in units, of adaptive clipping."""
        if not isinstance(self.spec.clip, AdaptiveClip):
            return None
        given = self.spec.clip.count_noise
        return self.pace.expected_lot / COUNT_NOISE if given is None else given

    def least_count_noise(self, found: Sequence[Phase]) -> Finding | None:
        """P115 where the count alone tells more than a whole step may."""
        largest = max(phase.noise_multiplier for phase in found)
        if self.count_noise is None or largest < 2 * self.count_noise:
            return None
        return Finding(
            "P115",
            f"noise of {self.count_noise:g} units on the count of clipped gradients is too little for a noise "
            f"multiplier of {largest:g}: the count alone tells more than the whole step may",
            f"set mechanism.clip.count_noise to {largest:.3g} or more, or lower the noise multiplier",
            "mechanism.clip.count_noise",
        )

    def truncation(self) -> Iterator[Finding]:
        """A cap that lots reach so often that it costs."""
        sampling = self.spec.sampling
        if isinstance(sampling, TruncatedPoissonSampling):
            safe = math.ceil(sampling.batch_size + 8 * math.sqrt(sampling.batch_size))
            if sampling.max_batch_size < sampling.batch_size + 4 * math.sqrt(sampling.batch_size):
                yield Finding(
                    "P117",
                    f"lots of {sampling.batch_size:,} on average reach {sampling.max_batch_size:,} so often that the "
                    "cap costs privacy: in a full lot one unit displaces another",
                    f"raise max_batch_size to {safe} or more; or use scheme: poisson, with runtime.physical_batch for "
                    "the memory",
                    "mechanism.sampling.max_batch_size",
                    severity=Severity.WARNING,
                )


def _both_ends(path: str, moving: Schedule) -> Callable[[float], str]:
    """The remedy of a schedule that has to be `multiplier` / from as high."""
    return lambda multiplier: (
        f"set {path}.from to {multiplier:.6g} and {path}.to to {up(moving.to * (multiplier / moving.from_)):.6g}"
    )


def families(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Noise whose sum with clipped gradients has a bound, and one family throughout."""
    found = phases(spec.noise)
    for path, noise in found:
        if noise.family not in FAMILIES:
            yield Finding(
                "P101",
                f"{noise.family} noise can't be accounted for in dpsgd: {WHY_NO_BOUND}",
                "set mechanism.noise.family to gaussian, or use mechanism.kind encoded",
                f"{path}.family",
            )
        elif noise.family != found[0][1].family:
            yield Finding(
                "P116",
                f"the run begins with {found[0][1].family} noise and goes on with {noise.family}: gradients are "
                "clipped in one norm, L1 for laplace and L2 for gaussian",
                f"set {path}.family to {found[0][1].family}",
                f"{path}.family",
            )


def noise_and_clip(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Laplace noise, where it has a bound."""
    if phases(spec.noise)[0][1].family != "laplace":
        return
    if isinstance(spec.clip, AdaptiveClip):
        yield Finding(
            "P116",
            "adaptive clipping releases gradients and a count together, as one Gaussian; with laplace noise it has no "
            "such account",
            "set mechanism.noise.family to gaussian, or mechanism.clip.mode to flat",
            "mechanism.clip.mode",
        )
    if spec.sampling.scheme not in ("poisson", "full_batch"):
        yield Finding(
            "P116",
            f"laplace noise is accounted for with scheme poisson and full_batch, not with {spec.sampling.scheme}",
            "set mechanism.sampling.scheme to poisson, or mechanism.noise.family to gaussian",
            "mechanism.sampling.scheme",
        )


def norms_of_layers(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """One norm to share out, or one for each layer."""
    clip = spec.clip
    if not isinstance(clip, PerLayerClip):
        return
    if (clip.norm is None) == (clip.norms is None):
        both = clip.norm is not None
        yield Finding(
            "R264",
            "the clip block has both norm and norms" if both else "the clip block has no norm",
            "remove one of them"
            if both
            else "add norm, which is shared out over the layers, or norms, one for each layer",
            "mechanism.clip.norms" if both else "mechanism.clip",
        )
    elif clip.norms is not None and facts.layers and len(clip.norms) != len(facts.layers):
        yield Finding(
            "R264",
            f"the model has {len(facts.layers)} layers, mechanism.clip.norms {len(clip.norms)} entries",
            f"write {len(facts.layers)} norms, in the order of the layers; or norm, which is shared out over them",
            "mechanism.clip.norms",
        )


def relation(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Lots of one size compare data sets of one size."""
    if spec.sampling.scheme == "fixed_size" and facts.budget.neighbouring == "add_or_remove_one":
        yield Finding(
            "P118",
            f"lots of a fixed size have no guarantee for {facts.budget.neighbouring}: with one unit more every lot is "
            "another",
            "set budget.neighbouring to replace_one or zero_out_one; or use scheme: poisson, which costs far less",
            "mechanism.sampling.scheme",
        )


def lots(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Lots fit the data, and the run can be planned."""
    run = _Run(spec, facts)
    unfit = list(solve.lots_that_fit(run.pace, facts))
    sampling = spec.sampling
    if isinstance(sampling, TruncatedPoissonSampling) and sampling.max_batch_size < sampling.batch_size:
        unfit.append(
            Finding(
                "P117",
                f"max_batch_size {sampling.max_batch_size:,} is below batch_size {sampling.batch_size:,}: nearly every "
                "lot would be cut",
                f"set max_batch_size to at least {math.ceil(sampling.batch_size + 8 * math.sqrt(sampling.batch_size))}",
                "mechanism.sampling.max_batch_size",
            )
        )
    yield from unfit
    if sampling.scheme == "shuffle" and not any(finding.code == "P105" for finding in unfit):
        yield Finding(
            "P104",
            "shuffled lots are accounted without amplification by sampling: they need far more noise",
            "use scheme: poisson unless something else forces the order of the records",
            "mechanism.sampling.scheme",
            severity=Severity.WARNING,
        )


def lengths(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Every phase and every schedule ends where it says, in a run of a length it can know."""
    wrong = list(phased.lengths(spec.noise))
    yield from wrong
    if wrong:
        return
    autos = [path for path, noise in phases(spec.noise) if noise.multiplier == "auto"]
    if isinstance(spec.noise, tuple):
        if len(spec.noise) > MOST_PHASES // 4:
            yield Finding(
                "R262",
                f"the noise has {len(spec.noise):,} phases; the most is {MOST_PHASES // 4}",
                "merge phases, or write one noise with a schedule",
                "mechanism.noise",
            )
        if autos and autos != [f"mechanism.noise.{len(spec.noise) - 1}"]:
            yield Finding(
                "R263",
                "the noise of an earlier phase is `auto`: what is solved is the last phase",
                "give it a number, and set the last phase's multiplier to auto",
                f"{autos[0]}.multiplier",
            )
    run = _Run(spec, facts)
    unknown = "auto" in (facts.training.epochs, facts.training.steps)
    for path, moving in run.schedules.items():
        if moving.epochs is None and unknown:
            yield Finding(
                "R263",
                "the schedule lasts as long as the run, whose length is to be solved",
                f"add {path}.epochs, or give the run a length",
                path,
            )
    if not any(moving.epochs is None for moving in run.schedules.values()) and run.opening:
        yield from phased.leave_something(sum(run._lengths()), run.problem.events)


def copies_differ(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Copies of a record are there to be augmented."""
    moves = [step for step in facts.data.preprocess if isinstance(step.operation, Crop | Flip)]
    if spec.augmentations > 1 and not moves:
        yield Finding(
            "R265",
            f"all {spec.augmentations} copies of a record are alike: data.preprocess augments nothing",
            "add crop or flip to data.preprocess, or remove augmentations",
            "mechanism.augmentations",
        )


def count_noise(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Noise on the count of adaptive clipping, as far as the multiplier is known."""
    run = _Run(spec, facts)
    problem = run.problem
    if run.count_noise is not None and problem.multiplier is not None:
        events = run.opening + 1 if problem.events is None else problem.events
        finding = run.least_count_noise(run.phases(problem.multiplier, events))
        if finding is not None:
            yield finding


RULES: Sequence[Callable[[Dpsgd, Facts], Iterator[Finding]]] = (
    families,
    noise_and_clip,
    norms_of_layers,
    relation,
    lots,
    lengths,
    copies_differ,
    count_noise,
)


def _assumptions(spec: Dpsgd, facts: Facts, run: _Run) -> tuple[Assumption, ...]:
    before, after = solve.common_assumptions(spec.sampling.scheme, facts)
    return (
        *before,
        Assumption("clipping", _moved(spec, facts, run), "code"),
        *(
            (
                Assumption(
                    "augmentations",
                    f"the {spec.augmentations} copies of a record are averaged before the gradient of their "
                    f"{facts.unit} is clipped",
                    "code",
                ),
            )
            if spec.augmentations > 1
            else ()
        ),
        Assumption(
            "noise",
            f"{'Laplace' if run.l1 else 'Gaussian'} noise is added to the sum before anything is computed from it",
            "code",
        ),
        *after,
    )


def _moved(spec: Dpsgd, facts: Facts, run: _Run) -> str:
    """What one unit moves, and by how much."""
    norm = "L1" if run.l1 else "L2"
    bound = f"at most {run.norm:g}" if isinstance(run.norm, float) else "at most the clip norm of the phase"
    start = f"one {facts.unit} more or less moves a sum of gradients by"
    if isinstance(spec.clip, PerLayerClip):
        each = "share of it" if spec.clip.norms is None else "norm of its own"
        whole = f"{bound} in {norm} norm" if spec.clip.norms is None else f"at most a {norm} norm a layer"
        return f"{start} {whole}: the gradient of each layer is clipped to a {each}, and its noise is in proportion"
    if isinstance(spec.clip, AutomaticClip):
        return f"{start} {bound} in {norm} norm: every gradient is scaled to less than it"
    if isinstance(spec.clip, AdaptiveClip):
        return (
            f"{start} at most the clip norm of the step in L2 norm, and the count of gradients within it by ½; both "
            "are one release, and the next clip norm is computed from it alone"
        )
    return f"{start} {bound} in {norm} norm"
