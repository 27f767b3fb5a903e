"""Rules for the batches of DP-SGD: they fit the data, have an account, and don't waste noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.dpsgd.phases import DpsgdRun
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.sampling import FixedSizeSampling, PermutedSampling, find_cap
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.privacy.workload import summarise_charges, uncap_charges

NEED_NUMBER = ("truncated_poisson", "fixed_size", "permuted")
"""Schemes that are accounted for a known number of units; so are dealt batches with a largest size."""
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
    events = problem.charges(problem.multiplier, problem.events)
    ours, poisson = _find_epsilons(facts, events, [_as_poisson(charge) for charge in events])
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
    cap, mean = find_cap(spec.sampling), run.pace.expected_batch
    if cap is not None and cap[1] < mean:
        key, value = cap
        findings.append(
            Finding(
                "P117",
                f"{key} {value:,} is below batch_size {mean:,.6g}: nearly every batch would be cut",
                f"set {key} to at least {_find_safe_cap(mean)}",
                f"mechanism.sampling.{key}",
            )
        )
    yield from findings
    if spec.sampling.scheme == "dealt" and not any(finding.code == "P105" for finding in findings):
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


def check_cap(run: DpsgdRun) -> Iterator[Finding]:
    """Warns of a largest batch that batches reach so often that it costs privacy (P117)."""
    cap, mean = find_cap(run.spec.sampling), run.pace.expected_batch
    if cap is None or not _costs_privacy(run, cap[1]):
        return
    key, value = cap
    free = "use scheme: poisson" if key == "max_batch_size" else "remove batch_limit"
    yield Finding(
        "P117",
        f"batches of {mean:,.6g} on average reach {value:,} so often that the cap costs privacy: in a full batch one "
        f"unit displaces another{_compare_with_uncapped(run)}",
        f"raise {key} to {_find_safe_cap(mean)} or more; or {free}, with runtime.physical_batch for the memory",
        f"mechanism.sampling.{key}",
        severity=Severity.WARNING,
    )


def _costs_privacy(run: DpsgdRun, cap: int) -> bool:
    """Returns True if full batches are not rare; where a unit is zeroed out, if they are not too rare to matter: it is
    then removed and another added."""
    if cap < run.pace.expected_batch + 4 * math.sqrt(run.pace.expected_batch):
        return True
    events, budget = run.problem.events, run.facts.budget
    if events is None or budget.neighbouring != "zero_out_one":
        return False
    charges = run.charges(run.problem.multiplier or 1.0, events)
    return summarise_charges(charges, Neighbouring.ZERO_OUT_ONE).ever_full >= budget.delta


def _find_safe_cap(mean: float) -> int:
    """Returns a size that batches of this size on average practically never reach."""
    return math.ceil(mean + 8 * math.sqrt(mean))


def _compare_with_uncapped(run: DpsgdRun) -> str:
    """Returns ε with the cap and without it at the recipe's noise; nothing where it is to be solved."""
    problem = run.problem
    if problem.multiplier is None or problem.events is None:
        return ""
    charges = problem.charges(problem.multiplier, problem.events)
    ours, free = _find_epsilons(run.facts, charges, uncap_charges(charges))
    return f": ε = {ours:.4g}, without it {free:.4g}"


def _find_epsilons(facts: Facts, *several: Iterable[Charge]) -> list[float]:
    """Returns ε of each list of charges, at the recipe's δ."""
    from dprecipe.privacy import accountants

    budget = facts.budget
    relation = Neighbouring(budget.neighbouring)
    return [accountants.epsilon(charges, budget.delta, relation, budget.accountant) for charges in several]


def check_hidden_size(spec: Dpsgd, facts: Facts) -> Iterator[Finding]:
    """Refuses schemes that are accounted for a known number of training units, where that number is not public."""
    scheme: str = spec.sampling.scheme
    if scheme == "dealt" and find_cap(spec.sampling) is not None:
        path, what, change = "batch_limit", "batch_limit", "remove mechanism.sampling.batch_limit"
    elif scheme in NEED_NUMBER:
        path, what = "scheme", scheme
        change = "set mechanism.sampling.scheme to poisson (and remove max_batch_size)"
    else:
        return
    if facts.data.hides_size:
        yield Finding(
            "P127",
            f"{what} is accounted for a known number of units, and data.size declares a bound",
            f"{change}, or write the number of units as data.size, if it may be public",
            f"mechanism.sampling.{path}",
        )
    elif facts.data.split is not None:
        yield Finding(
            "P128",
            f"{what} is accounted for a known number of training units, and data.test.split leaves a number that "
            "depends on them",
            f"{change}, or write the two parts to files of their own",
            f"mechanism.sampling.{path}",
        )
