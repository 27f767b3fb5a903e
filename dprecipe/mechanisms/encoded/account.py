"""The accounting of gradient encoding: from a recipe's constants to the events of a run, the free variable solved.

Guarantees: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Nasr, Shokri and Houmansadr 2020, Lemmas 4 and 5, Theorem 1, with the errata of docs/encoding.md.

Codebooks and laws need numpy and are imported where they are used: a recipe whose noise is `auto` validates without.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from dprecipe.faults import Finding, PlanRefused, Severity
from dprecipe.mechanisms.contract import Facts, MechanismPlan
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook, GradientCodebook, Slots
from dprecipe.mechanisms.noisy_sum import phased, solve
from dprecipe.mechanisms.noisy_sum.sampling import Pace
from dprecipe.mechanisms.plan import Assumption, Length, canonical_json
from dprecipe.noise import families
from dprecipe.noise.schema import CauchyNoise, Noise, phases, shape_of
from dprecipe.privacy import events
from dprecipe.privacy.events import Charge, Event, Gaussian, PoissonGaussian

if TYPE_CHECKING:
    from dprecipe.mechanisms.encoded.codebook import Box, Shifts

ATTACHMENT = "codebook"
"""The name under which the summary of a codebook file comes with the recipe's texts."""
FEW_COORDINATES = 1000
"""Below this the null value of the Kolmogorov–Smirnov distance, 0.87/√d, drowns the signal."""
MANY_COORDINATES = 100
"""Above this one number of the noise law, its Fisher information, decides what it costs."""


def check(spec: Encoded, facts: Facts) -> list[Finding]:
    """What makes this block impossible or unaccountable."""
    findings = [finding for rule in RULES for finding in rule(spec, facts)]
    if any(finding.is_error for finding in findings):
        return findings
    try:
        return [*findings, *solve.check(_Run(spec, facts).problem)]
    except PlanRefused as refusal:
        return [*findings, *refusal.findings]


def plan(spec: Encoded, facts: Facts) -> MechanismPlan:
    """Solve the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or holds so much that it means nothing (P107); or
            there is no such codebook (R260).
    """
    run = _Run(spec, facts)
    solution = solve.solve(run.problem, run.least_noise)
    multipliers = [solution.multiplier if noise.multiplier == "auto" else noise.multiplier for _, noise in run.phases]
    box, pace = run.box, run.problem.pace
    noises = [
        _noise(noise, float(m), spec.codebook.norm) for (_, noise), m in zip(run.phases, multipliers, strict=True)
    ]
    settings: dict[str, Any] = {
        **noises[-1],
        "scheme": spec.sampling.scheme,
        "sampling_rate": pace.sampling_rate,
        "expected_lot": pace.expected_lot,
        "max_batch_size": None,
        "attachments": [] if isinstance(spec.codebook, GaussianCodebook) else [ATTACHMENT],
        "codebook": {
            **spec.codebook.model_dump(mode="json", exclude={"size"}),
            "size": box.words,
            "digest": box.digest,
        },
        "sensitivity": run.sensitivity * spec.codebook.norm,
        "dimension": box.dimension,
        "groups": [size for size, _ in box.groups],
        "group_noise": None if spec.group_noise is None else list(spec.group_noise),
        "microbatch": spec.microbatch_size,
        "slots": run.slots,
        "denoise": None if spec.denoising is None else spec.denoising.model_dump(mode="json", exclude={"on"}),
    }
    if len(noises) > 1:
        counts = [charge.count for charge in run.split(solution.multiplier, sum(c.count for c in solution.charges))]
        settings["phases"] = [{"steps": count, **noise} for count, noise in zip(counts, noises, strict=False)]
    divisor = pace.expected_lot if run.slots is None else float(run.slots)
    return MechanismPlan(
        events=events.run_lengths(solution.charges),
        settings=settings,
        solved=solution.solved,
        length=Length(solution.length.steps, solution.length.steps_per_epoch, divisor),
        sampling_rate=pace.sampling_rate,
        released=("final weights",),
        assumptions=_assumptions(spec, facts, run),
    )


def box_of(spec: Encoded, facts: Facts) -> Box:
    """The envelope of the recipe's codebook: drawn again from its seed, or as it came with the recipe's texts.

    Raises:
        PlanRefused: there is no such codebook: too large a table, or a floor above every magnitude (R260).
    """
    if not isinstance(spec.codebook, GaussianCodebook):
        return _attached(facts.attachments[ATTACHMENT])
    from dprecipe.mechanisms.encoded.codebook import CodebookError

    try:
        return _drawn(groups_of(spec, facts), spec.codebook.size, spec.codebook.floor, spec.codebook.seed)
    except CodebookError as error:
        remedy = "lower mechanism.codebook.size or mechanism.codebook.floor"
        raise PlanRefused([Finding("R260", str(error), remedy, "mechanism.codebook")]) from None


def groups_of(spec: Encoded, facts: Facts) -> tuple[int, ...]:
    """How many coordinates are ranked together, group by group."""
    return facts.layers if spec.groups == "layer" else (sum(facts.layers),)


@lru_cache(maxsize=8)
def _drawn(sizes: tuple[int, ...], words: int, floor: float, seed: int) -> Box:
    from dprecipe.mechanisms.encoded.codebook import gaussian

    return gaussian(sizes, words, floor, seed).box


@lru_cache(maxsize=8)
def _attached(text: str) -> Box:
    from dprecipe.mechanisms.encoded.codebook import Box

    box = Box.of_json(json.loads(text))
    if canonical_json(box.to_json()) != text:
        raise ValueError("not the summary of a codebook as it is written")
    return box


class _Run:
    """A recipe's run as arithmetic."""

    def __init__(self, spec: Encoded, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        self.pace = Pace.of(spec.sampling, facts.size)
        self.phases = phases(spec.noise)
        self.exchanged = spec.microbatch_size > 1
        self.slots = max(1, round(self.pace.expected_lot / spec.microbatch_size)) if self.exchanged else None

    @cached_property
    def box(self) -> Box:
        return box_of(self.spec, self.facts)

    @cached_property
    def _relative(self) -> tuple[float, Shifts]:
        return self.box.shifts(self.spec.group_noise)

    @cached_property
    def sensitivity(self) -> float:
        """How far one unit moves a sum, in codeword norms, each group over its relative noise."""
        relative = 1.0 if self.spec.group_noise is None else self._relative[0]
        return relative * (2 if self.exchanged else 1)

    @property
    def problem(self) -> solve.Problem:
        auto = [f"{path}.multiplier" for path, noise in self.phases if noise.multiplier == "auto"]
        last, noise = self.phases[-1]
        given = None if auto or noise.multiplier == "auto" else noise.multiplier
        path = auto[0] if auto else f"{last}.multiplier"
        return solve.Problem(self.facts, self.pace, self.split, given, path, sum(self._openings()))

    @property
    def least_noise(self) -> float:
        """The multiplier at which a phase's law tells as much as Gaussian noise of the least multiplier does."""
        from dprecipe.noise.laws import Law

        solved = [noise for _, noise in self.phases if noise.multiplier == "auto"]
        return min((solve.LEAST_NOISE * math.sqrt(Law(n.family, shape_of(n)).fisher) for n in solved), default=0.0)

    def split(self, multiplier: float, count: int) -> tuple[Charge, ...]:
        """`count` events over the phases; `multiplier` is the solved one, or else the last phase's."""
        auto = any(noise.multiplier == "auto" for _, noise in self.phases)
        charges = []
        for index, (_, noise) in enumerate(self.phases):
            last = index == len(self.phases) - 1
            own = multiplier if noise.multiplier == "auto" or (last and not auto) else float(noise.multiplier)
            part = count if last else min(count, self._openings()[index])
            if part:
                charges.append(Charge(self.event(noise, own), part))
            count -= part
        return tuple(charges)

    def _openings(self) -> list[int]:
        """Events of every phase but the last."""
        if not isinstance(self.spec.noise, tuple):
            return []
        return [self.pace.events_for(phase.epochs, phase.steps) for phase in self.spec.noise[:-1]]

    def event(self, noise: Noise, multiplier: float) -> Event:
        q = self.pace.sampling_rate
        scale = multiplier / self.sensitivity
        if noise.family == "gaussian":
            return Gaussian(scale) if q is None else PoissonGaussian(q, scale)
        return events.Encoded(
            sampling_rate=1.0 if q is None else q,
            noise_multiplier=scale,
            family=noise.family,
            shape=shape_of(noise),
            shifts=self._relative[1],
            exchanged=self.exchanged,
            codebook=self.box.digest,
        )


def _noise(noise: Noise, multiplier: float, norm: float) -> dict[str, Any]:
    from dprecipe.noise.laws import Law

    scale, shape = multiplier * norm, shape_of(noise)
    deviation = scale * Law(noise.family, shape).standard_deviation
    return {
        "noise_family": noise.family,
        "noise_shape": shape,
        "noise_multiplier": multiplier,
        "noise_scale": scale,
        "noise_std": deviation if math.isfinite(deviation) else None,
    }


def codebook_is_public(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """A codebook fitted to private gradients would publish them unpaid."""
    if isinstance(spec.codebook, GradientCodebook):
        yield Finding(
            "P130",
            "a codebook fitted to the gradients of private records would publish them unpaid",
            "use source: gaussian, or source: file with a codebook that `dprecipe codebook` made from public records",
            "mechanism.codebook.source",
        )
    elif not isinstance(spec.codebook, GaussianCodebook):
        yield from _file_fits(spec, facts)


def _file_fits(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    text = facts.attachments.get(ATTACHMENT)
    if text is None:
        yield Finding(
            "R260",
            "the codebook file was not read: only the recipe's text is known here",
            "validate the recipe where its codebook lies",
            "mechanism.codebook.path",
        )
        return
    try:
        sizes = tuple(size for size, _ in _attached(text).groups)
    except (ValueError, TypeError, RecursionError):
        yield Finding("R260", "the summary of the codebook is unreadable", "make it again", "mechanism.codebook.path")
        return
    if sizes != groups_of(spec, facts):
        yield Finding(
            "R260",
            f"the codebook is for {sum(sizes):,} coordinates in {len(sizes)} groups, the model has "
            f"{sum(facts.layers):,} in {len(groups_of(spec, facts))}",
            "make the codebook for this model with `dprecipe codebook`",
            "mechanism.codebook.path",
        )


def sampled_independently(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Lemma 4 is about units that join independently of one another."""
    if spec.sampling.scheme == "shuffle":
        yield Finding(
            "P131",
            "encoding is accounted for units that join a lot independently: lots dealt by shuffling have no bound here",
            "use scheme: poisson (or full_batch)",
            "mechanism.sampling.scheme",
        )


def microbatches(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Chunks of the sampled list all change when one unit joins; slots of their own change one code."""
    if isinstance(spec.microbatch, Slots) and spec.microbatch.by == "position":
        yield Finding(
            "P132",
            "micro-batches cut from the list of a lot: one more record shifts every chunk behind it, without bound",
            "set mechanism.microbatch to 1, or by: unit (each unit draws its slot by itself)",
            "mechanism.microbatch.by",
        )
    elif spec.microbatch_size > 1:
        yield Finding(
            "P133",
            "one record exchanges the code of its micro-batch for another: twice the sensitivity of microbatch: 1",
            "set mechanism.microbatch to 1",
            "mechanism.microbatch",
            severity=Severity.WARNING,
        )
        gaussian = any(noise.family == "gaussian" for _, noise in phases(spec.noise))
        if gaussian and facts.budget.neighbouring == "zero_out_one" and spec.sampling.scheme == "poisson":
            yield Finding(
                "P142",
                "a blanked unit that joins exchanges the code of its micro-batch for a third one, and no bound is "
                "known here of three codes under Gaussian noise and sampling",
                "set budget.neighbouring to replace_one, or mechanism.microbatch to 1",
                "mechanism.microbatch",
            )


def public_divisor(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """How many units joined is private."""
    if spec.divide_by == "lot":
        yield Finding(
            "P134",
            "dividing by the realised lot size would use how many records joined, which is private",
            "set mechanism.divide_by to expected_lot",
            "mechanism.divide_by",
        )


def denoising(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """The step multiplier is post-processing only while it reads the noisy sum; and it needs coordinates."""
    chosen = spec.denoising
    if chosen is None:
        return
    if chosen.on == "clean_sum":
        yield Finding(
            "P135",
            "denoising by the sum before noise would publish a statistic of private records unpaid",
            "set mechanism.denoise.on to noisy_sum",
            "mechanism.denoise.on",
        )
        return
    sizes = groups_of(spec, facts) if chosen.per == "group" else (sum(facts.layers),)
    if min(sizes) < FEW_COORDINATES:
        enough = sum(sizes) >= FEW_COORDINATES
        yield Finding(
            "P139",
            f"a step multiplier over {min(sizes):,} coordinates: pure noise gives it about "
            f"{0.87 / math.sqrt(min(sizes)):.2g}, which drowns the signal",
            ("set mechanism.denoise.per to model, or " if enough else "set ") + "mechanism.denoise to none",
            "mechanism.denoise",
            severity=Severity.WARNING,
        )


def one_law_where_ranked(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Ranking moves a bound from one coordinate to another: they need the same noise."""
    if spec.group_noise is None:
        return
    if spec.groups == "model":
        yield Finding(
            "P136",
            "noise that differs between layers, with all coordinates ranked together: a bound may land on less noise "
            "than it was accounted with",
            "set mechanism.groups to layer, or remove mechanism.group_noise",
            "mechanism.group_noise",
        )
    elif len(spec.group_noise) != len(facts.layers):
        yield Finding(
            "R261",
            f"{len(spec.group_noise)} relative scales for {len(facts.layers)} layers",
            f"give {len(facts.layers)}, one for each layer with parameters, in order",
            "mechanism.group_noise",
        )


def laws(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Families that need an excuse, and shapes that have no bound."""
    for path, noise in phases(spec.noise):
        try:
            families.check(noise.family, shape_of(noise))
        except ValueError as error:
            name = families.SHAPED[noise.family]
            yield Finding(
                "P101",
                f"no bound for this noise: {error}",
                f"choose a {name} in that range",
                f"{path}.{name}",
            )
            continue
        if isinstance(noise, CauchyNoise) and not noise.force:
            yield Finding(
                "P137",
                "cauchy noise has neither mean nor variance: sums of it never settle, and training on them rarely does",
                "choose family: student_t with a df, or add force: true to have it all the same",
                f"{path}.family",
            )
        elif noise.family != "gaussian" and sum(facts.layers) > MANY_COORDINATES:
            yield Finding(
                "P138",
                f"{noise.family} noise protects {sum(facts.layers):,} coordinates no better than gaussian noise: only "
                "its Fisher information counts there",
                "prefer gaussian; `dprecipe noise` compares all families for this recipe",
                f"{path}.family",
                severity=Severity.WARNING,
            )


def phase_lengths(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Every phase but the last says how long it lasts, once."""
    yield from phased.lengths(spec.noise)


def phases_end(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """The phases before the last leave it something to do."""
    if not isinstance(spec.noise, tuple) or list(phase_lengths(spec, facts)):
        return
    if spec.sampling.scheme == "shuffle" or getattr(spec.sampling, "batch_size", 0) > facts.size:
        return
    problem = _Run(spec, facts).problem
    yield from phased.leave_something(problem.opening or 0, problem.events)


def optimizer(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """An adaptive optimiser divides any factor of the gradient away again."""
    if spec.denoising is not None and facts.training.descent.kind != "sgd":
        yield Finding(
            "P140",
            f"{facts.training.descent.kind} divides the scale of a gradient away: the step multiplier is applied to "
            "its updates instead",
            "prefer sgd with denoising, or set mechanism.denoise to none",
            "training.optimizer.kind",
            severity=Severity.WARNING,
        )


def lots(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Lots fit the data, and the run can be planned."""
    yield from solve.lots_that_fit(Pace.of(spec.sampling, facts.size), facts)


RULES: Sequence[Callable[[Encoded, Facts], Iterator[Finding]]] = (
    codebook_is_public,
    sampled_independently,
    microbatches,
    public_divisor,
    denoising,
    one_law_where_ranked,
    laws,
    phase_lengths,
    phases_end,
    optimizer,
    lots,
)


def _assumptions(spec: Encoded, facts: Facts, run: _Run) -> tuple[Assumption, ...]:
    before, after = solve.common_assumptions(spec.sampling.scheme, facts)
    if run.exchanged:
        moved = (
            f"one {facts.unit} draws its micro-batch by itself and exchanges one code for another; each lies in the "
            "box of the codebook's envelope"
        )
    else:
        moved = f"one {facts.unit} adds one code to a sum, and it lies in the box of the codebook's envelope"
    if isinstance(spec.codebook, GaussianCodebook):
        codebook = Assumption("codebook", "the codebook was drawn from a public seed of the recipe", "code")
    else:
        codebook = Assumption("codebook", "the codebook was made from public data only", "declaration")
    families_used = sorted({noise.family for _, noise in run.phases})
    return (
        *before,
        Assumption("encoding", moved, "code"),
        codebook,
        Assumption(
            "noise",
            f"independent {' and '.join(families_used)} noise is added to each coordinate of the sum before anything "
            "is computed from it",
            "code",
        ),
        Assumption("denoising", "steps are scaled by public constants and the noisy sum alone", "code"),
        *after,
    )
