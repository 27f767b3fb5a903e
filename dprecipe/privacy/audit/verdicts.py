"""Verdicts: all parts of a result that follow from its evidence.

An audit makes its results here, and `verify` makes them again, by the same functions. p-values are exact, or bounds
from above, so that a level bounds how often a sound program fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dprecipe.privacy.audit import counts
from dprecipe.privacy.audit.any_program import chance_on_curve, lower_epsilon_of_guesses
from dprecipe.privacy.audit.power import smallest_fault
from dprecipe.privacy.audit.results import (
    AttackTrials,
    AuditBound,
    AuditTest,
    BoundEvidence,
    Correlation,
    CurvePoint,
    Depth,
    Distance,
    Equality,
    Excess,
    Frequency,
    Guesses,
    TestEvidence,
    Variance,
)
from dprecipe.privacy.rounding import round_down, round_up


def p_value(evidence: TestEvidence) -> float:
    """Returns the probability that a sound program gives evidence at least as extreme as this, or an upper bound of it;
    0 or 1 for deterministic tests."""
    match evidence:
        case Excess():
            return 1.0 if evidence.largest <= evidence.allowed else 0.0
        case Equality():
            return 1.0 if evidence.differing == 0 else 0.0
        case Frequency():
            return _frequency(evidence)
        case Variance():
            return _variance(evidence)
        case Correlation():
            return _correlation(evidence)
        case Distance():
            return _distance(evidence)


def _frequency(evidence: Frequency) -> float:
    """Returns twice the smaller tail of the binomial distribution. Source: Clopper & Pearson 1934."""
    from scipy import special

    k, n, share = evidence.successes, evidence.trials, evidence.expected
    above = 1.0 if k == 0 else float(special.betainc(k, n - k + 1, share))
    below = 1.0 if k == n else float(special.betaincc(k + 1, n - k, share))
    return min(1.0, 2 * min(above, below))


def _variance(evidence: Variance) -> float:
    from scipy import special

    below = float(special.gammainc(evidence.degrees / 2, evidence.sum_squares / 2))
    above = float(special.gammaincc(evidence.degrees / 2, evidence.sum_squares / 2))
    return min(1.0, 2 * min(below, above))


def _correlation(evidence: Correlation) -> float:
    """Returns Chernoff's bound: E exp(tXY) <= (1-t²)^(-1/2) where E exp(tX) and E exp(tY) are at most exp(t²/2), so
    that P[|Σ XY| >= s] <= 2 min_t exp(-ts) (1-t²)^(-n/2); the minimum is where s t² + n t = s."""
    s, n = abs(evidence.sum_products), evidence.pairs
    if s == 0:
        return 1.0
    t = 2 * s / (n + math.hypot(n, 2 * s))
    exponent = -t * s - n / 2 * math.log1p(-t * t) if t < 1 else -math.inf
    return min(1.0, 2 * math.exp(exponent))


def _distance(evidence: Distance) -> float:
    """Returns twice the exact one-sided tail, a bound that is tight if small. Source: Birnbaum & Tingey 1951."""
    from scipy import special

    return min(1.0, 2 * float(special.smirnov(evidence.sample, evidence.statistic)))


SHARED_LEVEL = 1e-6
"""The probability that a sound program fails any statistical test of an audit, at most: each test has an equal part."""


def judge_test(
    depth: Depth, test_id: str, text: str, evidence: TestEvidence, level: float = 0.0, choices: int = 1
) -> AuditTest:
    """Returns the verdict of a test. A sound program fails it with probability at most `level`, and never if that is 0.

    Args:
        level: an equal part of `SHARED_LEVEL` (`share_level`); 0 for deterministic tests.
        choices: the evidence is the most extreme of this many; its p-value is multiplied by them (Bonferroni).

    Raises:
        ValueError: a positive level for a deterministic test, or 0 for a statistical one.
    """
    if is_deterministic(evidence) is not (level == 0) or not 0 <= level < 1:
        raise ValueError(f"expected level 0 for deterministic tests alone, got {level} for {evidence.kind}")
    value = min(1.0, round_up(choices * p_value(evidence)))
    return AuditTest(
        depth=depth,
        id=test_id,
        text=text,
        evidence=evidence,
        choices=choices,
        level=level,
        p_value=value,
        passed=value > level,
    )


def share_level(evidence: Iterable[TestEvidence]) -> float:
    """Returns the level of each statistical test of an audit with this evidence; `SHARED_LEVEL` where there is none."""
    return SHARED_LEVEL / max(1, sum(not is_deterministic(each) for each in evidence))


def is_deterministic(evidence: TestEvidence) -> bool:
    """Returns True if a sound program never fails a test of this evidence."""
    return isinstance(evidence, Excess | Equality)


def judge_bound(
    depth: Depth,
    bound_id: str,
    text: str,
    evidence: BoundEvidence,
    *,
    confidence: float,
    claimed: float | None = None,
    delta: float | None = None,
    curve: Sequence[tuple[float, float]] | None = None,
    implied_epsilon: float | None = None,
) -> AuditBound:
    """Returns the lower bound from the counts, together with the claim.

    Args:
        claimed: the μ or ε of the claim; None for a rate, whose claim is the curve.
        delta: δ, for a bound of ε.
        curve: for a rate and for guesses, the points (ε, δ) of the claimed profile.
        implied_epsilon: see `dprecipe.privacy.audit.implied`.

    Raises:
        ValueError: the claim, `delta` or `curve` does not go with the evidence.
    """
    measure = "epsilon" if isinstance(evidence, Guesses) else evidence.form
    if isinstance(evidence, AttackTrials) and measure == "rate":
        if curve is None or claimed is not None:
            raise ValueError("a rate is compared with a curve, and with no other claim")
        claimed = _allowed_rate(evidence, confidence, curve)
    elif claimed is None:
        raise ValueError(f"a bound of {measure} is compared with a claim, which is missing")
    if (measure == "epsilon") is (delta is None):
        raise ValueError("delta goes with a bound of epsilon")
    chance: float | None = None
    if isinstance(evidence, Guesses):
        if curve is None:
            raise ValueError("guesses are compared with a curve, which is missing")
        chance = _bound_chance(evidence, curve)
    lower = round_down(lower_bound(evidence, confidence, delta))
    fault = smallest_fault(evidence, confidence, claimed, delta, curve)
    return AuditBound(
        depth=depth,
        id=bound_id,
        text=text,
        evidence=evidence,
        confidence=confidence,
        delta=delta,
        curve=None if curve is None else tuple(CurvePoint(epsilon=e, delta=d) for e, d in curve),
        measure=measure,
        claimed=claimed,
        p_value=chance,
        lower=lower,
        implied_epsilon=implied_epsilon,
        smallest_fault=fault,
        refuted=lower > claimed if chance is None else chance < 1 - confidence,
    )


def refutes(evidence: BoundEvidence, confidence: float, curve: Sequence[tuple[float, float]]) -> bool:
    """Returns True if counts refute that a program keeps to this curve δ(ε): guesses, or those of a rate."""
    if isinstance(evidence, Guesses):
        return _bound_chance(evidence, curve) < 1 - confidence
    return round_down(lower_bound(evidence, confidence)) > _allowed_rate(evidence, confidence, curve)


def _bound_chance(evidence: Guesses, curve: Sequence[tuple[float, float]]) -> float:
    return min(1.0, round_up(chance_on_curve(evidence, curve)))


def _allowed_rate(evidence: AttackTrials, confidence: float, curve: Sequence[tuple[float, float]]) -> float:
    return min(1.0, round_up(counts.allowed_rate(curve, counts.bound_rates(evidence, confidence)[1])))


def describe_chance(bound: AuditBound) -> str:
    """Describes what the guesses of a bound show of the claim: a p-value that holds of any program."""
    seen = bound.evidence
    if not isinstance(seen, Guesses) or bound.p_value is None:
        raise ValueError(f"{bound.id} is no bound of guesses")
    return (
        f"{seen.correct:,} of {seen.named_in + seen.named_out:,} names are right, and no program that keeps to the "
        f"claimed curve δ(ε) gets there with a probability above {bound.p_value:.3g}"
    )


def lower_bound(evidence: BoundEvidence, confidence: float, delta: float | None = None) -> float:
    """Returns the lower bound in the evidence's measure, not rounded."""
    if isinstance(evidence, Guesses):
        return lower_epsilon_of_guesses(evidence, confidence, delta or 0.0)
    if evidence.form == "mu":
        return counts.lower_mu(evidence, confidence)
    if evidence.form == "epsilon":
        return counts.lower_epsilon(evidence, confidence, delta or 0.0)
    return counts.bound_rates(evidence, confidence)[0]
