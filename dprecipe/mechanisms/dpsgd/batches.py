"""Rules for the batches of DP-SGD: they fit the data, have an account, and don't waste noise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.dpsgd.phases import DpsgdRun
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.sampling import FixedSizeSampling, PermutedSampling, TruncatedPoissonSampling
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

NEED_NUMBER = ("truncated_poisson", "fixed_size", "permuted")
"""Schemes that are accounted for a known number of units."""
FEW_STEPS = 4
"""The steps of an epoch below which dealing units saves hardly any noise."""


def check_one_size(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Warns of what batches of a fixed size cost where a unit is added or removed (P118)."""
    sampling = spec.sampling
    if not isinstance(sampling, FixedSizeSampling | PermutedSampling):
        return
    if facts.budget.neighbouring != "add_or_remove_one" or sampling.batch_size >= facts.size:
        return
    yield Finding(
        "P118",
        "in a batch of a fixed size a unit that joins takes the place of another, so the noise protects as half of it "
        f"would{_compare_with_poisson(spec, facts)}",
        "use scheme: dealt or poisson, which need far less noise",
        "mechanism.sampling.scheme",
        severity=Severity.WARNING,
    )


def _compare_with_poisson(spec: Dpsgd, facts: Facts) -> str:
    """Returns ε of both schemes at the recipe's noise; nothing where it is to be solved."""
    problem = DpsgdRun(spec, facts).problem
    if problem.multiplier is None or problem.events is None:
        return ""
    from dprecipe.privacy import accountants

    events = problem.charges(problem.multiplier, problem.events)
    budget = facts.budget
    ours, poisson = (
        accountants.epsilon(charges, budget.delta, Neighbouring(budget.neighbouring), budget.accountant)
        for charges in (events, [_as_poisson(charge) for charge in events])
    )
    return f": ε = {ours:.4g}, with scheme poisson {poisson:.4g}"


def _as_poisson(charge: Charge) -> Charge:
    """Returns as many steps at the same rate, with batches that units join independently."""
    event = charge.event
    rate = event.participation / event.steps
    return Charge(PoissonGaussian(rate, event.multipliers[0]), charge.count * event.steps)


def check_batches(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Batches fit the data, and the run can be planned."""
    run = DpsgdRun(spec, facts)
    findings = list(solve.check_batch_sizes(run.pace, facts))
    sampling = spec.sampling
    if isinstance(sampling, TruncatedPoissonSampling) and sampling.max_batch_size < sampling.batch_size:
        findings.append(
            Finding(
                "P117",
                f"max_batch_size {sampling.max_batch_size:,} is below batch_size {sampling.batch_size:,}: nearly every "
                "batch would be cut",
                f"set max_batch_size to at least {math.ceil(sampling.batch_size + 8 * math.sqrt(sampling.batch_size))}",
                "mechanism.sampling.max_batch_size",
            )
        )
    yield from findings
    if sampling.scheme == "dealt" and not any(finding.code == "P105" for finding in findings):
        yield from _check_epoch(run)


def _check_epoch(run: DpsgdRun) -> Iterator[Finding]:
    steps = run.pace.steps_per_event
    if steps < FEW_STEPS:
        yield Finding(
            "P104",
            f"an epoch has {steps} step{'s' if steps > 1 else ''}: dealing units to so few saves hardly any noise",
            f"set mechanism.sampling.batch_size to at most {max(1, run.facts.size // FEW_STEPS)}, or use scheme: "
            "full_batch",
            "mechanism.sampling.batch_size",
            severity=Severity.WARNING,
        )


def check_hidden_size(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Refuses schemes that are accounted for a known number of training units, where that number is not public."""
    if facts.data.hides_size and spec.sampling.scheme in NEED_NUMBER:
        yield Finding(
            "P127",
            f"{spec.sampling.scheme} is accounted for a known number of units, and data.size declares a bound",
            "set mechanism.sampling.scheme to poisson (and remove max_batch_size), or write the number of units as "
            "data.size, if it may be public",
            "mechanism.sampling.scheme",
        )
    elif facts.data.split is not None and spec.sampling.scheme in NEED_NUMBER:
        yield Finding(
            "P128",
            f"{spec.sampling.scheme} is accounted for a known number of training units, and data.test.split leaves a "
            "number that depends on them",
            "set mechanism.sampling.scheme to poisson (and remove max_batch_size), or write the two parts to files of "
            "their own",
            "mechanism.sampling.scheme",
        )
