"""DP-SGD's accounting: from a recipe's constants to the events of a run, with the free variable solved.

*Guarantees*: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Abadi et al. 2016, Algorithm 1; the accountants cite theirs in `dprecipe.privacy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.dpsgd.phases import DpsgdRun
from dprecipe.mechanisms.dpsgd.plan import DpsgdPlan
from dprecipe.mechanisms.dpsgd.rules import RULES
from dprecipe.mechanisms.dpsgd.schema import AdaptiveClip, AutomaticClip, Dpsgd, PerLayerClip
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.sampling import TruncatedPoissonSampling


def check(spec: Dpsgd, facts: Facts) -> list[Finding]:
    """Returns the findings that make this block impossible or unaccountable."""
    findings: list[Finding] = []
    for rule in RULES:
        findings += rule(spec, facts)
        if any(finding.is_error for finding in findings):
            return findings  # later rules are about blocks that pass the earlier ones
    run = DpsgdRun(spec, facts)
    findings += solve.check(run.problem)
    return [*findings, *run.check_truncation()]


def plan(spec: Dpsgd, facts: Facts) -> Planned[DpsgdPlan]:
    """Plans the run and solves the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or is so large that it protects nothing (P107); or the
            count of adaptive clipping has too little noise (P115).
    """
    run = DpsgdRun(spec, facts)
    solution = solve.solve(run.problem, solve.MIN_NOISE / run.joint_weight)
    phases = run.phases(solution.multiplier, solution.length.steps // run.pace.steps_per_event)
    finding = run.check_count_noise(phases)
    if finding is not None:
        raise PlanRefused([finding])
    sampling = spec.sampling
    planned = DpsgdPlan(
        size=facts.size,
        scheme=sampling.scheme,
        phases=phases,
        steps_per_epoch=solution.length.steps_per_epoch,
        clip=run.clip,
        augmentations=spec.augmentations,
        cap=sampling.max_batch_size if isinstance(sampling, TruncatedPoissonSampling) else None,
    )
    return Planned(planned, solution.solved, _assumptions(spec, facts, run))


def _assumptions(spec: Dpsgd, facts: Facts, run: DpsgdRun) -> tuple[Assumption, ...]:
    before, after = solve.common_assumptions(spec.sampling.scheme, facts)
    return (
        *before,
        Assumption("clipping", _describe_sensitivity(spec, facts, run), "code"),
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


def _describe_sensitivity(spec: Dpsgd, facts: Facts, run: DpsgdRun) -> str:
    """Returns what one unit can move, and by how much."""
    norm = "L1" if run.l1 else "L2"
    bound = f"at most {run.norm:g}" if isinstance(run.norm, float) else "at most the clip norm of the phase"
    start = f"one {facts.unit} more or less moves a sum of gradients by"
    if isinstance(spec.clip, PerLayerClip):
        part = "layer" if spec.clip.groups is None else "group of layers"
        layer_norm = "share of it" if spec.clip.norms is None else "norm of its own"
        movement = f"{bound} in {norm} norm" if spec.clip.norms is None else f"at most a {norm} norm a {part}"
        noise = "its noise is in proportion" if run.weights is None else "its noise has a multiplier of its own"
        return f"{start} {movement}: the gradient of each {part} is clipped to a {layer_norm}, and {noise}"
    if isinstance(spec.clip, AutomaticClip):
        return f"{start} {bound} in {norm} norm: every gradient is scaled to less than it"
    if isinstance(spec.clip, AdaptiveClip):
        return (
            f"{start} at most the clip norm of the step in L2 norm, and the count of gradients within it by ½; both "
            "are one release, and the next clip norm is computed from it alone"
        )
    return f"{start} {bound} in {norm} norm"


if TYPE_CHECKING:
    from dprecipe.mechanisms.dpsgd import account

    _: Account[Dpsgd] = account
