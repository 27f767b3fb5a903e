"""A quick check of a budget with the standard library alone, so that most recipes are accepted without loading numpy.

It can only accept; what it does not accept goes to the accountants. Each event gives its own bound, or none
(`Event.screening_bound`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import relation_of_all

ORDERS = (*range(2, 33), 40, 48, 64, 96, 128)
MARGIN = 1e-9  # more than the rounding error of these sums


def surely_within(charges: Sequence[Charge], epsilon: float, delta: float, neighbouring: Neighbouring) -> bool:
    """Returns True if a Rényi bound at integer orders keeps the charges within (ε, δ); False means "not decided here".

    Guarantees: when true, the composition of the charges is (ε, δ)-DP.
    Source: Mironov, Talwar and Zhang 2019, section 3.3; Canonne, Kamath and Steinke 2020, Proposition 12.
    """
    relation = relation_of_all((charge.event for charge in charges), Neighbouring(neighbouring))
    bounds = [(charge.count, charge.event.screening_bound(relation)) for charge in charges]
    known = [(count, *bound) for count, bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return False
    return any(_epsilon(known, order, delta) <= epsilon * (1 - MARGIN) - MARGIN for order in ORDERS)


def keeps(charges: Sequence[Charge], epsilon: float, delta: float, neighbouring: Neighbouring, accountant: str) -> bool:
    """Returns True if the ε of the charges at δ, by `accountant`, is at most this.

    Looser bounds, which are faster, come first; "rdp_classic" is looser than them.
    """
    names: tuple[str, ...] = (accountant,)
    if accountant in ("pld", "rdp"):
        if surely_within(charges, epsilon, delta, neighbouring):
            return True
        names = tuple(dict.fromkeys(("rdp", accountant)))
    from dprecipe.privacy import accountants

    return any(accountants.epsilon(charges, delta, neighbouring, name) <= epsilon for name in names)


def _epsilon(known: Sequence[tuple[int, float, float]], order: int, delta: float) -> float:
    total = sum(count * _rdp(q, sigma, order) for count, q, sigma in known)
    return total + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def _rdp(q: float, sigma: float, order: int) -> float:
    """Returns the Rényi divergence, at a whole order, of the Gaussian at rate `q` and noise multiplier `sigma`."""
    if q == 1:
        return order / (2 * sigma**2)
    # log of the sum over k of C(order, k) (1-q)^(order-k) q^k exp(k (k-1) / 2 sigma^2), the largest term factored out
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
    # The sum is 1 plus next to nothing for small q: its error of a few 1e-15 a term is added.
    return (top + math.log(math.fsum(math.exp(term - top) for term in logs)) + 1e-14 * (order + abs(top))) / (order - 1)
