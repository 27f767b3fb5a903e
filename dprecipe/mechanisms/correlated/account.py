"""The accounting of correlated noise: from a recipe's constants to the events of a run, with the free variable solved.

*Guarantees*: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: docs/explanation/accounting.md#correlated-noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.correlated.beside_poisson import compare_with_poisson
from dprecipe.mechanisms.correlated.groups import GroupedRun
from dprecipe.mechanisms.correlated.passes import MAX_PASSES, PassesRun, refuse_passes
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan
from dprecipe.mechanisms.correlated.schema import BandedNoise, Correlated, PreviousStepNoise
from dprecipe.noisy_sum import clip_rules, solve
from dprecipe.noisy_sum.clip import AdaptiveClip, NormSchedule, PerLayerClip
from dprecipe.noisy_sum.clipped_plan import plan_clip
from dprecipe.noisy_sum.sampling import CyclicPoissonSampling, FixedOrderSampling, FullBatchSampling

Run = PassesRun | GroupedRun


def run_of(spec: Correlated, facts: Facts) -> Run:
    """Returns the recipe's run as arithmetic.

    Raises:
        PlanRefused: its form of noise is not for its batches (P176).
    """
    noise, sampling = spec.noise, spec.sampling
    if isinstance(noise, PreviousStepNoise) and isinstance(sampling, FixedOrderSampling):
        return PassesRun(noise, sampling, spec, facts)
    if isinstance(noise, BandedNoise) and isinstance(sampling, CyclicPoissonSampling):
        return GroupedRun(noise, sampling, spec, facts)
    raise PlanRefused(list(check_sampling(spec)))


def check_sampling(spec: Correlated) -> Iterator[Finding]:
    """Units keep their places or their parts: with other batches, nothing bounds how their steps add up."""
    is_banded, scheme, path = isinstance(spec.noise, BandedNoise), spec.sampling.scheme, "mechanism.sampling.scheme"
    batch = "…" if isinstance(spec.sampling, FullBatchSampling) else spec.sampling.batch_size
    # whole blocks: other forms and schemes have other keys
    draw, keep = (
        f"mechanism.sampling to {{scheme: {each}, batch_size: {batch}}}" for each in ("cyclic_poisson", "fixed_order")
    )
    noise = f"mechanism.noise to {{form: %s, multiplier: {spec.noise.multiplier}}}"
    if is_banded and scheme == "fixed_order":
        yield Finding(
            "P176",
            "bands are accounted for with batches that are drawn at random from parts of the data in turn",
            f"set {noise % 'previous_step'}, or {draw}",
            path,
        )
    elif not is_banded and scheme == "cyclic_poisson":
        yield Finding(
            "P176",
            "noise that takes the step before back goes on for all of the run, and no amplification by sampling is "
            "proved for it",
            f"set {noise % 'banded'}, or {keep}",
            path,
        )
    elif is_banded and scheme != "cyclic_poisson":
        yield Finding(
            "P176",
            f"with {scheme} batches a unit may take part in two steps of a band, and what it adds to both shows in the "
            "noise that they share: there is no bound for that",
            f"set {draw}, or use mechanism.kind dpsgd",
            path,
        )
    elif not is_banded and scheme != "fixed_order":
        yield Finding(
            "P176",
            f"with {scheme} batches a unit may take part in two steps in a row, and what it adds to both shows in the "
            "noise that they share: there is no bound for that, and no amplification",
            f"set {keep}, or use mechanism.kind dpsgd",
            path,
        )


def check_clip(spec: Correlated) -> Iterator[Finding]:
    """The bound of a unit is one constant, and all of it has the same noise."""
    clip = spec.clip
    if isinstance(clip, AdaptiveClip):
        yield Finding(
            "P176",
            "adaptive clipping releases a count beside the gradients, and correlated noise is planned for gradients "
            "alone",
            "set mechanism.clip.mode to flat, per_layer or automatic",
            "mechanism.clip.mode",
        )
    elif isinstance(clip.norm, NormSchedule):
        yield Finding(
            "P176",
            "correlated noise is planned for one clip norm: what a step takes back is of the size of its own noise",
            f"set mechanism.clip.norm to one number, such as {clip.norm.from_:g}",
            "mechanism.clip.norm",
        )
    if isinstance(clip, PerLayerClip) and clip.noise is not None:
        yield Finding(
            "P176",
            "noise of its own for each group of layers has no account where noise is correlated over steps",
            "remove mechanism.clip.noise",
            "mechanism.clip.noise",
        )


def check_blocks(run: PassesRun) -> Iterator[Finding]:
    """Blocks are whole in a batch, and a neighbouring data set has the same ones."""
    size, path = run.sampling.block_size, "mechanism.sampling.block_size"
    if size is None:
        return
    if run.facts.budget.neighbouring == "add_or_remove_one":
        yield Finding(
            "P176",
            "a record that is removed moves all later ones to other blocks, so that they take part at other places",
            f"remove {path}, or set budget.neighbouring to zero_out_one or replace_one, which keep the places",
            path,
        )
    if size > run.sampling.batch_size:
        yield Finding(
            "P105",
            f"a block of {size:,} units is larger than a batch of {run.sampling.batch_size:,}",
            f"set {path} to at most {run.sampling.batch_size}",
            path,
        )


def check_passes(run: PassesRun) -> Iterator[Finding]:
    """The run is whole passes, and not too many of them: each is an event of its own."""
    training, batches = run.facts.training, run.batches
    if isinstance(training.steps, int) and training.steps % batches:
        yield _refuse_part(training.steps, batches, f"a pass of {batches:,}: a pass")
    elif isinstance(training.epochs, float | int) and training.epochs != int(training.epochs):
        below = int(training.epochs)
        yield Finding(
            "P178",
            f"{training.epochs:g} epochs end within a pass: a pass is charged as a whole",
            f"set training.epochs to {f'{below} or ' if below else ''}{below + 1}",
            "training.epochs",
        )
    elif run.passes is not None and run.passes > MAX_PASSES:
        yield refuse_passes("the run has", MAX_PASSES, run)


def check_groups(run: GroupedRun) -> Iterator[Finding]:
    """Bands can be chosen, a part holds a batch, and steps that the recipe counts are whole groups."""
    if (finding := run.check_choice()) is not None:
        yield finding
        return
    bands, steps, batch, size = run.noise.bands, run.facts.training.steps, run.sampling.batch_size, run.facts.size
    parts = 1 if bands == "auto" else bands
    if parts * batch > size:
        remedies = [f"set mechanism.sampling.batch_size to at most {size // parts}"] if parts <= size else []
        remedies += [f"lower mechanism.noise.bands to at most {size // batch or size}"] if parts > 1 else []
        yield Finding(
            "P105",
            f"a step draws {batch:,} units on average, and a part of the data has {size / parts:,.10g}",
            ", or ".join(remedies),
            "mechanism.sampling.batch_size",
        )
    elif bands != "auto" and isinstance(steps, int) and steps % bands:
        yield _refuse_part(steps, bands, f"a group of {bands:,}: a group")


def _refuse_part(steps: int, length: int, of: str) -> Finding:
    below = steps // length * length
    return Finding(
        "P178",
        f"{steps:,} steps end within {of} is charged as a whole",
        f"set training.steps to {f'{below} or ' if below else ''}{below + length}",
        "training.steps",
    )


def check(spec: Correlated, facts: Facts) -> list[Finding]:
    """Returns the findings that make this block impossible or unaccountable."""
    findings = [*check_sampling(spec), *check_clip(spec)]
    if findings:
        return findings  # later rules are about blocks that pass these
    findings += clip_rules.check_layer_norms(spec.clip, facts)
    findings += clip_rules.check_groups(spec.clip, facts)
    findings += clip_rules.check_augmentations(spec.augmentations, facts)
    run = run_of(spec, facts)
    findings += (*check_blocks(run), *check_passes(run)) if isinstance(run, PassesRun) else check_groups(run)
    return findings or solve.check_batch_sizes(run.pace, facts) or solve.check(run.problem)


def plan(spec: Correlated, facts: Facts) -> Planned[CorrelatedPlan]:
    """Plans the run and solves the free variable, and λ or bands.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or is so large that it protects nothing (P107).
    """
    run, solved = run_of(spec, facts), dict[str, float | int]()
    if isinstance(run, PassesRun) and run.passes is None:
        solved, run = run.solve_length()
    solution = solve.solve(run.problem, run.least_multiplier)
    norm = spec.clip.norm if isinstance(spec.clip.norm, float) else 1.0
    layers = facts.layers if isinstance(spec.clip, PerLayerClip) else ()
    planned = CorrelatedPlan(
        size=facts.size,
        scheme=spec.sampling.scheme,
        phases=run.phases(solution.charges, norm),
        steps_per_epoch=solution.length.steps_per_epoch,
        clip=plan_clip(spec.clip, "l2", layers),
        augmentations=spec.augmentations,
    )
    warnings = compare_with_poisson(planned, facts)
    return Planned(planned, {**solution.solved, **solved, **run.chosen}, _assumptions(spec, facts), tuple(warnings))


def _assumptions(spec: Correlated, facts: Facts) -> tuple[Assumption, ...]:
    sampling = spec.sampling
    in_blocks = isinstance(sampling, FixedOrderSampling) and sampling.block_size is not None
    before, after = solve.common_assumptions("fixed_blocks" if in_blocks else sampling.scheme, facts)
    return (
        *before,
        *clip_rules.assume_clipping(spec.clip, facts.unit, "L2", spec.augmentations),
        Assumption(
            "noise",
            "fresh Gaussian noise, less a share of the noise of steps before, is added to the sum before anything is "
            "computed from it",
            "code",
        ),
        Assumption(
            "attempts", "each attempt has an order, or parts, and noise of its own, and none is ever stored", "code"
        ),
        *after,
    )


if TYPE_CHECKING:
    from dprecipe.mechanisms.correlated import account

    _: Account[Correlated] = account
