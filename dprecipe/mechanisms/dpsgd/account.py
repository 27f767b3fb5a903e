"""DP-SGD's accounting: from a recipe's constants to the events of a run, with the free variable solved.

Guarantees: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Abadi et al. 2016, Algorithm 1; the accountants cite theirs in `dprecipe.privacy`.
"""

from __future__ import annotations

from typing import assert_never

from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms import solve
from dprecipe.mechanisms.contract import Facts, MechanismPlan
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.mechanisms.sampling import FullBatchSampling, Pace, PoissonSampling, ShuffleSampling
from dprecipe.planning.model import Assumption
from dprecipe.privacy.events import Charge, Event, Gaussian, PartitionedGaussian, PoissonGaussian

MULTIPLIER = "mechanism.noise.multiplier"

WHY_NO_BOUND = {
    "laplace": "L2-clipped gradients have no useful L1 bound",
    "student_t": "there is no bound for L2-clipped gradients",
    "cauchy": "there is no bound for L2-clipped gradients",
    "variance_gamma": "there is no bound for L2-clipped gradients",
    "sech": "there is no bound for L2-clipped gradients",
}


def check(spec: Dpsgd, facts: Facts) -> list[Finding]:
    """What makes this block impossible or unaccountable."""
    findings = _structure(spec, facts)
    if any(finding.is_error for finding in findings):
        return findings
    return [*findings, *solve.check(_problem(spec, facts))]


def plan(spec: Dpsgd, facts: Facts) -> MechanismPlan:
    """Solve the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or holds so much that it means nothing (P107).
    """
    problem = _problem(spec, facts)
    solution = solve.solve(problem)
    return MechanismPlan(
        events=solution.charges,
        settings={
            "clip_norm": spec.clip.norm,
            "noise_family": spec.noise.family,
            "noise_multiplier": solution.multiplier,
            "noise_std": solution.multiplier * spec.clip.norm,
            "scheme": spec.sampling.scheme,
            "sampling_rate": problem.pace.sampling_rate,
            "expected_lot": problem.pace.expected_lot,
        },
        solved=solution.solved,
        length=solution.length,
        sampling_rate=problem.pace.sampling_rate,
        released=("final weights",),
        assumptions=_assumptions(spec, facts),
    )


def _problem(spec: Dpsgd, facts: Facts) -> solve.Problem:
    multiplier = None if spec.noise.multiplier == "auto" else spec.noise.multiplier
    return solve.Problem(
        facts,
        Pace.of(spec.sampling, facts.size),
        lambda sigma, events: (Charge(_event(spec, facts, sigma), events),),
        multiplier,
        MULTIPLIER,
    )


def _event(spec: Dpsgd, facts: Facts, multiplier: float) -> Event:
    pace = Pace.of(spec.sampling, facts.size)
    match spec.sampling:
        case PoissonSampling(batch_size=batch_size):
            return PoissonGaussian(batch_size / facts.size, multiplier)
        case FullBatchSampling():
            return Gaussian(multiplier)
        case ShuffleSampling():
            return PartitionedGaussian(multiplier, pace.steps_per_event)
        case other:
            assert_never(other)


def _structure(spec: Dpsgd, facts: Facts) -> list[Finding]:
    findings = []
    family = spec.noise.family
    if family != "gaussian":
        findings.append(
            Finding(
                "P101",
                f"{family} noise can't be accounted for in dpsgd: {WHY_NO_BOUND[family]}",
                "set mechanism.noise.family to gaussian, or use mechanism.kind encoded",
                "mechanism.noise.family",
            )
        )
    unfit = solve.lots_that_fit(spec.sampling, facts)
    findings += unfit
    if spec.sampling.scheme == "shuffle" and not any(finding.code == "P105" for finding in unfit):
        findings.append(
            Finding(
                "P104",
                "shuffled lots are accounted without amplification by sampling: they need far more noise",
                "use scheme: poisson unless something else forces the order of the records",
                "mechanism.sampling.scheme",
                severity=Severity.WARNING,
            )
        )
    return findings


def _assumptions(spec: Dpsgd, facts: Facts) -> tuple[Assumption, ...]:
    before, after = solve.common_assumptions(spec.sampling, facts)
    return (
        *before,
        Assumption(
            "clipping",
            f"one {facts.unit} moves a sum of gradients by at most {spec.clip.norm:g} in L2 norm",
            "code",
        ),
        Assumption("noise", "Gaussian noise is added to the sum before anything is computed from it", "code"),
        *after,
    )
