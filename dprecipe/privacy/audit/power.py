"""Power: the smallest fault that an audit of these sizes detects with probability 0.8, and the lower bound to expect
from a sound program. It bounds nothing.

It is computed from the sizes and the claim alone, never from the counts (except that a rate is compared with the claim
at the false-positive rate that was counted), for the attack that theory expects:

- μ of trials: a Gaussian pair, with the threshold at half the claimed μ.
- ε of trials: randomised response that reveals everything with probability δ. No mechanism shows more of its ε.
- ε of guesses: independent scores of a Gaussian pair that is (ε, δ)-DP; of a pure claim, randomised response.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.audit import counts
from dprecipe.privacy.audit.any_program import Curve, chance_on_curve, lower_epsilon_of_guesses
from dprecipe.privacy.audit.results import AttackTrials, Guesses
from dprecipe.privacy.rounding import round_down, round_up

PROBABILITY = 0.8
_MAX_TIMES = 64.0
"""The multiple of 1 + the claim up to which faults are searched for."""
_EVERY = 4
"""The step between the points of a claimed curve that are used: fewer are faster."""
_TAIL = 8.5
"""The number of standard deviations of a count that sums cover."""

Floats = NDArray[np.float64]


def smallest_fault(
    evidence: AttackTrials | Guesses,
    confidence: float,
    claimed: float,
    delta: float | None = None,
    curve: Curve | None = None,
) -> float | None:
    """Returns the smallest true value (of the evidence's measure) at which the claim is refuted with probability
    `PROBABILITY`, rounded up; None if no value is. `curve`: of the claim, for guesses."""
    if isinstance(evidence, Guesses):
        if curve is None:
            raise ValueError("guesses are compared with a curve, which is missing")
        return _smallest_of_guesses(evidence, confidence, claimed, delta or 0.0, curve)
    if evidence.form == "rate":
        return _smallest_rate(evidence, confidence, claimed)
    if evidence.form == "mu":
        accused = _accusation(evidence, confidence, claimed, counts.mu_of_rates, partial(_gaussian_rates, claimed / 2))
    else:
        loss = delta or 0.0
        bound = partial(counts.epsilon_of_rates, delta=loss)
        accused = _accusation(evidence, confidence, claimed, bound, partial(_response_rates, loss))
    return _smallest(claimed, accused)


def expected_lower(
    evidence: AttackTrials | Guesses, confidence: float, true: float, delta: float | None = None
) -> float:
    """Returns the lower bound for a program with this true value (μ or ε) if the counts are as expected, for the same
    attack as `smallest_fault`; rounded down.

    Raises:
        ValueError: the evidence is of a rate, which does not determine one program.
    """
    if isinstance(evidence, Guesses):
        parts = (evidence.named_in, evidence.named_out)
        right = sum(part * _share_right(true, delta or 0.0, part / evidence.canaries) for part in parts)
        expected = evidence.model_copy(update={"correct": round(right)})
        return round_down(lower_epsilon_of_guesses(expected, confidence, delta or 0.0, roughly=True))
    if evidence.form == "rate":
        raise ValueError("a rate does not determine one program")
    rates = _gaussian_rates(true / 2, true) if evidence.form == "mu" else _response_rates(delta or 0.0, true)
    t = counts.lower_rates(round(evidence.trials_in * rates[0]), evidence.trials_in, confidence)
    f = counts.upper_rates(round(evidence.trials_out * rates[1]), evidence.trials_out, confidence)
    bound = counts.mu_of_rates(t, f) if evidence.form == "mu" else counts.epsilon_of_rates(t, f, delta or 0.0)
    return round_down(float(bound))


def _accusation(
    trials: AttackTrials,
    confidence: float,
    claimed: float,
    bound: Callable[[Floats, Floats], Floats],
    rates: Callable[[float], tuple[float, float]],
) -> Callable[[float], float]:
    """Returns the probability that the bound exceeds the claim, as a function of the true value."""
    from scipy import special

    n_in, n_out = trials.trials_in, trials.trials_out

    @lru_cache(maxsize=1)
    def needed(low: int, high: int) -> Floats:
        upper_K = counts.upper_rates(np.arange(low, high + 1, dtype=np.float64), n_out, confidence)
        return _needed(upper_K, n_in, confidence, lambda t, f: bound(t, f) > claimed)

    def probability(value: float) -> float:
        rate_in, rate_out = rates(value)
        spread = _TAIL * math.sqrt(n_out * rate_out * (1 - rate_out)) + _TAIL**2
        low, high = max(0, math.floor(n_out * rate_out - spread)), min(n_out, math.ceil(n_out * rate_out + spread))
        out_K = np.arange(low, high + 1, dtype=np.float64)
        needed_K = needed(low, high)
        seen_K = special.betainc(np.maximum(needed_K, 1), np.maximum(n_in - needed_K + 1, 1), rate_in)
        seen_K = np.where(needed_K > n_in, 0.0, seen_K)
        return float(np.sum(_binomial(out_K, n_out, rate_out) * seen_K))

    return probability


def _needed(upper_K: Floats, trials: int, confidence: float, accuses: Callable[[Floats, Floats], Any]) -> Floats:
    """Returns the fewest positives with the canary, at least one, that accuse the program, for each upper bound of the
    false-positive rate; trials + 1 if none do."""
    low_K, high_K = np.zeros_like(upper_K), np.full_like(upper_K, trials + 1.0)
    while np.any(high_K - low_K > 1):
        middle_K = np.floor((low_K + high_K) / 2)
        enough_K = accuses(counts.lower_rates(middle_K, trials, confidence), upper_K)
        high_K, low_K = np.where(enough_K, middle_K, high_K), np.where(enough_K, low_K, middle_K)
    return high_K


def _smallest_rate(trials: AttackTrials, confidence: float, claimed: float) -> float | None:
    from scipy import special

    n = trials.trials_in
    needed = float(_needed(np.ones(1), n, confidence, lambda t, f: t > claimed)[0])
    if needed > n:
        return None
    rate = float(special.betaincinv(needed, n - needed + 1, PROBABILITY))
    return min(1.0, round_up(rate))


def _smallest_of_guesses(
    guesses: Guesses, confidence: float, claimed: float, delta: float, curve: Curve
) -> float | None:
    from scipy import special

    named = guesses.named_in + guesses.named_out
    low, high = 0, named + 1
    while high - low > 1:
        middle = (low + high) // 2
        tried = guesses.model_copy(update={"correct": middle})
        low, high = (low, middle) if chance_on_curve(tried, curve[::_EVERY]) < 1 - confidence else (middle, high)
    if high > named:
        return None
    needed = high

    def probability(epsilon: float) -> float:
        right_in, right_out = (
            _share_right(epsilon, delta, part / guesses.canaries) for part in (guesses.named_in, guesses.named_out)
        )
        in_K = np.arange(guesses.named_in + 1, dtype=np.float64)
        rest_K = needed - in_K
        others_K = np.where(
            rest_K <= 0,
            1.0,
            np.where(
                rest_K > guesses.named_out,
                0.0,
                special.betainc(np.maximum(rest_K, 1), np.maximum(guesses.named_out - rest_K + 1, 1), right_out),
            ),
        )
        return float(np.sum(_binomial(in_K, guesses.named_in, right_in) * others_K))

    return _smallest(claimed, probability)


def _share_right(epsilon: float, delta: float, named: float) -> float:
    """Returns the probability that a name is right, if this share of the canaries is named for the highest scores."""
    from scipy import special

    from dprecipe.privacy import gdp

    if delta == 0 or named == 0:
        return 1 / (1 + math.exp(-epsilon))
    mu = gdp.mu_for(epsilon, delta)
    low, high = -mu / 2 - 40.0, mu / 2 + 40.0
    for _ in range(100):
        middle = (low + high) / 2
        share = float(special.ndtr(mu / 2 - middle) + special.ndtr(-mu / 2 - middle)) / 2
        low, high = (middle, high) if share > named else (low, middle)
    right, wrong = float(special.ndtr(mu / 2 - low)), float(special.ndtr(-mu / 2 - low))
    return right / (right + wrong)


def _smallest(claimed: float, probability: Callable[[float], float]) -> float | None:
    low, high = claimed, _MAX_TIMES * (1 + claimed)
    if not probability(high) >= PROBABILITY:
        return None
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if probability(middle) >= PROBABILITY else (middle, high)
    return round_up(high)


def _gaussian_rates(threshold: float, mu: float) -> tuple[float, float]:
    from scipy import special

    return float(special.ndtr(mu - threshold)), float(special.ndtr(-threshold))


def _response_rates(delta: float, epsilon: float) -> tuple[float, float]:
    wrong = (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    return 1 - wrong, wrong


def _binomial(counts_K: Floats, trials: int, rate: float) -> Floats:
    from scipy import special

    with np.errstate(divide="ignore"):
        logs = special.gammaln(trials + 1) - special.gammaln(counts_K + 1) - special.gammaln(trials - counts_K + 1)
        logs = logs + special.xlogy(counts_K, rate) + special.xlog1py(trials - counts_K, -rate)
    masses: Floats = np.exp(logs)
    return masses
