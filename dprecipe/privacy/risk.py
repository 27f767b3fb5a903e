"""Bounds on attacks that follow from a guarantee δ(ε): what anyone can find out about one unit.

The attacker distinguishes data sets with a person (P) from those without (Q); under replace-one, one record from
another. All bounds hold for every attacker, whatever else they know, and are rounded up.

Notation: (ε, δ) a point of the profile, of both orders of the pair; x the false-positive rate of an attack; T its
true-positive rate.

- T <= min{δ + e^ε x, 1 - e^-ε (1 - δ - x)}: P(S) <= e^ε Q(S) + δ for the attack S, and for its complement the other way
  round.
- T - x <= (e^ε - 1 + 2 δ)/(e^ε + 1): where the two lines cross.
- An attacker whose prior of P is π guesses right with probability max over S of π P(S) + (1-π)(1 - Q(S)), which is
  1-π + π δ(log((1-π)/π)).
- The effect of an outcome on the odds: with probability at most δ/(1 - e^(ε-t)) under P, t > ε, the posterior odds of
  "with" are more than e^t times the prior odds: E_P (1 - e^(ε-L))_+ <= δ.

The least over any set of points is a bound; more points make it tighter.

Source: Wasserman & Zhou 2010; Kairouz, Oh & Viswanath 2015; Dong, Roth & Su 2022, Proposition 2.5.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.rounding import round_up

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
PRIORS = (0.01, 0.1, 0.5)
_ROUNDING = 1e-12
_FACTORS = (*(k / 40 for k in range(40)), *(1 + k / 20 for k in range(21)))
"""Multiples of the claim's ε at which the profile is evaluated, 0 included."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class AttackRisk:
    """Upper bounds on the success of an attacker.

    `true_positive_rates` has (false-positive rate, largest true-positive rate). `advantage` is the largest difference
    of the two rates of any attack. The release multiplies an attacker's odds by at most `odds_factor`, except for
    outcomes of probability `odds_failure`: one number without the other says nothing. `guesses` has (prior, success,
    posterior): for an attacker with this prior of "with" before the release, the largest probability of a right guess
    after it, and the largest posterior, except for outcomes of probability `odds_failure`.
    """

    true_positive_rates: tuple[tuple[float, float], ...]
    advantage: float
    odds_factor: float
    odds_failure: float
    guesses: tuple[tuple[float, float, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values; an infinite factor is null."""
        return {
            "true_positive_rates": [
                {"false_positive_rate": x, "true_positive_rate": rate} for x, rate in self.true_positive_rates
            ],
            "advantage": self.advantage,
            "odds_factor": None if math.isinf(self.odds_factor) else self.odds_factor,
            "odds_failure": self.odds_failure,
            "guesses": [
                {"prior": prior, "success": success, "posterior": posterior}
                for prior, success, posterior in self.guesses
            ],
        }


def list_points(
    charges: Iterable[Charge], epsilon: float, delta: float, neighbouring: Neighbouring, accountant: str
) -> Points:
    """Returns the profile, by an accountant, of charges that are claimed to be (ε, δ)-DP: at 61 ε from 0 to twice the
    claim's, at the odds of each of `PRIORS`, and the claim itself.

    Raises:
        ValueError: unknown accountant.
    """
    points = [(epsilon, delta)]
    if 0 < epsilon < math.inf:
        from dprecipe.privacy.accountants import profile

        asked = {factor * epsilon for factor in _FACTORS} | {math.log((1 - prior) / prior) for prior in PRIORS}
        points += profile(charges, neighbouring, accountant, sorted(asked))
    return points


def assess_point(epsilon: float, delta: float) -> AttackRisk:
    """Returns the risk of anything that is (ε, δ)-DP, all else unknown: of an account's cap, for example."""
    return assess_points([(epsilon, delta)], delta)


def assess_points(points: Points, delta: float) -> AttackRisk:
    """Returns the risk of anything that is (ε, δ)-DP for all these points at once. The odds are stated with a failure
    probability of twice `delta`, or 0 if `delta` is 0.

    Raises:
        ValueError: there are no points, or one is not valid.
    """
    if not points or not all(e >= 0 and 0 <= d <= 1 for e, d in points) or not 0 <= delta <= 1:
        raise ValueError(f"expected points epsilon >= 0, 0 <= delta <= 1, got {list(points)} and {delta}")
    failure = min(1.0, 2 * delta)
    factor = _factor(odds_exponent(points, failure))
    return AttackRisk(
        tuple((x, _rounded(true_positive_rate(points, x))) for x in FALSE_POSITIVE_RATES),
        _rounded(advantage(points)),
        factor,
        min(1.0, round_up(failure)),
        tuple((prior, _rounded(best_guess(points, prior)), _rounded(posterior(factor, prior))) for prior in PRIORS),
    )


def true_positive_rate(points: Points, false_positive_rate: float) -> float:
    """Returns the largest true-positive rate of any attack with a false-positive rate of at most this; at most 1."""
    x = false_positive_rate
    return min(1.0, *(min(d + _exp(e) * x, 1 - math.exp(-e) * (1 - d - x)) for e, d in points))


def best_guess(points: Points, prior: float) -> float:
    """Returns the largest probability of a right guess if "with" has this prior: the maximum over attacks of
    π T + (1-π)(1-x); at most 1.

    At each point T lies below two lines in x, and below 1: the maximum is at one of their corners. It is exact,
    1-π + π δ(ε), if ε = log((1-π)/π) is a point.
    """
    rest = 1 - prior
    best = []
    for e, d in points:
        meet = (1 - d) / (1 + _exp(e))
        corners = ((0.0, d), (meet, 1 - meet), (1 - d, 1.0))
        best.append(max(prior * rate + rest * (1 - x) for x, rate in corners))
    return min(1.0, *best)


def posterior(factor: float, prior: float) -> float:
    """Returns the probability of "with" once its odds have grown by a factor."""
    return 1.0 if math.isinf(factor) else factor * prior / (factor * prior + 1 - prior)


def advantage(points: Points) -> float:
    """Returns the largest difference of true- and false-positive rate of any attack, at most 1: δ(0), if that is a
    point."""
    return min(1.0, *(math.tanh(e / 2) + 2 * d / (1 + _exp(e)) for e, d in points))


def odds_failure(points: Points, exponent: float) -> float:
    """Returns a bound on the probability that the loss is above `exponent`: that the odds grow by more than its
    exponential."""
    below = [d / -math.expm1(e - exponent) for e, d in points if e < exponent]
    surely = [0.0 for e, d in points if e <= exponent and d == 0]
    return min([1.0, *below, *surely])


def odds_exponent(points: Points, failure: float) -> float:
    """Returns the least exponent with `odds_failure` at most `failure`; infinite if there is none."""
    bounds = [e if d == 0 else e - math.log1p(-d / failure) for e, d in points if d == 0 or d < failure]
    return min(bounds, default=math.inf)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


def _factor(exponent: float) -> float:
    return round_up(_exp(exponent) * (1 + _ROUNDING))


def _rounded(value: float) -> float:
    return min(1.0, round_up(value * (1 + _ROUNDING)))
