"""Publishing a data-dependent privacy cost: noise scaled to smooth sensitivity, and a bound from what is published.

F(D), the sum of `votes.bound_rdp` over a list of queries fixed in advance, is private. Published are

    F~ = F + SS s₃ Z                        (Gaussian noise, scaled to the smooth sensitivity SS)
    μ~ = log SS + β s_l (Z' + z)            (log SS moves by β at most; z = Φ⁻¹(1 - δ')),

and from these alone, whoever reads them: with probability at least 1 - 2δ',

    F(D) <= F~ + z s₃ exp(μ~).

The list is that of the plan: where a run may stop early on its own answers, what was not asked counts as well, for then
the run is post-processing of the full one. α, β, s₃, s_l and δ' must not depend on the votes, or the release is void.
No noise is drawn here.

Notation: α order, β smoothness, s₃ and s_l multipliers of the noise of the value and of log SS, δ' failure of either.

Sources: Nissim, Raskhodnikova & Smith 2007; Papernot et al. 2018, Appendix B, whose cost of the mechanism (Theorem 23)
is too small for αβ beyond about 0.3; exact here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from dprecipe.contract.facts import Published
from dprecipe.privacy import conversion
from dprecipe.privacy.divergence import Array


@dataclass(frozen=True, slots=True)
class Sanitiser:
    """The constants of a release, all public and chosen without the votes.

    `order` α, `smoothness` β, `value_multiplier` s₃, `sensitivity_multiplier` s_l, `failure` δ'.

    Raises:
        ValueError: out of range, or β so large that the cost at α is infinite, α <= (α-1) exp(2β).
    """

    order: float
    smoothness: float
    value_multiplier: float
    sensitivity_multiplier: float
    failure: float

    def __post_init__(self) -> None:
        if not 1.01 <= self.order < math.inf:
            raise ValueError(f"expected 1.01 <= order < infinity, got {self.order}")
        positive = (self.smoothness, self.value_multiplier, self.sensitivity_multiplier)
        if not all(value > 0 and math.isfinite(value) for value in positive):
            raise ValueError(f"expected finite smoothness and multipliers > 0, got {positive}")
        if not 0 < self.failure < 0.5:
            raise ValueError(f"expected 0 < failure < 1/2, got {self.failure}")
        if not math.isfinite(float(self.cost([self.order])[0])):
            max_smoothness = math.log(self.order / (self.order - 1)) / 2
            raise ValueError(f"expected smoothness < {max_smoothness:.6g} at order {self.order}, got {self.smoothness}")

    def cost(self, orders: Sequence[float]) -> Array:
        """r(α) of publishing both numbers, for every pair of neighbours: (A,); infinity beyond some order."""
        orders_A = np.asarray(orders, dtype=np.float64)
        return gnss_rdp(orders, self.smoothness, self.value_multiplier) + orders_A / (
            2 * self.sensitivity_multiplier**2
        )

    @property
    def quantile(self) -> float:
        """z: a standard normal is above it with probability δ'."""
        return -float(special.ndtri(self.failure))


@dataclass(frozen=True, slots=True)
class Sanitised(Published):
    """The published values: F~ and μ~."""

    value: float
    log_sensitivity: float


@dataclass(frozen=True, slots=True)
class UpperBound:
    """A reader's conclusion: at the D of this run, the run and this release cost `epsilon` at `delta`.

    `total` bounds F, `renyi` is that and the cost of the release, at `order`; `delta` is δ + 2δ'. Data-dependent: it is
    a statement about this D, which holds with probability 1 - 2δ' over the noise of the release.
    """

    order: float
    total: float
    renyi: float
    epsilon: float
    epsilon_classic: float
    delta: float


def gnss_rdp(orders: Sequence[float], smoothness: float, multiplier: float) -> Array:
    """r(α) of F + SS s₃ Z: (A,), exact; infinity where v = α - (α-1) exp(2β) <= 0.

        α / (2 s₃² v) - β - log(v) / (2 (α-1))

    Guarantees: the largest D_α over all pairs of values and scales that SS allows, |F - F'| <= min(SS, SS') and
    |log SS - log SS'| <= β, in either direction. Reached by the wider against the narrower, as far apart as allowed.
    Source: the divergence of two normal distributions (Gil, Alajaji & Linder 2013, Table 2): with SS = exp(t) SS' both
    its parts grow with t in [0, β], and at -t they are smaller.
    """
    orders_A = np.asarray(orders, dtype=np.float64)
    reduction_A = (orders_A - 1) * math.expm1(2 * smoothness)
    finite_A = reduction_A < 1
    log_v_A = np.log1p(-np.where(finite_A, reduction_A, 0.0))
    cost_A = orders_A * np.exp(-log_v_A) / (2 * multiplier**2) - smoothness - log_v_A / (2 * (orders_A - 1))
    return np.where(finite_A, cost_A, np.inf)


_MAX_SMOOTHNESS = 300.0
"""Beyond it any order has an infinite cost, and powers overflow."""


def cost_curve(orders: Sequence[float], smoothness: float, multiplier: float, sensitivity_multiplier: float) -> Array:
    """r(α) of the noisy value and of the noisy logarithm of its smooth sensitivity together: (A,)."""
    value_A = gnss_rdp(orders, min(smoothness, _MAX_SMOOTHNESS), multiplier)
    return value_A + np.asarray(orders) / (2 * sensitivity_multiplier**2)


def release_cost(
    value: float, log_smooth: float, sanitiser: Sanitiser, value_noise: float, sensitivity_noise: float
) -> Sanitised:
    """F~ and μ~ from F, log SS and two independent standard normal numbers, fresh and secret.

    Guarantees: `sanitiser.cost(orders)` bounds D_α between neighbours, in both directions.
    """
    spread = sanitiser.smoothness * sanitiser.sensitivity_multiplier
    return Sanitised(
        value=value + math.exp(log_smooth) * sanitiser.value_multiplier * value_noise,
        log_sensitivity=log_smooth + spread * (sensitivity_noise + sanitiser.quantile),
    )


def upper_bound(published: Sanitised, sanitiser: Sanitiser, delta: float, independent: float = math.inf) -> UpperBound:
    """ε from the published numbers alone, at δ + 2δ'; `independent` is a public bound of F that holds for all votes.

    Raises:
        ValueError: δ outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    width = sanitiser.quantile * sanitiser.value_multiplier * math.exp(min(published.log_sensitivity, 700.0))
    total = min(max(published.value + width, 0.0), independent)
    renyi = total + float(sanitiser.cost([sanitiser.order])[0])
    orders = [sanitiser.order]
    return UpperBound(
        order=sanitiser.order,
        total=total,
        renyi=renyi,
        epsilon=conversion.epsilon(orders, np.array([renyi]), delta).value,
        epsilon_classic=conversion.epsilon(orders, np.array([renyi]), delta, "classic").value,
        delta=delta + 2 * sanitiser.failure,
    )
