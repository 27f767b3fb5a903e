"""A first look at a budget, with the standard library alone: enough to accept most recipes without loading numpy.

It can only say "surely within"; whatever it does not accept goes to the accountants.

An encoded sum has a bound here where its noise is of one of the families of `_INFORMATION`: that of Gaussian noise with
the same Fisher information, whatever the dimension. For the other families nobody has proved it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import (
    HIDDEN,
    VOTES,
    Charge,
    Encoded,
    FixedSizeGaussian,
    NoisyMax,
    PoissonGaussian,
    PoissonLaplace,
    SanitisedCost,
    TruncatedPoissonGaussian,
)

ORDERS = (*range(2, 33), 40, 48, 64, 96, 128)
MARGIN = 1e-9  # rounding of these sums, and then some

_INFORMATION = {"laplace": 1.0, "cauchy": 0.5}
"""Fisher information at scale 1."""
_UNDECIDED = (SanitisedCost, TruncatedPoissonGaussian, FixedSizeGaussian)


def surely_within(charges: Sequence[Charge], epsilon: float, delta: float, neighbouring: Neighbouring) -> bool:
    """Whether a Rényi bound at integer orders keeps the charges within (ε, δ); `False` means "not decided here".

    Guarantees: when true, the composition of the charges is (ε, δ)-DP.
    Source: Mironov, Talwar and Zhang 2019, section 3.3; Canonne, Kamath and Steinke 2020, Proposition 12. Encoded
    sums: log M_k(τ) <= k(k-1)/2 I τ², for laplace (of whatever sums) because a pure ε costs ε²/2 in zero-concentrated
    privacy (Bun and Steinke 2016, Proposition 3.3), for cauchy from Legendre's equation (docs/encoding.md). Votes: a
    moved one changes two counts, so that the most votes cost twice what one count does, for either noise.
    """
    if any(isinstance(charge.event, _UNDECIDED) for charge in charges):
        return False
    votes = all(isinstance(charge.event, VOTES) for charge in charges)
    if neighbouring is Neighbouring.REPLACE_ONE and not votes:
        return False
    exchanged = any(isinstance(charge.event, Encoded) and charge.event.exchanged for charge in charges)
    if neighbouring is Neighbouring.ZERO_OUT_ONE and exchanged:
        return False  # accounted as a replacement
    if any(isinstance(charge.event, Encoded) and charge.event.family not in _INFORMATION for charge in charges):
        return False
    return any(_epsilon(charges, order, delta) <= epsilon * (1 - MARGIN) - MARGIN for order in ORDERS)


def _epsilon(charges: Sequence[Charge], order: int, delta: float) -> float:
    total = sum(charge.count * _rdp(charge, order) for charge in charges)
    return total + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _rdp(charge: Charge, order: int) -> float:
    event = charge.event
    if isinstance(event, HIDDEN):
        return math.inf
    sigma, q = event.noise_multiplier, 1.0
    if isinstance(event, NoisyMax):
        sigma /= math.sqrt(2)
    if isinstance(event, Encoded):
        norm = math.sqrt(math.fsum(count * bound * bound for bound, count in event.shifts))
        sigma /= math.sqrt(_INFORMATION[event.family]) * norm
    if isinstance(event, PoissonGaussian | PoissonLaplace | Encoded):
        q = event.sampling_rate
    if q == 1:
        return order / (2 * sigma**2)
    # log of sum over k of C(order, k) (1-q)^(order-k) q^k exp(k (k-1) / 2 sigma^2), the largest term taken out
    logs = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + k * math.log(q)
        + (order - k) * math.log1p(-q)
        + k * (k - 1) / (2 * sigma**2)
        for k in range(order + 1)
    ]
    top = max(logs)
    # The sum is 1 plus next to nothing for small q: its error of a few 1e-15 a term is added, not hoped away.
    return (top + math.log(math.fsum(math.exp(term - top) for term in logs)) + 1e-14 * (order + abs(top))) / (order - 1)
