"""The profile of a tuned run: the least of its bounds, at every ε."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dprecipe.privacy import conversion
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.hockey_stick import SLACK, HockeyStick, pair_losses
from dprecipe.privacy.loss import LossPair
from dprecipe.privacy.profile import Answer, PositionRow
from dprecipe.privacy.tuning.base import ORDERS, Curves, base_curves, selected_curve
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns, RunDistribution
from dprecipe.privacy.tuning.selection import (
    best_of_runs,
    least_epsilon,
    second_term,
    simple_epsilon,
)

_RENYI_KNOTS = 400


@dataclass(frozen=True, slots=True)
class SelectedProfile:
    """The profile δ(ε) of releasing the best of `runs` runs, each with the charges `base` (`privacy.profile.Profile`).

    Formal guarantee: the release is (ε, δ)-DP under `relation` for every pair that any method returns, if the number of
    runs is drawn before the first one, independently of everything, and stays secret (unless fixed); the runs are
    independent of each other given the data, each with its hyper-parameters drawn from one public distribution;
    runs are ordered by what they release and public data alone; no run ends early for its score; and nothing of the
    losers is released.

    | bound | |
    |---|---|
    | `composition` | of all runs, had all been released; of a fixed number |
    | `rdp` | Rényi curves (`base.selected_curve`) |
    | `simple` | the profile in closed form; of a truncated negative binomial number |
    | `full` | the profile (`selection`) |

    """

    base: tuple[Charge, ...]
    runs: RunDistribution
    asked: Neighbouring

    @property
    def relation(self) -> Neighbouring:
        return self.asked

    def epsilon(self, delta: float) -> Answer:
        """Returns ε at δ, 0 < δ < 1, by the least of the bounds.

        Raises:
            ValueError: δ outside (0, 1).
        """
        epsilons = self.epsilon_by_bound(delta)
        name = min(epsilons, key=lambda bound: epsilons[bound])
        return Answer(epsilons[name], f"selected_{name}")

    def delta(self, epsilon: float) -> Answer:
        """Returns δ at ε >= 0, by the least of the bounds; at most 1.

        Raises:
            ValueError: ε negative or NaN.
        """
        deltas = self.delta_by_bound(epsilon)
        name = min(deltas, key=lambda bound: deltas[bound])
        return Answer(deltas[name], f"selected_{name}")

    def renyi_epsilon(self, delta: float) -> float:
        curve = selected_curve(self.base, self.runs, ORDERS, self.asked)
        return conversion.epsilon(ORDERS, curve, delta).value

    def renyi_delta(self, epsilon: float) -> float:
        curve = selected_curve(self.base, self.runs, ORDERS, self.asked)
        return conversion.delta(ORDERS, curve, epsilon).value

    def mu(self) -> float | None:
        """Returns None: no single μ is known."""
        return None

    @property
    def bounds(self) -> tuple[str, ...]:
        """The names of the available bounds, the simplest first."""
        own = {FixedRuns: ("composition", "rdp"), NegativeBinomialRuns: ("rdp", "simple")}
        return (*own.get(type(self.runs), ("rdp",)), "full")

    def epsilon_by_bound(self, delta: float) -> Mapping[str, float]:
        return {bound: self.bounded_epsilon(bound, delta) for bound in self.bounds}

    def delta_by_bound(self, epsilon: float) -> Mapping[str, float]:
        return {bound: self.bounded_delta(bound, epsilon) for bound in self.bounds}

    def bounded_epsilon(self, bound: str, delta: float) -> float:
        """Returns ε at δ, 0 < δ < 1, by one of `bounds`.

        Raises:
            ValueError: δ outside (0, 1), or no such bound.
        """
        if not 0 < delta < 1:
            raise ValueError(f"expected 0 < delta < 1, got {delta}")
        if bound == "rdp":
            return self.renyi_epsilon(delta)
        if bound == "simple" and isinstance(self.runs, NegativeBinomialRuns):
            return simple_epsilon(base_curves(self.base, self.asked), self.runs, delta).epsilon
        return max(least_epsilon(curve, delta) for curve in self._curves(bound)) * (1 + SLACK)

    def bounded_delta(self, bound: str, epsilon: float) -> float:
        """Returns δ at ε >= 0 by one of `bounds`; at most 1.

        Raises:
            ValueError: ε negative or NaN, or no such bound.
        """
        if not epsilon >= 0:
            raise ValueError(f"expected epsilon >= 0, got {epsilon}")
        if bound == "rdp":
            return self.renyi_delta(epsilon)
        return max(float(curve.at(np.array(float(epsilon)))) for curve in self._curves(bound))

    def _curves(self, bound: str) -> Curves:
        if bound == "full":
            return full_curves(self.base, self.runs, self.asked)
        if bound == "simple" and isinstance(self.runs, NegativeBinomialRuns):
            return _simple_curves(base_curves(self.base, self.asked), self.runs)
        if bound == "composition" and isinstance(self.runs, FixedRuns):
            return base_curves(repeat_charges(self.base, self.runs.count), self.asked)
        raise ValueError(f"no bound {bound!r} of this number of runs; there are {', '.join(self.bounds)}")

    def by_position(self, delta: float, epsilon: float, max_rows: int, fewer: int) -> tuple[PositionRow, ...]:
        """Returns nothing: the bounds are those of the worst record."""
        return ()


def repeat_charges(base: tuple[Charge, ...], count: int) -> tuple[Charge, ...]:
    """Returns the charges of `count` runs, all of them released."""
    return tuple(Charge(charge.event, charge.count * count) for charge in base)


@lru_cache(maxsize=64)
def full_curves(base: tuple[Charge, ...], runs: RunDistribution, neighbouring: Neighbouring) -> Curves:
    """Returns δ(ε) of the best of the runs at ε >= 0 by `selection.best_of_runs`, of removing a unit and of adding
    one."""
    removed, added = base_curves(base, neighbouring)
    first = best_of_runs(removed, added, runs)
    return (first, first) if removed is added else (first, best_of_runs(added, removed, runs))


def _simple_curves(curves: Curves, runs: NegativeBinomialRuns) -> Curves:
    """Returns the bound δ_A(ε) <= E[K] δ(ε - (1+η) e2)."""
    second = max(second_term(curve, runs) for curve in curves)
    first, other = (
        HockeyStick(
            curve.epsilons + (1 + runs.shape) * second * (1 + SLACK),
            np.minimum(runs.mean * curve.deltas * (1 + 1e-9), 1.0),
        )
        if second < math.inf
        else HockeyStick(np.array([-1.0, 1.0]), np.ones(2))
        for curve in curves
    )
    return first, other


@lru_cache(maxsize=64)
def selected_curves(base: tuple[Charge, ...], runs: RunDistribution, neighbouring: Neighbouring) -> Curves:
    """Returns δ(ε) of the best of the runs at ε >= 0, of removing a unit and of adding one: the least of all bounds."""
    profile = SelectedProfile(base, runs, neighbouring)
    full = full_curves(base, runs, neighbouring)
    reach = max(float(curve.epsilons[-1]) for curve in full)
    rdp_A = selected_curve(base, runs, ORDERS, neighbouring)
    others: list[Curves] = []
    if np.isfinite(rdp_A).any():
        knots = np.linspace(0.0, reach, _RENYI_KNOTS)
        values = np.array([conversion.delta(ORDERS, rdp_A, float(e)).value for e in knots])
        others.append((HockeyStick(knots, values),) * 2)
    others += [profile._curves(bound) for bound in profile.bounds if bound in ("composition", "simple")]
    results = []
    for direction, curve in enumerate(full):
        e_N = np.union1d(curve.epsilons, np.linspace(0.0, reach, _RENYI_KNOTS)) if others else curve.epsilons
        least = np.minimum.reduce([curve.at(e_N), *(other[direction].at(e_N) for other in others)])
        results.append(HockeyStick(e_N, np.minimum.accumulate(least)))
    return results[0], results[1]


def selected_losses(
    base: tuple[Charge, ...], runs: RunDistribution, neighbouring: Neighbouring, step: float, tail: float
) -> LossPair:
    """Returns a pair of privacy-loss distributions on the grid of `step` whose δ(ε) are no less than the release's, so
    that it composes with all others; at most `tail`, or 1e-18, is charged to infinity beyond what the bounds themselves
    charge.

    Guarantees: each dominates the release. A hockey-stick curve is convex in exp(ε): it lies below the greatest convex
    function that is below points above it, and that is the curve of a pair.

    Stages before the runs. Let A be what was released before the first run (constants of preprocessing, each drawn
    once), and B_y the best of the runs where all of them start from A = y. Then (A, B_A) costs no more than the product
    of A's pairs with these:

    1. For every y a run after y has the events `base`, which do not depend on y: its δ(ε) is at most that of `base`,
       by the adaptive composition of dominating pairs that `base` is accounted by.
    2. The number of runs has the same distribution for every y, and is independent of A; given y, the runs are
       independent and alike. So the bounds of the best of them, functions of one run's δ(ε) and of that distribution
       alone, hold for every y, and the pair above dominates B_y for every y.
    3. With (P, P') dominating A, and (S, S') dominating B_y for every y, (P x S, P' x S') dominates (A, B_A): Zhu, Dong
       & Wang 2022, Theorem 10. Removing and adding a unit are composed each by itself; ε is the larger of both.

    The same holds by Rényi curves: D_α((A, B_A)) <= D_α(A) + max over y of D_α(B_y) (Mironov 2017, Proposition 1).

    Point 2 fails where a stage is drawn again between two runs, or a run's values decide what a stage releases.

    Source: Zhu, Dong & Wang 2022, Lemma 20 (a curve's pair); Doroshenko et al. 2022.

    Raises:
        GridError: too many points.
    """
    removed, added = selected_curves(base, runs, neighbouring)
    first = pair_losses(removed, added, step, max(tail, 1e-18))
    return LossPair(first, None if removed is added else pair_losses(added, removed, step, max(tail, 1e-18)))
