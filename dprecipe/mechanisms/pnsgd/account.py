"""Accounts for projected noisy SGD: from a recipe's constants to the one event of a run, with the free variable solved.

A run is one event however many steps it takes, because only its last iterate is released. Its cost is the smallest of
several bounds (`theory.last_iterate`). They need the distance between neighbouring gradients and the contraction of a
step; `constants` proves both.

Guarantees: the event of `plan` spends at most the budget, by the accountant that the budget names.
Source: Asoodeh, Diaz and Calmon 2020, Algorithm 1 and Theorems 3 to 5; Feldman, Mironov, Talwar and Thakurta 2018.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.data.facts import feature_norm
from dprecipe.data.targets import ClassTarget
from dprecipe.faults import Finding
from dprecipe.mechanisms.pnsgd import rules
from dprecipe.mechanisms.pnsgd.descents import PnsgdRun, find_advice
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schema import Pnsgd
from dprecipe.models.schema import Location
from dprecipe.noise.schema import phases


def check(spec: Pnsgd, facts: Facts) -> list[Finding]:
    """Finds what makes this block impossible, or impossible to account."""
    findings = rules.check(spec, facts)
    if any(finding.is_error for finding in findings):
        return findings
    return [*findings, *PnsgdRun(spec, facts).check()]


def plan(spec: Pnsgd, facts: Facts) -> Planned[PnsgdPlan]:
    """Solves the free variable.

    Raises:
        PlanRefused: the plan exceeds the budget (P102, P106), or the budget does not limit it (P107).
    """
    run = PnsgdRun(spec, facts)
    multiplier, steps, solved = run.solve()
    stages = run.stages(multiplier, steps)
    event = run.problem.event(stages)
    bounds, winner = run.bounds(event)
    location = isinstance(facts.model, Location)
    planned = PnsgdPlan(
        descent=run.problem,
        stages=stages,
        phase_steps=run.phase_steps if isinstance(spec.noise, tuple) else None,
        constraint=spec.constraint,
        feature_norm=None if location else feature_norm(facts.data),
        bias=not location and getattr(facts.model, "bias", False),
        l2=getattr(facts.model, "l2", 0.0),
        bounds=bounds,
        winner=winner,
        checkpoint=spec.checkpoint,
        private_log=spec.private_log,
    )
    warnings = tuple(find_advice(spec, event, winner)) if solved or facts.known else ()
    return Planned(planned, solved, _assumptions(spec, facts), warnings)


def _assumptions(spec: Pnsgd, facts: Facts) -> tuple[Assumption, ...]:
    order = (
        "the order is drawn once, uniformly and independently of the data, and used in all passes"
        if spec.order == "permuted"
        else "every pass takes the records in the order of the file"
    )
    features = (
        Assumption("features", "features are clipped to the declared norm before they are used", "code"),
        Assumption("targets", "numeric targets are clipped to the declared range", "code"),
    )
    stop = Assumption("stop", "the number of steps is drawn uniformly before the first step", "code")
    return (
        Assumption("sampling", order, "code"),
        Assumption(
            "batches", "every step uses only the records of its batch, and divides by the public batch size", "code"
        ),
        *features[: 1 if _classes(facts) else 2],
        Assumption("convexity", "the loss is convex, with the stated smoothness and strong convexity", "test"),
        Assumption("projection", "every iterate is projected on the stated set, which is convex", "code"),
        Assumption("noise", f"{_first_family(spec)} noise is added to the mean gradient of every step", "code"),
        Assumption(
            "last_iterate", "only the last iterate leaves the run; no other does, nor anything computed from it", "code"
        ),
        *((stop,) if spec.stop == "random" else ()),
        Assumption(
            "restarts",
            "whether and when the run was interrupted and resumed does not depend on the records",
            "declaration",
        ),
        Assumption("size", f"the number of records, {facts.size}, is public", "declaration"),
        Assumption(
            "choices", "the recipe's constants were chosen without looking at the private records", "declaration"
        ),
        Assumption(
            "floating_point",
            "rounding of float64 noise and steps leaks nothing, and nobody measures timing: "
            "docs/explanation/accounting.md#what-is-assumed",
            "declaration",
        ),
    )


def _classes(facts: Facts) -> bool:
    return isinstance(data_facts(facts.data).target, ClassTarget)


def _first_family(spec: Pnsgd) -> str:
    return {"gaussian": "Gaussian", "laplace": "Laplace"}[phases(spec.noise)[0][1].family]


if TYPE_CHECKING:
    from dprecipe.mechanisms.pnsgd import account

    _: Account[Pnsgd] = account
