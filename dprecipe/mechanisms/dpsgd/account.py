"""DP-SGD's accounting: from a recipe's constants to the events of a run, with the free variable solved.

The checks of the block come first, one small function each, for what can't be accounted for. No data is read.

*Guarantees*: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Abadi et al. 2016, Algorithm 1; the accountants cite theirs in `dprecipe.privacy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.dpsgd.batches import check_batches, check_cap, check_hidden_size, check_one_size
from dprecipe.mechanisms.dpsgd.phases import MAX_PHASES, DpsgdRun
from dprecipe.mechanisms.dpsgd.plan import DpsgdPlan
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.mechanisms.dpsgd.signal import check_rate, check_signal
from dprecipe.noise.schema import phases
from dprecipe.noisy_sum import clip_rules, solve
from dprecipe.noisy_sum.clip import AdaptiveClip, PerLayerClip
from dprecipe.noisy_sum.sampling import find_cap

FAMILIES = ("gaussian", "laplace")
WHY_NO_BOUND = "there is no bound for it with gradients that are clipped to a norm"


def check_families(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """The noise family has a bound with clipped gradients, and is the same in all phases."""
    result = phases(spec.noise)
    for path, noise in result:
        if noise.family not in FAMILIES:
            yield Finding(
                "P101",
                f"{noise.family} noise can't be accounted for in dpsgd: {WHY_NO_BOUND}",
                "set mechanism.noise.family to gaussian, or use mechanism.kind encoded",
                f"{path}.family",
            )
        elif noise.family != result[0][1].family:
            yield Finding(
                "P116",
                f"the run begins with {result[0][1].family} noise and goes on with {noise.family}: gradients are "
                "clipped in one norm, L1 for laplace and L2 for gaussian",
                f"set {path}.family to {result[0][1].family}",
                f"{path}.family",
            )


def check_laplace(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Laplace noise is used only where it has a bound."""
    if phases(spec.noise)[0][1].family != "laplace":
        return
    if isinstance(spec.clip, AdaptiveClip):
        yield Finding(
            "P116",
            "adaptive clipping releases gradients and a count as one Gaussian; with laplace noise there is no "
            "bound for that",
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


def check_clip(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """The clip block is consistent and fits the model."""
    yield from clip_rules.check_layer_norms(spec.clip, facts)
    yield from clip_rules.check_groups(spec.clip, facts)


def check_group_noise(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Noise of its own for each group of layers has an account."""
    if not isinstance(spec.clip, PerLayerClip) or spec.clip.noise is None:
        return
    if phases(spec.noise)[0][1].family != "gaussian":
        yield Finding(
            "P143",
            "noise of its own for each group of layers is accounted for with gaussian noise alone",
            "set mechanism.noise.family to gaussian, or remove mechanism.clip.noise",
            "mechanism.clip.noise",
        )
    if spec.sampling.scheme not in ("poisson", "full_batch"):
        yield Finding(
            "P143",
            "noise of its own for each group of layers is accounted for with scheme poisson and full_batch, not with "
            f"{spec.sampling.scheme}",
            "set mechanism.sampling.scheme to poisson, or remove mechanism.clip.noise",
            "mechanism.sampling.scheme",
        )


def check_lengths(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Every phase and every schedule has a known end."""
    findings = list(solve.check_phase_lengths(spec.noise))
    yield from findings
    if findings:
        return
    autos = [path for path, noise in phases(spec.noise) if noise.multiplier == "auto"]
    if isinstance(spec.noise, tuple):
        if len(spec.noise) > MAX_PHASES // 4:
            yield Finding(
                "R262",
                f"the noise has {len(spec.noise):,} phases; the limit is {MAX_PHASES // 4}",
                "merge phases, or write one noise with a schedule",
                "mechanism.noise",
            )
        if autos and autos != [f"mechanism.noise.{len(spec.noise) - 1}"]:
            yield Finding(
                "R263",
                "the noise of an earlier phase is `auto`: only the last phase can be solved",
                "give it a number, and set the last phase's multiplier to auto",
                f"{autos[0]}.multiplier",
            )
    run = DpsgdRun(spec, facts)
    unknown = "auto" in (facts.training.epochs, facts.training.steps)
    for path, moving in run.schedules.items():
        if moving.epochs is None and unknown:
            yield Finding(
                "R263",
                "the schedule lasts as long as the run, but the length of the run is to be solved",
                f"add {path}.epochs, or give the run a length",
                path,
            )
    if not any(moving.epochs is None for moving in run.schedules.values()) and run.opening:
        yield from solve.check_last_phase(sum(run.lengths()), run.problem.events)


def check_augmentations(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Several copies of a record need preprocessing that augments them."""
    yield from clip_rules.check_augmentations(spec.augmentations, facts)


def check_count_noise(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """The count of adaptive clipping has enough noise, if the multiplier is known."""
    run = DpsgdRun(spec, facts)
    problem = run.problem
    if run.adaptation is not None and problem.multiplier is not None:
        events = run.opening + 1 if problem.events is None else problem.events
        finding = run.check_count_noise(run.phases(problem.multiplier, events))
        if finding is not None:
            yield finding


def check_runtime(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """No process needs the whole of a noisy sum that processes divide, and what is to be compiled can be compiled."""
    runtime = facts.runtime
    if runtime is None:
        return
    laplace = phases(spec.noise)[0][1].family == "laplace"
    if runtime.compile is True and laplace:
        yield Finding(
            "R307",
            "laplace noise is for sums clipped in the L1 norm, which are made of gradients that are not compiled",
            "remove runtime.compile",
            "runtime.compile",
        )
    if runtime.sharding != "none" and isinstance(spec.clip, AdaptiveClip):
        yield Finding(
            "R307",
            "adaptive clipping moves the clip norm by a noisy number that only one of the processes would have",
            "remove runtime.sharding",
            "runtime.sharding",
        )
    if runtime.sharding == "parameters" and laplace:
        yield Finding(
            "R307",
            "laplace noise is for sums clipped in the L1 norm, which need each record's gradient whole",
            "set runtime.sharding to optimizer, or remove it",
            "runtime.sharding",
        )


RULES: Sequence[Callable[[Dpsgd, Facts], Iterator[Finding]]] = (
    check_families,
    check_laplace,
    check_clip,
    check_group_noise,
    check_batches,
    check_hidden_size,
    check_lengths,
    check_augmentations,
    check_count_noise,
    check_runtime,
    check_one_size,
)


def check(spec: Dpsgd, facts: Facts) -> list[Finding]:
    """Returns the findings that make this block impossible or unaccountable."""
    findings: list[Finding] = []
    for rule in RULES:
        findings += rule(spec, facts)
        if any(finding.is_error for finding in findings):
            return findings  # later rules are about blocks that pass the earlier ones
    run = DpsgdRun(spec, facts)
    findings += solve.check(run.problem)
    return [*findings, *check_cap(run), *check_signal(run), *check_rate(run)]


def plan(spec: Dpsgd, facts: Facts) -> Planned[DpsgdPlan]:
    """Plans the run and solves the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or is so large that it protects nothing (P107); or the
            count of adaptive clipping has too little noise (P115).
    """
    run = DpsgdRun(spec, facts)
    solution = solve.solve(run.problem, solve.MIN_NOISE / run.joint_weight)
    phases = run.phases(solution.multiplier, -(-solution.length.steps // run.pace.steps_per_event))
    finding = run.check_count_noise(phases)
    if finding is not None:
        raise PlanRefused([finding])
    cap = find_cap(spec.sampling)
    planned = DpsgdPlan(
        size=facts.size,
        scheme=spec.sampling.scheme,
        phases=phases,
        steps_per_epoch=solution.length.steps_per_epoch,
        clip=run.clip,
        augmentations=spec.augmentations,
        cap=None if cap is None else cap[1],
    )
    return Planned(planned, solution.solved, _assumptions(spec, facts, run))


def _assumptions(spec: Dpsgd, facts: Facts, run: DpsgdRun) -> tuple[Assumption, ...]:
    capped = spec.sampling.scheme == "dealt" and find_cap(spec.sampling) is not None
    before, after = solve.common_assumptions("capped_dealt" if capped else spec.sampling.scheme, facts)
    return (
        *before,
        *clip_rules.assume_clipping(spec.clip, facts.unit, "L1" if run.l1 else "L2", spec.augmentations),
        Assumption(
            "noise",
            f"{'Laplace' if run.l1 else 'Gaussian'} noise is added to the sum before anything is computed from it",
            "code",
        ),
        *after,
    )


if TYPE_CHECKING:
    from dprecipe.mechanisms.dpsgd import account

    _: Account[Dpsgd] = account
