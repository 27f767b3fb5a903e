"""The meaning of a claim in words: every document takes its numbers and sentences from here, so no two contradict.

Every bound is one of `claim.risk`, which `verify` recomputes; `dprecipe.privacy.risk` has the formulas and the proofs.
A number that is read is never below the bound.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

from dprecipe.data.names import name_unit, quote_name
from dprecipe.privacy import gdp, groups, risk, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.release.schema import Claim, Randomness

MARGIN = 1 + 1e-9
"""Above 1 by more than the arithmetic below errs."""
MAX_READ = 10_000.0
"""Beyond, a factor is no number to be read."""
ALL = "100%"
"""A bound that says nothing: no one is surer than that."""
EVEN = 0.5
"""The prior of somebody to whom both answers are equally likely."""
QUESTIONS = {
    Neighbouring.ADD_OR_REMOVE_ONE: "whether one {unit} is in the data",
    Neighbouring.REPLACE_ONE: "which of two candidates for one {unit} is in the data",
    Neighbouring.ZERO_OUT_ONE: "whether one {unit} is in the data or blanked out",
}
"""Question that an attacker answers by a guess, by relation."""
SUSPICIONS = {
    Neighbouring.ADD_OR_REMOVE_ONE: "that it is in the data",
    Neighbouring.REPLACE_ONE: "that it is the first of the two",
    Neighbouring.ZERO_OUT_ONE: "that it is in the data",
}
"""The answer that an attacker believes to some degree beforehand, by relation."""
TOGETHER = {
    Neighbouring.ADD_OR_REMOVE_ONE: "whether all of them are in the data, or none,",
    Neighbouring.REPLACE_ONE: "which of two such groups is in the data",
    Neighbouring.ZERO_OUT_ONE: "whether all of them are in the data, or blanked out,",
}
"""The same question about several units, by relation."""
WORDS = {2: "two", 3: "three", 4: "four"}
RANDOMNESS = {
    "chacha20": "ChaCha20 (RFC 8439), OpenSSL's; Gaussian noise on a CUDA device from dprecipe's own, bit for bit the "
    "same",
    "operating_system": "the operating system",
    "fixed_seed": "a fixed seed",
}
"""The generators and their seeds, in words."""
FLOATING_POINT = {
    "lattice": "noisy sums: noise from uniforms of 63 random bits is added in float64, and the result rounded to a "
    "lattice of 2^-21 to 2^-20 of the noise's scale, whatever the sum (against Mironov 2012); all other noise: drawn "
    "in float64, and treated as real-valued"
}
"""Protections against floating-point attacks, in words."""
NOT_PROVEN = (
    "A signature proves who issued this certificate and that it was not altered. It does not prove that the "
    "program drew the noise, read these data, or ran unmodified; that the declared assumptions hold; or that "
    "nothing else was released from the same records. The checks are the only evidence of the first."
)
SCALE = "Ponomareva et al. 2023, How to DP-fy ML"
"""Source of the words of `describe_scale`."""


def read_up(value: float, digits: int = 3) -> str:
    """Returns a number as a person reads it, rounded up to `digits` significant digits: 2.99983 is "3.00", and 12.5
    "12.5".

    Guarantees: the number in the result is at least the decimal number that `repr(value)` writes.
    """
    if value == 0 or math.isinf(value):
        return "∞" if value else "0"
    exact = Decimal(repr(value))
    for _ in range(2):  # 9.999 rounds to 10, which has one more digit before the point
        unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        exact = exact.quantize(unit, rounding=ROUND_CEILING)
    return f"{exact:,f}" if exact.adjusted() >= -4 else f"{exact:e}"


def read_percent(share: float) -> str:
    """Returns a share of at most 1 in percent, rounded up to three digits; to the hundredth from 90% on, where what is
    missing is what tells: 0.990001 is "99.01%"."""
    percent = min(100.0, rounding.round_up(100 * share * MARGIN))
    read = read_up(percent, 4 if percent > 90 else 3)
    return ALL if float(read) == 100 else f"{read}%"


def ask_question(claim: Claim) -> str:
    """Returns the question that an attacker answers by a guess, in words."""
    return QUESTIONS[Neighbouring(claim.neighbouring)].format(unit=claim.unit.name)


def describe_attack(claim: Claim) -> str:
    """Returns the claim as what an attacker gains: how often a guess is right, and how sure one release can make it."""
    even = next(guess for guess in claim.risk.guesses if guess.prior == EVEN)
    guess = (
        f"Suppose an attacker knows everything else and has to guess {ask_question(claim)}. Both answers are equally "
        f"likely. Without the release, {100 * EVEN:g}% of such guesses are right; with it, at most "
        f"{read_percent(even.success)}."
    )
    sure = read_percent(even.posterior)
    if sure == ALL or _bound_odds(claim) is None:
        return f"{guess} That is an average, and one release may tell the attacker everything."
    return (
        f"{guess} That is an average, and by chance a release may tell more. Whatever comes out, the attacker is at "
        f"most {sure} sure of the right answer afterwards, {_describe_exception(claim)}."
    )


def describe_scale(claim: Claim) -> str:
    """Describes how large ε is by a published scale."""
    epsilon = claim.epsilon
    word = "strong" if epsilon <= 1 else "reasonable" if epsilon <= 10 else "weak or none"
    return (
        f"By a published scale for machine learning ({SCALE}), this guarantee is {word}. Its ε is {read_up(epsilon)}, "
        "and smaller is better: the scale calls up to 1 strong, up to 10 reasonable, and more weak or none."
    )


def list_risk(claim: Claim) -> list[tuple[str, str]]:
    """Returns the most that attacks attain: each question, and its one answer."""
    stated, factor = claim.risk, _bound_odds(claim)
    rows = [
        (
            f"attacks with false alarms in at most {100 * rate.false_positive_rate:g}% of cases",
            f"find what they look for in at most {read_percent(rate.true_positive_rate)} of cases",
        )
        for rate in stated.true_positive_rates
    ]
    rows.append(("share found minus share of false alarms, of any attack", f"at most {read_percent(stated.advantage)}"))
    odds = (
        f"no bound below {MAX_READ:,.0f} times the odds before"
        if factor is None
        else f"at most {read_up(factor)} times the odds before, {_describe_exception(claim)}"
    )
    rows.append(("odds of any guess after seeing the release", odds))
    suspicion = SUSPICIONS[Neighbouring(claim.neighbouring)]
    return rows + [
        (
            f"attackers who are {100 * guess.prior:g}% sure beforehand {suspicion}",
            f"guess right in at most {read_percent(guess.success)} of cases (without the release: "
            f"{100 * max(guess.prior, 1 - guess.prior):g}%); afterwards they "
            f"{_describe_belief(claim, guess.posterior)}",
        )
        for guess in stated.guesses
    ]


def _bound_odds(claim: Claim) -> float | None:
    """Returns the factor by which the odds of any guess grow at most; None where it is too large to be read."""
    factor = claim.risk.odds_factor
    return factor if factor is not None and factor <= MAX_READ else None


def _describe_belief(claim: Claim, posterior: float) -> str:
    sure = read_percent(posterior)
    return "may be sure of it" if sure == ALL else f"are at most {sure} sure of it, {_describe_exception(claim)}"


def _describe_exception(claim: Claim) -> str:
    return f"except with a chance of at most {describe_delta(claim.risk.odds_failure)}"


def describe_protected(claim: Claim) -> tuple[str, str]:
    """Describes who is protected, in words: a few of them, and the rest."""
    unit = claim.unit
    if unit.column is None:
        return f"each {unit.name}", "by itself: not all records of one person together"
    limit = "its one record" if unit.max_records == 1 else f"at most {unit.max_records:,} of them are used"
    if unit.name == name_unit(unit.column):
        return "each group of records", f"with the same {quote_name(unit.column)}, together; {limit}"
    return f"each {unit.name}", f"all records with the same {quote_name(unit.column)}, together; {limit}"


def describe_protected_unit(claim: Claim) -> str:
    """Describes who is protected, as one phrase."""
    who, rest = describe_protected(claim)
    return f"{who} ({rest})"


def describe_unit(claim: Claim) -> str:
    """Describes who is protected and how that is enforced, as two sentences without the last stop."""
    return f"Protected is {describe_protected_unit(claim)}. How that is enforced: {claim.unit.enforced_by}"


def guess_together(claim: Claim, size: int) -> float:
    """Returns a bound on the share of right guesses about `size` units together, at even odds."""
    points = [(0.0, claim.risk.advantage), (claim.epsilon, claim.delta)]
    points += [(point.epsilon, point.delta) for point in claim.profile]
    bound = claim.gdp
    if bound is not None and bound.to_epsilon is not None:
        points += groups.list_gaussian_points(bound.mu, bound.to_epsilon)
    extended = groups.extend_curve(points, size).list_points()
    extended += [
        (group.epsilon, claim.delta) for group in claim.groups if group.size == size and group.epsilon is not None
    ]
    if bound is not None and bound.to_epsilon is None:
        extended.append((0.0, gdp.delta(groups.extend_gaussian(bound.mu, size), 0.0)))
    return risk.best_guess(extended, EVEN)


def describe_group(claim: Claim) -> str:
    """Describes what the claim for one unit leaves to several together."""
    several = "Several records, such as all of one person or of a family,"
    if claim.unit.column is not None:
        several = "Several of them, such as a family,"
    shares = {size: read_percent(guess_together(claim, size)) for size in groups.SIZES}
    bounded = [f"{share} for {WORDS[size]}" for size, share in shares.items() if share != ALL]
    text = f"{several} are protected less than one alone."
    if bounded:
        bounded[0] = bounded[0].replace("%", "% of cases")
        listed = " and ".join([", ".join(bounded[:-1]), bounded[-1]] if len(bounded) > 1 else bounded)
        text += f" An attacker who guesses {TOGETHER[Neighbouring(claim.neighbouring)]} is right in at most {listed}."
    if len(bounded) < len(groups.SIZES):
        text += f" For {WORDS[groups.SIZES[len(bounded)]]} or more, this certificate gives no bound that is of use."
    return text


def list_group(claim: Claim) -> list[tuple[str, str]]:
    """Lists ε of several units together, at the claim's δ, and μ where it bounds every ε. Numbers of units without a
    bound are left out."""
    rows = []
    for group in claim.groups:
        if group.epsilon is not None:
            text = f"ε = {read_up(group.epsilon)}"
            if claim.gdp is not None and claim.gdp.to_epsilon is None:
                text += f"; μ = {read_up(groups.extend_gaussian(claim.gdp.mu, group.size))}"
            rows.append((f"{WORDS.get(group.size, str(group.size))} together", text))
    return rows


def describe_deletion(claim: Claim, released: str) -> str:
    """Describes what a later deletion of somebody's data changes: nothing of the claim. `released`: what there is."""
    return (
        f"{released} stays as it is, and so does its guarantee: from the start it bounds what is revealed about "
        f"any one {claim.unit.name}, also about one that is deleted later. It does not cover the records themselves "
        "and the run's folder private/: delete what is there as well. Whether the law asks for more, no certificate "
        "says."
    )


def describe_delta(delta: float) -> str:
    """Returns a chance as "1 in 100,000", rounded up."""
    return f"1 in {int(1 / Decimal(repr(delta))):,}"


def describe_randomness(stated: Randomness) -> str:
    """Describes where the randomness of a run came from."""
    return f"{RANDOMNESS[stated.generator]}; seeded from: {RANDOMNESS[stated.entropy]}"
