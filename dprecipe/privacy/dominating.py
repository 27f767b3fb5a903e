"""One number for a whole profile: the least μ whose Gaussian mechanism is nowhere better protected against.

Source: Gomez et al. 2025, "(ε, δ) considered harmful: best practices for reporting differential privacy
guarantees"; Dong, Roth & Su 2022, Corollary 2.13.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from dprecipe.privacy import gdp, rounding
from dprecipe.privacy.accountants import epsilon_answer, profile
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import workload

_POINTS = 120


@dataclass(frozen=True, slots=True)
class GaussianBound:
    """G_μ's δ(ε) is at least the charges' δ(ε) for `from_epsilon` <= ε <= `to_epsilon`.

    `exact`: the charges *are* a μ-Gaussian mechanism, for every ε.
    """

    mu: float
    from_epsilon: float
    to_epsilon: float
    exact: bool


def gdp_mu(
    charges: Iterable[Charge], neighbouring: Neighbouring, highest: float = 1e-2, lowest: float = 1e-9
) -> GaussianBound | None:
    """The best Gaussian-DP bound over the ε at which the charges' δ lies between `lowest` and `highest`.

    μ is rounded up to four digits. None where no profile could be computed.

    Guarantees: on the whole stated interval of ε, not only at grid points, δ(ε) <= G_μ's δ(ε): between two
    points the profile is below its chord in exp(ε) (it is convex there), and the tangents of G_μ at both
    points, which lie below G_μ (it is convex too), meet above that chord.

    Raises:
        ValueError: not 0 < lowest < highest < 1.
    """
    if not 0 < lowest < highest < 1:
        raise ValueError(f"expected 0 < lowest < highest < 1, got {lowest} and {highest}")
    charges = tuple(charges)
    work = workload(charges, neighbouring)
    if not work.sampled:
        return GaussianBound(rounding.up(work.mu * (1 + 1e-12), 4), 0.0, math.inf, True)
    start = epsilon_answer(charges, highest, neighbouring, "pld").value
    end = epsilon_answer(charges, lowest, neighbouring, "pld").value
    if not 0 <= start < end < math.inf:
        return None
    # equal steps of log δ are about equal steps of ε², as for a Gaussian's tail
    grid = [math.sqrt(start**2 + (end**2 - start**2) * i / _POINTS) for i in range(_POINTS + 1)]
    points = list(profile(charges, neighbouring, "pld", grid))
    if not all(d < 1 for _, d in points):
        return None
    mu = max(gdp.mu_for(e, d) for e, d in points)
    for _ in range(200):
        rounded = rounding.up(mu, 4)
        if all(_above(rounded, left, right) for left, right in itertools.pairwise(points)):
            return GaussianBound(rounded, start, end, False)
        mu *= 1 + 1e-4
    return None


def _above(mu: float, left: tuple[float, float], right: tuple[float, float]) -> bool:
    """Whether G_μ as a function of γ = exp(ε) certainly lies above the chord from `left` to `right`."""
    from scipy import special

    lines = []
    for e, d in (left, right):
        height = gdp.delta(mu, e) * (1 - 1e-11) - d  # of G_μ over the profile's point
        slope = -float(special.ndtr(-e / mu - mu / 2))
        lines.append((height, slope))
    if not (lines[0][0] >= 0 and lines[1][0] >= 0):
        return False
    width = math.exp(left[0]) * math.expm1(right[0] - left[0])
    chord = (right[1] - left[1]) / width
    (height_l, slope_l), (height_r, slope_r) = lines
    fall, rise = slope_l - chord, slope_r - chord  # of the tangents, seen from the chord
    if fall >= 0 or rise <= 0:
        return True
    # they meet at γ_left + t: height_l + fall t = height_r - rise (width - t)
    t = (height_r - rise * width - height_l) / (fall - rise)
    return height_l + fall * min(max(t, 0.0), width) >= 0
