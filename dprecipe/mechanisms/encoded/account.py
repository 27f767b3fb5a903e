"""Accounts for gradient encoding: from a recipe's constants to the events of a run, with the free variable solved.

*Guarantees*: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Nasr, Shokri and Houmansadr 2020, Lemmas 4 and 5, Theorem 1, with the errata of docs/explanation/encoding.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.encoded.phases import EncodedRun
from dprecipe.mechanisms.encoded.plan import EncodedPlan
from dprecipe.mechanisms.encoded.rules import RULES, check_layer_sizes
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook, GradientCodebook
from dprecipe.noisy_sum import solve


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
