"""Warnings where batches drawn at random from all units need no more noise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan, noise_left
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlation.strategies import Banded
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

SMALL = 2.0
"""The ε below which amplification by sampling saves more noise than a fixed order with correlation does."""
LEAST_LOSS = 1.05
"""The factor of the noise from which on the warning is given."""


def calibrate_poisson(facts: Facts, rate: float, steps: int) -> float:
    """Returns the noise multiplier of Poisson batches at the recipe's ε; infinite where none meets it."""
    from dprecipe.privacy import calibrate

    budget, cap = facts.budget, facts.cap
    if cap is None:
        return math.inf
    try:
        return calibrate.noise_multiplier(
            lambda sigma: facts.release((Charge(PoissonGaussian(rate, sigma), steps),)),
            cap,
            budget.delta,
            Neighbouring(budget.neighbouring),
            budget.accountant,
        )
    except calibrate.CalibrationError:
        return math.inf


def compare_with_poisson(plan: CorrelatedPlan, facts: Facts) -> Iterator[Finding]:
    """Warns where Poisson batches of the same size leave less noise in the iterates (P177), and of a single band, which
    is DP-SGD (P179)."""
    cap, strategy = facts.cap, plan.strategy
    banded = isinstance(strategy, Banded)
    if isinstance(strategy, Banded) and len(strategy.bands) == 1:
        yield Finding(
            "P179",
            "one band is noise that is independent over steps, with Poisson batches of all units",
            "use mechanism.kind dpsgd with scheme: poisson, which costs the same",
            "mechanism.noise.bands",
            severity=Severity.WARNING,
        )
        return
    if cap is None or (cap >= SMALL and not banded):
        return
    poisson = calibrate_poisson(facts, plan.expected_batch / plan.size, plan.length.steps)
    poisson *= noise_left(0.0, plan.length.steps)
    if plan.noise_in_iterates > LEAST_LOSS * poisson:
        yield Finding(
            "P177",
            f"at ε = {cap:g}, batches of the same size that are drawn at random leave less noise in the iterates: "
            f"{poisson:.3g} clip norms, {'these bands' if banded else 'this order'} {plan.noise_in_iterates:.3g}",
            _fewer_bands(facts)
            if banded
            else "use mechanism.kind dpsgd with scheme: poisson, where records can be read in any order",
            "mechanism.noise.bands" if banded else "mechanism.sampling.scheme",
            severity=Severity.WARNING,
        )


def _fewer_bands(facts: Facts) -> str:
    """Says how to have fewer bands: they are chosen for a length, so not where that is `auto`, too."""
    is_free = "auto" in (facts.training.epochs, facts.training.steps)
    return "lower mechanism.noise.bands" if is_free else "set mechanism.noise.bands to auto"
