"""What a claim means to a person: never less than the truth, and no more than an attacker can gain."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.mechanisms.facts import PrivacyUnit
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.risk import assess_point
from dprecipe.release import meaning
from dprecipe.release.claim import describe_risk
from dprecipe.release.schema import Claim, GaussianBound, ProfilePoint


def claim_of(
    epsilon: float,
    delta: float,
    profile: tuple[tuple[float, float], ...] = (),
    mu: float | None = None,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    unit: tuple[str, int] = ("record", 1),
) -> Claim:
    return Claim(
        epsilon=epsilon,
        delta=delta,
        neighbouring=relation.value,
        unit=PrivacyUnit(name=unit[0], max_records=unit[1], enforced_by="clipping"),
        sentence="claimed",
        released=(),
        not_protected=(),
        profile=tuple(ProfilePoint(epsilon=e, delta=d) for e, d in profile),
        gdp=None if mu is None else GaussianBound(mu=mu, from_epsilon=0.0, to_epsilon=None),
        risk=describe_risk(assess_point(epsilon, delta)),
    )


@given(st.floats(1e-12, 1e12), st.integers(1, 6))
def test_a_number_that_is_read_is_never_below_the_number(value: float, digits: int) -> None:
    read = Decimal(meaning.read_up(value, digits).replace(",", ""))
    assert Decimal(repr(value)) <= read <= Decimal(repr(value)) * (1 + Decimal(10) ** (1 - digits))


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (2.99983, "3.00"),
        (2.99999, "3.00"),
        (3.0, "3.00"),
        (3.00001, "3.01"),
        (0.999949, "1.00"),
        (12.5, "12.5"),
        (99.91, "100"),
        (2980.9, "2,990"),
        (0.0, "0"),
        (math.inf, "∞"),
    ],
)
def test_numbers_as_they_are_read(value: float, read: str) -> None:
    assert meaning.read_up(value) == read


@given(st.floats(1e-3, 12), st.floats(1e-9, 0.5))
def test_the_advantage_of_a_pair_is_that_of_the_worst_mechanism(epsilon: float, delta: float) -> None:
    """Kairouz, Oh & Viswanath 2015: these two distributions are the worst that are (ε, δ)-close."""
    odds = math.exp(epsilon)
    p = np.array([delta, (1 - delta) * odds / (1 + odds), (1 - delta) / (1 + odds), 0.0])
    variation = float(np.maximum(p - p[::-1], 0).sum())
    assert variation * (1 - 1e-12) <= meaning.bound_advantage(claim_of(epsilon, delta)) <= variation * (1 + 1e-8)


@pytest.mark.parametrize("mu", [0.01, 0.2, 0.719082, 1.0, 3.0, 8.0])
def test_with_a_gaussian_bound_it_is_the_distance_of_two_normal_distributions(mu: float) -> None:
    distance = float(mpmath.erf(mpmath.mpf(mu) / (2 * mpmath.sqrt(2))))
    assert distance <= meaning.bound_advantage(claim_of(40.0, 1e-5, mu=mu)) <= distance * (1 + 1e-7)


def test_every_point_of_the_curve_counts() -> None:
    """At its own ε the claim may say little, where a smaller ε with a larger δ says more."""
    alone, with_curve = claim_of(8.0, 1e-6), claim_of(8.0, 1e-6, profile=((0.5, 0.02), (1.0, 1e-3)))
    assert meaning.bound_advantage(with_curve) == pytest.approx((math.exp(0.5) - 1 + 0.04) / (math.exp(0.5) + 1))
    assert meaning.bound_advantage(with_curve) < meaning.bound_advantage(alone) < 1


@pytest.mark.parametrize(
    ("relation", "question"),
    [
        (Neighbouring.ADD_OR_REMOVE_ONE, "whether one patient is in the data,"),
        (Neighbouring.REPLACE_ONE, "which of two candidates for one patient is in the data,"),
        (Neighbouring.ZERO_OUT_ONE, "whether one patient is in the data or blanked out,"),
    ],
)
def test_an_attack_in_words(relation: Neighbouring, question: str) -> None:
    text = meaning.describe_attack(claim_of(2.99983, 1e-5, mu=0.719082, relation=relation, unit=("patient", 4)))
    assert question in text
    assert "right in at most 64.1% of cases" in text  # (1 + 0.2808)/2, rounded up
    assert "more than 20.1 times as probable (exp(ε)), plus δ" in text
    assert relation.words.format(unit="patient") in text


def test_a_large_factor_promises_nothing() -> None:
    text = meaning.describe_attack(claim_of(5000.0, 1e-5))
    assert "right in at most 100% of cases" in text
    assert "too large to promise anything" in text


def test_who_is_protected() -> None:
    assert meaning.describe_protected(claim_of(1, 1e-5))[0] == "each record"
    assert meaning.describe_protected(claim_of(1, 1e-5, unit=("patient", 4))) == (
        "all records of one patient",
        "together; at most 4",
    )
    assert meaning.describe_protected(claim_of(1, 1e-5, unit=("patient", 1)))[1] == "together; its one record"


@pytest.mark.parametrize(("delta", "words"), [(1e-5, "1 in 100,000"), (3e-6, "1 in 333,333"), (0.5, "1 in 2")])
def test_delta_in_words_is_never_too_small(delta: float, words: str) -> None:
    assert meaning.describe_delta(delta) == words


def test_the_risk_in_words_is_never_below_its_numbers() -> None:
    claim = claim_of(1.0, 1e-5)
    rows = dict(meaning.list_risk(claim))
    assert [name for name in rows if name.startswith("an attack")] == [
        f"an attack that accuses falsely in at most {x}% of cases" for x in ("0.1", "1", "10")
    ]
    read = [Decimal(text.split()[-1].rstrip("%")) for name, text in rows.items() if name.startswith("an attack")]
    for shown, (x, rate) in zip(read, assess_point(1.0, 1e-5).true_positive_rates, strict=True):
        assert Decimal(repr(rate)) * 100 <= shown
        assert shown <= Decimal(repr(min(1.0, math.e * x + 1e-5))) * 100 * Decimal("1.01")
    assert rows["odds of any guess after seeing the release"].endswith("except with a chance of at most 2e-05")
    assert "no bound" in dict(meaning.list_risk(claim_of(12.0, 1e-5)))["odds of any guess after seeing the release"]


def test_the_risk_of_a_gaussian_claim_is_that_of_the_gaussian(finished: Any) -> None:
    """A certificate's risk is at most what its point alone gives, and not below the best attack on its profile."""
    from dprecipe.release.verify import verify

    claim = verify(finished.release).claim
    alone = assess_point(claim.epsilon, claim.delta)
    assert claim.risk.advantage < alone.advantage
    for rate, (_, most) in zip(claim.risk.true_positive_rates, alone.true_positive_rates, strict=True):
        assert rate.false_positive_rate < rate.true_positive_rate < most
