"""What a guarantee says of attacks: bounds of what anyone can find out about one unit, from δ(ε).

The attacker tells data sets with a person (P) from those without (Q); under replace-one, this record from that one. All
bounds hold for every attacker, whatever else they know, and are rounded up.

Notation: (ε, δ) a point of the profile, of both orders of the pair; x the false-positive rate of an attack; T its
true-positive rate.

- T <= min{δ + e^ε x, 1 - e^-ε (1 - δ - x)}: P(S) <= e^ε Q(S) + δ for the attack S, and for its complement the other way
  round.
- T - x <= (e^ε - 1 + 2 δ)/(e^ε + 1): where the two lines cross.
- Who believes in P by the prior π guesses right with chance max over S of π P(S) + (1-π)(1 - Q(S)), which is 1-π +
  π δ(log((1-π)/π)).
- What an outcome does to the odds: with chance at most δ/(1 - e^(ε-t)) under P, t > ε, the posterior odds of "with" are
  more than e^t times the prior odds: E_P (1 - e^(ε-L))_+ <= δ.

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
"""Of the claim's ε: where the profile is asked, 0 included."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class AttackRisk:
    """Upper bounds of what an attacker attains.

    `true_positive_rates` has (false-positive rate, largest true-positive rate). `advantage` is the largest difference
    of the two rates of any attack. What is released multiplies an attacker's odds by at most `odds_factor`, but for
    outcomes of chance `odds_failure`: one without the other says nothing. `guesses` has (prior, success, posterior):
    of who believes in "with" by the prior before the release, the largest chance to guess right after it, and what they
    may believe then, but for outcomes of chance `odds_failure`.
    """

    true_positive_rates: tuple[tuple[float, float], ...]
    advantage: float
    odds_factor: float
    odds_failure: float
    guesses: tuple[tuple[float, float, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """An infinite factor is null."""
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
    """The profile, by an accountant, of charges that are claimed to be (ε, δ)-DP: at 61 ε from 0 to twice the claim's,
    at the odds of each of `PRIORS`, and the claim itself.

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
    """The risk of anything that is (ε, δ)-DP, all else unknown: of an account's cap, for example."""
    return assess_points([(epsilon, delta)], delta)


def assess_points(points: Points, delta: float) -> AttackRisk:
    """The risk of anything that is (ε, δ)-DP for all these points at once. The odds are stated with a chance of failure
    of twice `delta`, or of 0 where `delta` is 0.

    Raises:
        ValueError: no points, or one that is none.
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
    """Largest true-positive rate of any attack with a false-positive rate of at most this; at most 1."""
    x = false_positive_rate
    return min(1.0, *(min(d + _exp(e) * x, 1 - math.exp(-e) * (1 - d - x)) for e, d in points))


def best_guess(points: Points, prior: float) -> float:
    """Largest chance to guess right, "with" having this prior: of max over attacks of π T + (1-π)(1-x); at most 1.

    At each point T lies below two lines of x, and 1: the maximum is at one of their corners. It is exact, 1-π + π δ(ε),
    where ε = log((1-π)/π) is a point.
    """
    rest = 1 - prior
    best = []
    for e, d in points:
        meet = (1 - d) / (1 + _exp(e))
        corners = ((0.0, d), (meet, 1 - meet), (1 - d, 1.0))
        best.append(max(prior * rate + rest * (1 - x) for x, rate in corners))
    return min(1.0, *best)


def posterior(factor: float, prior: float) -> float:
    """The chance of "with" once its odds have grown by a factor."""
    return 1.0 if math.isinf(factor) else factor * prior / (factor * prior + 1 - prior)


def advantage(points: Points) -> float:
    """Largest difference of true- and false-positive rate of any attack, at most 1: δ(0), where that is a point."""
    return min(1.0, *(math.tanh(e / 2) + 2 * d / (1 + _exp(e)) for e, d in points))


def odds_failure(points: Points, exponent: float) -> float:
    """With at most this chance the loss is above `exponent`: the odds grow by more than its exponential."""
    below = [d / -math.expm1(e - exponent) for e, d in points if e < exponent]
    surely = [0.0 for e, d in points if e <= exponent and d == 0]
    return min([1.0, *below, *surely])


def odds_exponent(points: Points, failure: float) -> float:
    """The least exponent with `odds_failure` at most `failure`; infinite if there is none."""
    bounds = [e if d == 0 else e - math.log1p(-d / failure) for e, d in points if d == 0 or d < failure]
    return min(bounds, default=math.inf)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


def _factor(exponent: float) -> float:
    return round_up(_exp(exponent) * (1 + _ROUNDING))


def _rounded(value: float) -> float:
    return min(1.0, round_up(value * (1 + _ROUNDING)))
