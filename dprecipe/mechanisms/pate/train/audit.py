"""The audit of PATE: tests of its program that need no private record, nor a vote on one.

Depth `program`: synthetic units are dealt to teachers that read them and vote (`audit_teachers`); the real ballot puts
queries on synthetic votes, and each outcome is computed again from its noise and its ledger line (`audit_ballot`); the
exact cost of a query is enumerated (`audit_costs`). Depth `releases`: an attack tries to tell the answers to some votes
from the answers to the same votes with one moved (`audit_releases`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import noise
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.train.audit_ballot import examine_ballot, examine_frequencies
from dprecipe.mechanisms.pate.train.audit_costs import examine_costs
from dprecipe.mechanisms.pate.train.audit_releases import attack_releases
from dprecipe.mechanisms.pate.train.audit_teachers import examine_dealing, examine_teachers
from dprecipe.mechanisms.pate.train.program import lesson_of, teachers_of
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy import accountants
from dprecipe.privacy.audit.results import Correlation, Distance, Excess, TestEvidence, Variance
from dprecipe.progress import silence_progress
from dprecipe.training.audit.request import AuditEvidence, AuditFinding, AuditRequest
from dprecipe.training.program.program import device_of

Found = tuple[str, str, TestEvidence]

DRAWS = 60_000
"""Draws of noise tested for each event of the plan."""


def audit(plan: Plan, request: AuditRequest) -> AuditEvidence:
    """Returns the findings at the depths that the request names.

    Raises:
        RunFailed: the program refuses to run on synthetic records.
    """
    parts = []
    if request.asks("program"):
        with silence_progress():
            tests = tuple(AuditFinding("program", *found) for found in examine_program(plan, request))
        elsewhere = teachers_of(plan).votes is not None
        remarks = ("the votes come from a file: that each unit reached one teacher is declared, not tested",)
        parts.append(AuditEvidence(tests, remarks=remarks if elsewhere else ()))
    if request.asks("releases"):
        parts.append(attack_releases(plan, request))
    return AuditEvidence.joined(parts)


def examine_program(plan: Plan, request: AuditRequest) -> Iterator[Found]:
    """Yields the findings of depth `program`."""
    budget = plan.budget
    epsilon = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, budget.accountant)
    yield (
        "claimed_epsilon",
        "the charged events cost at most the claimed ε at the budget's δ",
        Excess(largest=min(epsilon, 1e300), allowed=plan.guarantee.epsilon * (1 + 1e-9)),
    )
    yield from _examine_noise(plan)
    teachers = teachers_of(plan)
    if teachers.votes is None:
        request.show("synthetic teachers", 0, 4)
        yield from examine_teachers(lesson_of(plan, teachers), device_of(plan.runtime.device))
        yield from examine_dealing(teachers.count)
    request.show("synthetic votes", 1, 4)
    yield from examine_ballot(plan)
    request.show("frequencies", 2, 4)
    yield from examine_frequencies(plan)
    request.show("exact costs", 3, 4)
    yield from examine_costs(plan)


def _examine_noise(plan: Plan) -> Iterator[Found]:
    """Tests the noise of every kind of event, drawn as the ballot draws it."""
    from scipy import special, stats

    events = dict.fromkeys(
        c.event for c in plan.as_plan_of(PatePlan).votes if isinstance(c.event, NoisyMax | NoisyThreshold)
    )
    root, earlier = Secrets(), None
    for number, event in enumerate(events):
        of = "check" if isinstance(event, NoisyThreshold) else "answer"
        name = f"{of}_{number + 1}"
        drawn = noise(event, root.stream("noise", number + 1), DRAWS) / event.noise_multiplier
        if isinstance(event, NoisyMax) and event.family == "laplace":
            drawn = -np.sign(drawn) * special.ndtri(np.exp(-np.abs(drawn)) / 2)
        yield (
            f"noise_scale_{name}",
            f"the noise of a {of} has the scale that its event claims",
            Variance(sum_squares=float(np.square(drawn).sum()), degrees=len(drawn)),
        )
        yield (
            f"noise_distribution_{name}",
            f"the noise of a {of} has the distribution that its event claims",
            Distance(statistic=float(stats.kstest(drawn, "norm").statistic), sample=len(drawn)),
        )
        product = float(drawn[0::2] @ drawn[1::2])
        yield (
            f"noise_independent_{name}",
            f"the noise of a {of} is independent from class to class and from query to query",
            Correlation(sum_products=product, pairs=len(drawn) // 2),
        )
        if earlier is not None:
            yield (
                f"noise_streams_{name}",
                f"the noise of a {of} is independent of that of the draw before",
                Correlation(sum_products=float(earlier @ drawn), pairs=len(drawn)),
            )
        earlier = drawn
