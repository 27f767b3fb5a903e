"""How many canaries an auditor names: fixed before the run, by what a sound program would let him see.

The m canaries are ranked by their scores. The k highest are named "in", the k lowest "out", and nothing is said of the
rest. Few names are right more often; many tell more surely how often. What k shows of scores N(±μ/2, 1), with the μ
whose Gaussian privacy is the planned (ε, δ), is computed by Wilson's bound in the place of the exact one, which is near
it. Of all k that show nearly as much as the best one the largest is taken: of a fault it shows more, and of too few
names not even all that are right would refute a claim. A choice that is not the best costs power and no validity.

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
"""Between two numbers that are tried."""
_NEARLY = 0.95
"""Of the largest bound of ε."""


@dataclass(frozen=True, slots=True)
class Naming:
    """How many canaries are named in, and as many out; and how many of all these names a sound program would make
    right."""

    each: int
    expected: int


@lru_cache(maxsize=16)
def choose_naming(canaries: int, epsilon: float, delta: float, confidence: float) -> Naming:
    """The number of names of a run of such a guarantee.

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
    """How often names are right, if the highest `share` <= 1/2 of scores that are N(±μ/2, 1) are named."""
    low, high = -40.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        tail = (_NORMAL.cdf(mu / 2 - middle) + _NORMAL.cdf(-mu / 2 - middle)) / 2
        low, high = (middle, high) if tail > share else (low, middle)
    return min(1.0, _NORMAL.cdf(mu / 2 - low) / (2 * share))


def _lower_epsilon(share: float, names: int, z: float) -> float:
    """The ε at which names are right as often as Wilson's lower bound says, if `share` of so many names were."""
    spread = z * math.sqrt(share * (1 - share) / names + (z / names) ** 2 / 4)
    right = (share + z * z / (2 * names) - spread) / (1 + z * z / names)
    return math.log(right) - math.log1p(-right) if right < 1 else math.inf
