"""Planning of a tuned run: from a total budget to the cost of one run, and to its noise or length; never over the
budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dprecipe.privacy import calibrate, gdp, rounding
from dprecipe.privacy.accountants import epsilon_answer
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.privacy.tuning.events import SelectedBest
from dprecipe.privacy.tuning.profile import SelectedProfile
from dprecipe.privacy.tuning.runs import RunDistribution

_PRECISION = 1e-6


@dataclass(frozen=True, slots=True)
class BaseBudget:
    """The budget of one run: ε at the total's δ, and μ of the Gaussian mechanism with that cost."""

    epsilon: float
    mu: float


def base_budget(epsilon: float, delta: float, runs: RunDistribution, bound: str | None = None) -> BaseBudget:
    """Returns the largest ε at δ of one run such that releasing the best of `runs` costs at most `epsilon` at δ, if one
    run has the profile of a Gaussian mechanism, as long runs nearly do; rounded down. `bound`: uses only this bound of
    `SelectedProfile.epsilon_by_bound`, for comparison.

    Guarantees: for a Gaussian mechanism of μ = `result.mu`, (`epsilon`, `delta`)-DP.

    Raises:
        ValueError: ε or δ out of range, or no such bound.
    """
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    if not 0 < epsilon < 100:
        raise ValueError(f"expected 0 < epsilon < 100, got {epsilon}")

    def fits(mu: float) -> bool:
        return allows_run(epsilon, delta, runs, mu, bound)

    high = gdp.mu_for(epsilon, delta)  # what a single run may cost
    low = high / 2
    while not fits(low):
        low, high = low / 2, low
        if low < 1e-9:
            raise ValueError(f"no run is private enough for epsilon {epsilon} at delta {delta}")
    while high - low > _PRECISION * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    mu = rounding.round_down(low)
    return BaseBudget(rounding.round_down(gdp.epsilon(mu, delta)), mu)


def allows_run(epsilon: float, delta: float, runs: RunDistribution, mu: float, bound: str | None = None) -> bool:
    """Returns True if releasing the best of `runs` runs, each a Gaussian mechanism with μ > 0, costs at most `epsilon`
    at δ: by one bound, or by any. Simple bounds are tried first, slow ones only if these fail.

    Raises:
        ValueError: ε or δ out of range, or no such bound.
    """
    profile = _profile_of(mu, runs)
    bounds = profile.bounds if bound is None else (bound,)
    return any(profile.bounded_epsilon(name, delta) <= epsilon for name in bounds)


def total_epsilon(mu: float, delta: float, runs: RunDistribution) -> float:
    """Returns ε at δ of releasing the best of `runs` runs, each a Gaussian mechanism of μ > 0.

    Raises:
        ValueError: δ out of range.
    """
    return _profile_of(mu, runs).epsilon(delta).value


def _profile_of(mu: float, runs: RunDistribution) -> SelectedProfile:
    return SelectedProfile((Charge(Gaussian(1 / mu), 1),), runs, Neighbouring.ADD_OR_REMOVE_ONE)


def select_best(base: Sequence[Charge], distribution: str, mean: float, shape: float | None = None) -> Charge:
    """Returns the charge of one tuned run, each run of which is charged `base`.

    Raises:
        ValueError: as `SelectedBest`.
    """
    return Charge(SelectedBest(distribution, float(mean), shape, tuple(base)), 1)


def solve_length(
    make: Callable[[int], Sequence[Charge]],
    selection: tuple[str, float, float | None],
    budget: tuple[float, float],
    neighbouring: Neighbouring,
    accountant: str = "pld",
    others: Sequence[Charge] = (),
    most: int = calibrate.MAX_EVENTS,
) -> int:
    """Returns the most steps n <= `most` such that the best of runs of `make(n)`, together with `others`, costs at most
    ε at δ; 0 if not even one step fits. The cost of `make(n)` must rise with n.

    `selection`: (distribution, mean, shape) of the number of runs; `budget`: (ε, δ).

    Guarantees: the cost of the result, rounded up to six digits, is at most ε, unless it is 0; that of one step more
    (1e-4 of the result more, above 10,000) is not, unless it is `most`.

    Raises:
        ValueError: a value out of range, unknown accountant.
    """
    epsilon, delta = budget
    if not epsilon > 0:
        raise ValueError(f"expected epsilon > 0, got {epsilon}")

    def fits(count: int) -> bool:
        charges = [*others, select_best(make(count), *selection)]
        return rounding.round_up(epsilon_answer(charges, delta, neighbouring, accountant).value) <= epsilon

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 4 * high
    high = min(high, most + 1)
    while high - low > max(1, low // 10_000):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
