"""A warning where batches drawn at random would need less noise than a fixed order."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan, noise_left
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

SMALL = 2.0
"""The ε below which amplification by sampling saves more noise than correlation does."""
LEAST_LOSS = 1.05
"""The factor of the noise from which on the warning is given."""


def compare_with_poisson(plan: CorrelatedPlan, facts: Facts) -> Iterator[Finding]:
    """Warns of small budgets at which Poisson batches leave less noise in the iterates (P177)."""
    budget, cap = facts.budget, facts.cap
    if cap is None or cap >= SMALL:
        return
    from dprecipe.privacy import calibrate

    rate, steps = 1 / plan.steps_per_epoch, plan.length.steps
    try:
        multiplier = calibrate.noise_multiplier(
            lambda sigma: facts.release((Charge(PoissonGaussian(rate, sigma), steps),)),
            cap,
            budget.delta,
            Neighbouring(budget.neighbouring),
            budget.accountant,
        )
    except calibrate.CalibrationError:
        return
    poisson = multiplier * noise_left(0.0, steps)
    if plan.noise_in_iterates > LEAST_LOSS * poisson:
        yield Finding(
            "P177",
            f"at ε = {cap:g}, batches of the same size that are drawn at random leave less noise in the iterates: "
            f"{poisson:.3g} clip norms, this order {plan.noise_in_iterates:.3g}",
            "use mechanism.kind dpsgd with scheme: poisson, where records can be read in any order",
            "mechanism.sampling.scheme",
            severity=Severity.WARNING,
        )
