"""What a claim means to a person: numbers to be read, and how much an attacker gains. Nothing here is below the truth.

Notation: P and Q are the distributions of what is released on two neighbouring data sets; TV = max over sets S of
P(S) - Q(S), which is δ(0).
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from dprecipe.privacy import gdp, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.release.schema import Claim

MARGIN = 1 + 1e-9
"""Above 1 by more than the arithmetic below errs."""
MAX_READ = 10_000.0
"""Beyond, a factor is no number to be read."""
QUESTIONS = {
    Neighbouring.ADD_OR_REMOVE_ONE: "whether one {unit} is in the data",
    Neighbouring.REPLACE_ONE: "which of two candidates for one {unit} is in the data",
    Neighbouring.ZERO_OUT_ONE: "whether one {unit} is in the data or blanked out",
}
"""What an attacker guesses, by relation."""


def read_up(value: float, digits: int = 3) -> str:
    """A number as a person reads it, rounded up to `digits` significant digits: 2.99983 is "3.00", and 12.5 "12.5".

    Guarantees: the number in the result is at least the decimal number that `repr(value)` writes.
    """
    if value == 0 or math.isinf(value):
        return "∞" if value else "0"
    exact = Decimal(repr(value))
    for _ in range(2):  # 9.999 rounds to 10, which has one more digit before the point
        unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        exact = exact.quantize(unit, rounding=ROUND_CEILING)
    return f"{exact:,f}" if exact.adjusted() >= -4 else f"{exact:e}"


def bound_advantage(claim: Claim) -> float:
    """An upper bound on TV, in [0, 1]: by how much the rate of true accusations exceeds that of false ones, in any
    test of two neighbouring data sets.

    Guarantees: every pair (ε, δ) of the claim gives TV <= (exp(ε) - 1 + 2δ) / (exp(ε) + 1), and a Gaussian bound that
    begins at ε = 0 gives TV <= δ(0) of its μ; the least of them is returned.
    Source: Kairouz, Oh & Viswanath 2015, Theorem 2.1, for a pair; Dong, Roth & Su 2022, Corollary 2.13, for μ.
    """
    pairs = [(claim.epsilon, claim.delta), *((point.epsilon, point.delta) for point in claim.profile)]
    bounds = [math.tanh(epsilon / 2) + (2 * delta) / (1 + math.exp(min(epsilon, 700))) for epsilon, delta in pairs]
    if claim.gdp is not None and claim.gdp.from_epsilon == 0:
        bounds.append(gdp.delta(claim.gdp.mu, 0.0))
    return min(1.0, min(bounds) * MARGIN)


def ask_question(claim: Claim) -> str:
    """What an attacker guesses, in words."""
    return QUESTIONS[Neighbouring(claim.neighbouring)].format(unit=claim.unit.name)


def describe_attack(claim: Claim) -> str:
    """The claim as what an attacker gains, in two sentences. Every number is rounded up."""
    relation, question = Neighbouring(claim.neighbouring), ask_question(claim)
    change = relation.words.format(unit=claim.unit.name)
    guesses = read_up(min(100.0, rounding.round_up(100 * (1 + bound_advantage(claim)) / 2 * MARGIN)))
    guess = (
        f"Someone who knows everything else and has to guess {question}, both being as likely beforehand, is "
        f"right in at most {guesses}% of cases after seeing the release; without it, in 50%."
    )
    factor = math.exp(claim.epsilon) * MARGIN if claim.epsilon < 700 else math.inf
    if not factor <= MAX_READ:
        return f"{guess} The factor exp(ε) is too large to promise anything by itself."
    odds = read_up(rounding.round_up(factor))
    return (
        f"{guess} Nothing they may look for becomes more than {odds} times as probable (exp(ε)), plus δ, by {change}."
    )


def list_risk(claim: Claim) -> list[tuple[str, str]]:
    """What attacks attain at most, in words. Every number is rounded up; those of the odds belong together."""
    stated = claim.risk
    rows = [
        (
            f"an attack that accuses falsely in at most {100 * rate.false_positive_rate:g}% of cases",
            f"accuses rightly in at most {_read_percent(rate.true_positive_rate)}",
        )
        for rate in stated.true_positive_rates
    ]
    rows.append(("true minus false accusations, of any attack", f"at most {_read_percent(stated.advantage)}"))
    failure = f"except with a chance of at most {stated.odds_failure:g}"
    factor = stated.odds_factor
    odds = "no bound" if factor is None or factor > MAX_READ else f"at most {read_up(factor)} times the odds before"
    rows.append(("odds of any guess after seeing the release", f"{odds}, {failure}"))
    return rows + [
        (
            f"a prior belief of {100 * guess.prior:g}% that it is in the data",
            f"a guess is right in at most {_read_percent(guess.success)} of cases; the belief after seeing the release "
            f"is at most {_read_percent(guess.posterior)}, {failure}",
        )
        for guess in stated.guesses
    ]


def _read_percent(share: float) -> str:
    return f"{read_up(min(100.0, rounding.round_up(100 * share * MARGIN)))}%"


def describe_protected(claim: Claim) -> tuple[str, str]:
    """Who is protected, in words: a few of them, and the rest."""
    unit = claim.unit
    if unit.max_records == 1 and unit.name == "record":
        return "each record", "by itself: not all records of one person together"
    limit = "its one record" if unit.max_records == 1 else f"at most {unit.max_records:,}"
    return f"all records of one {unit.name}", f"together; {limit}"


def describe_delta(delta: float) -> str:
    """δ as "1 in so many", never fewer than it is."""
    return f"1 in {int(1 / Decimal(repr(delta))):,}"
