"""The number of canaries that an auditor names: fixed before the run, by what a sound program would show.

The m canaries are ranked by their scores. The k highest are named "in", the k lowest "out", and the rest are left
unnamed. Few names are right more often; with many, that rate is known more precisely. The bound that k yields for
scores N(±μ/2, 1), where μ is that of the Gaussian mechanism with the planned (ε, δ), is computed by Wilson's bound
instead of the exact one, which is close to it. Of all k that yield nearly as much as the best, the largest is taken: it
shows more of a fault, and with too few names even all of them right would not refute a claim. A suboptimal choice costs
power but not validity.

Source: Steinke, Nasr, Jagielski 2023, section 6; E. B. Wilson, JASA 22, 1927.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

from dprecipe.privacy import gdp

_NORMAL = NormalDist()
_STEP = 1.1
"""The ratio of two successive numbers that are tried."""
_NEARLY = 0.95
"""The share of the largest bound of ε that counts as nearly as much."""


@dataclass(frozen=True, slots=True)
class Naming:
    """The number of canaries named in, which is also the number named out; and how many of all these names would be
    right for a sound program."""

    each: int
    expected: int


@lru_cache(maxsize=16)
def choose_naming(canaries: int, epsilon: float, delta: float, confidence: float) -> Naming:
    """Returns the number of names for a run with this guarantee.

    `canaries` >= 2; `epsilon` > 0 and `delta` of the planned guarantee; `confidence` of the bound.
    """
    if not (canaries >= 2 and epsilon > 0 and 0 < delta < 1 and 0 < confidence < 1):
        raise ValueError(f"no names for {canaries} canaries, ε = {epsilon}, δ = {delta}, confidence {confidence}")
    mu, z = gdp.mu_for(epsilon, delta), _NORMAL.inv_cdf(max(0.5, confidence))
    bounds = {each: _lower_epsilon(_right_share(mu, each / canaries), 2 * each, z) for each in _tried(canaries)}
    best = max(bounds.values())
    each = max(each for each, bound in bounds.items() if bound >= (_NEARLY * best if best > 0 else best))
    return Naming(each, round(2 * each * _right_share(mu, each / canaries)))


def _tried(canaries: int) -> Iterator[int]:
    each = 1
    while each < canaries // 2:
        yield each
        each = max(each + 1, int(each * _STEP))
    yield canaries // 2


def _right_share(mu: float, share: float) -> float:
    """Returns the probability that a name is right, if the highest `share` <= 1/2 of scores N(±μ/2, 1) are named."""
    low, high = -40.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        tail = (_NORMAL.cdf(mu / 2 - middle) + _NORMAL.cdf(-mu / 2 - middle)) / 2
        low, high = (middle, high) if tail > share else (low, middle)
    return min(1.0, _NORMAL.cdf(mu / 2 - low) / (2 * share))


def _lower_epsilon(share: float, names: int, z: float) -> float:
    """Returns the ε at which names are right as often as Wilson's lower bound, if `share` of `names` names were
    right."""
    spread = z * math.sqrt(share * (1 - share) / names + (z / names) ** 2 / 4)
    right = (share + z * z / (2 * names) - spread) / (1 + z * z / names)
    return math.log(right) - math.log1p(-right) if right < 1 else math.inf
