"""Accounts for gradient encoding: from a recipe's constants to the events of a run, with the free variable solved.

The checks of the block come first, one small function each, for what can't be accounted for. No data is read.

*Guarantees*: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Nasr, Shokri and Houmansadr 2020, Lemmas 4 and 5, Theorem 1, with the errata of docs/explanation/encoding.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.faults import Finding, PlanRefused, Severity
from dprecipe.mechanisms.encoded.phases import EncodedRun, box_of_text, groups_of
from dprecipe.mechanisms.encoded.plan import ATTACHMENT, EncodedPlan
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook, GradientCodebook, Slots
from dprecipe.models.schema import Hub
from dprecipe.noise import families
from dprecipe.noise.schema import CauchyNoise, phases, shape_of
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.sampling import Pace

FEW_COORDINATES = 1000
"""Number of coordinates below which the Kolmogorov–Smirnov distance under pure noise, 0.87/√d, exceeds the signal."""
MANY_COORDINATES = 100
"""Number of coordinates above which the cost of noise depends on its Fisher information only."""


def check_layer_sizes(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Checks that the sizes of the layers are known before the model is built (R280): gradients are encoded layer by
    layer."""
    if isinstance(facts.model, Hub):
        yield Finding(
            "R280",
            f"encoded needs the size of each layer; for a {facts.model.kind} model it is unknown until the model is "
            "built",
            "use mechanism.kind dpsgd, or a model.kind of dprecipe",
            "model.kind",
        )


def check_codebook(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Refuses a codebook fitted to private gradients, which would publish them without a charge (P130)."""
    if isinstance(spec.codebook, GradientCodebook):
        yield Finding(
            "P130",
            "a codebook fitted to the gradients of private records would publish them without a charge",
            "use source: gaussian, or source: file with a codebook that `dprecipe codebook` made from public records",
            "mechanism.codebook.source",
        )
    elif not isinstance(spec.codebook, GaussianCodebook):
        yield from _check_codebook_file(spec, facts)


def _check_codebook_file(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    text = facts.attachments.get(ATTACHMENT)
    if text is None:
        yield Finding(
            "R260",
            "the codebook file was not read: only the recipe's text is available here",
            "validate the recipe in the folder that holds its codebook",
            "mechanism.codebook.path",
        )
        return
    try:
        sizes = tuple(size for size, _ in box_of_text(text).groups)
    except (ValueError, TypeError, RecursionError):
        yield Finding(
            "R260", "the summary of the codebook is unreadable", "validate the recipe again", "mechanism.codebook.path"
        )
        return
    if sizes != groups_of(spec, facts):
        yield Finding(
            "R260",
            f"the codebook is for {sum(sizes):,} coordinates in {len(sizes)} groups, the model has "
            f"{sum(facts.layers):,} in {len(groups_of(spec, facts))}",
            "make the codebook for this model with `dprecipe codebook`",
            "mechanism.codebook.path",
        )


def check_sampling(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Refuses units that do not join independently of each other: Lemma 4 covers no others (P131)."""
    if spec.sampling.scheme == "dealt":
        yield Finding(
            "P131",
            "encoding is accounted only for units that join a batch independently: units dealt to the batches of an "
            "epoch have no bound here",
            "use scheme: poisson (or full_batch)",
            "mechanism.sampling.scheme",
        )


def check_microbatches(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Refuses micro-batches by position, which all change when one unit joins; with independent slots one unit changes
    one code."""
    if isinstance(spec.microbatch, Slots) and spec.microbatch.by == "position":
        yield Finding(
            "P132",
            "micro-batches are cut by position: one more record shifts every later micro-batch, which has no bound",
            "set mechanism.microbatch to 1, or by: unit (each unit draws its slot independently)",
            "mechanism.microbatch.by",
        )
    elif spec.microbatch_size > 1:
        yield Finding(
            "P133",
            "one record exchanges the code of its micro-batch for another, which doubles the sensitivity",
            "set mechanism.microbatch to 1",
            "mechanism.microbatch",
            severity=Severity.WARNING,
        )
        gaussian = any(noise.family == "gaussian" for _, noise in phases(spec.noise))
        if gaussian and facts.budget.neighbouring == "zero_out_one" and spec.sampling.scheme == "poisson":
            yield Finding(
                "P142",
                "a zeroed-out unit that joins changes the code of its micro-batch to a third value, and there is no "
                "bound here for three codes under Gaussian noise and sampling",
                "set budget.neighbouring to replace_one, or mechanism.microbatch to 1",
                "mechanism.microbatch",
            )


def check_divisor(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Refuses the realised batch size as the divisor: it is private (P134)."""
    if spec.divide_by == "realised_batch":
        yield Finding(
            "P134",
            "the realised batch size is private: dividing by it would reveal how many records joined",
            "set mechanism.divide_by to expected_batch",
            "mechanism.divide_by",
        )


def check_denoising(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Checks that the step multiplier reads the noisy sum, so that it is post-processing (P135), and enough coordinates
    (P139)."""
    chosen = spec.denoising
    if chosen is None:
        return
    if chosen.on == "clean_sum":
        yield Finding(
            "P135",
            "denoising by the sum before noise would publish a statistic of private records without a charge",
            "set mechanism.denoise.on to noisy_sum",
            "mechanism.denoise.on",
        )
        return
    sizes = groups_of(spec, facts) if chosen.per == "group" else (sum(facts.layers),)
    if min(sizes) < FEW_COORDINATES:
        enough = sum(sizes) >= FEW_COORDINATES
        yield Finding(
            "P139",
            f"a step multiplier over {min(sizes):,} coordinates is mostly noise: pure noise alone gives about "
            f"{0.87 / math.sqrt(min(sizes)):.2g}",
            ("set mechanism.denoise.per to model, or " if enough else "set ") + "mechanism.denoise to none",
            "mechanism.denoise",
            severity=Severity.WARNING,
        )


def check_group_noise(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Refuses different noise on coordinates that are ranked together: ranking moves a bound from one coordinate to
    another."""
    if spec.group_noise is None:
        return
    if spec.groups == "model":
        yield Finding(
            "P136",
            "noise differs between layers, but all coordinates are ranked together: a bound may apply where the "
            "noise is smaller than accounted",
            "set mechanism.groups to layer, or remove mechanism.group_noise",
            "mechanism.group_noise",
        )
    elif len(spec.group_noise) != len(facts.layers):
        yield Finding(
            "R261",
            f"mechanism.group_noise has {len(spec.group_noise)} scales, the model has {len(facts.layers)} layers",
            f"give {len(facts.layers)} scales, one for each layer with parameters, in order",
            "mechanism.group_noise",
        )


def check_distributions(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Finds noise families that are refused or discouraged, and shapes without a bound."""
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
                "cauchy noise has neither mean nor variance, and training with it rarely converges",
                "use family: student_t with a df, or add force: true to use it anyway",
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


def check_phase_lengths(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Checks that every phase but the last has exactly one length."""
    yield from solve.check_phase_lengths(spec.noise)


def check_last_phase(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Checks that the phases before the last leave at least one step for the last."""
    if not isinstance(spec.noise, tuple) or list(check_phase_lengths(spec, facts)):
        return
    if spec.sampling.scheme == "dealt" or getattr(spec.sampling, "batch_size", 0) > facts.size:
        return
    problem = EncodedRun(spec, facts).problem
    yield from solve.check_last_phase(problem.opening or 0, problem.events)


def check_optimizer(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Warns of an adaptive optimizer, which cancels the scale of a gradient (P140)."""
    optimizer = facts.training.optimizer
    if spec.denoising is not None and optimizer is not None and optimizer.kind != "sgd":
        what = "a module's own optimiser may cancel" if optimizer.kind == "python" else f"{optimizer.kind} cancels"
        yield Finding(
            "P140",
            f"{what} the scale of a gradient: the step multiplier is applied to its updates instead",
            "prefer sgd with denoising, or set mechanism.denoise to none",
            "training.optimizer.kind",
            severity=Severity.WARNING,
        )


def check_batches(spec: Encoded, facts: Facts) -> Iterator[Finding]:
    """Checks that batches are no larger than the data, and that the run is short enough to plan."""
    yield from solve.check_batch_sizes(Pace.of(spec.sampling, facts.size), facts)


RULES: Sequence[Callable[[Encoded, Facts], Iterator[Finding]]] = (
    check_codebook,
    check_sampling,
    check_microbatches,
    check_divisor,
    check_denoising,
    check_group_noise,
    check_distributions,
    check_phase_lengths,
    check_last_phase,
    check_optimizer,
    check_batches,
)


def check(spec: Encoded, facts: Facts) -> list[Finding]:
    """Finds what makes this block impossible or unaccountable."""
    findings = list(check_layer_sizes(spec, facts)) or [finding for rule in RULES for finding in rule(spec, facts)]
    if any(finding.is_error for finding in findings):
        return findings
    try:
        return [*findings, *solve.check(EncodedRun(spec, facts).problem)]
    except PlanRefused as refusal:
        return [*findings, *refusal.findings]


def plan(spec: Encoded, facts: Facts) -> Planned[EncodedPlan]:
    """Solves the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or is so large that it protects nothing (P107); or
            the codebook can't be made (R260).
    """
    run, codebook = EncodedRun(spec, facts), spec.codebook
    if isinstance(codebook, GradientCodebook):
        raise ValueError("a codebook fitted to private gradients has no plan")
    solution = solve.solve(run.problem, run.min_multiplier)
    box = run.box
    planned = EncodedPlan(
        size=facts.size,
        scheme=spec.sampling.scheme,
        phases=run.split(solution.multiplier, sum(charge.count for charge in solution.charges)),
        steps_per_epoch=solution.length.steps_per_epoch,
        codebook=codebook,
        words=box.words,
        digest=box.digest,
        relative_sensitivity=run.sensitivity,
        groups=tuple(size for size, _ in box.groups),
        group_noise=spec.group_noise,
        microbatch=spec.microbatch_size,
        slots=run.slots,
        denoise=spec.denoising,
    )
    return Planned(planned, solution.solved, _assumptions(spec, facts, run))


def _assumptions(spec: Encoded, facts: Facts, run: EncodedRun) -> tuple[Assumption, ...]:
    before, after = solve.common_assumptions(spec.sampling.scheme, facts)
    if run.exchanged:
        sensitivity = (
            f"one {facts.unit} draws its micro-batch by itself and exchanges one code for another; each lies in the "
            "box of the codebook's envelope"
        )
    else:
        sensitivity = f"one {facts.unit} adds one code to a sum, and it lies in the box of the codebook's envelope"
    if isinstance(spec.codebook, GaussianCodebook):
        codebook = Assumption("codebook", "the codebook was drawn from a public seed of the recipe", "code")
    else:
        codebook = Assumption("codebook", "the codebook was made from public data only", "declaration")
    families_used = sorted({noise.family for _, noise in run.phases})
    return (
        *before,
        Assumption("encoding", sensitivity, "code"),
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


if TYPE_CHECKING:
    from dprecipe.mechanisms.encoded import account

    _: Account[Encoded] = account
