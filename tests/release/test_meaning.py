"""What a claim means to a person: never less than the truth, and no more than an attacker can gain."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.contract.facts import PrivacyUnit
from dprecipe.privacy import gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.risk import assess_point
from dprecipe.release import meaning
from dprecipe.release.claim import describe_risk
from dprecipe.release.schema import Claim, GaussianBound, GroupBound


def claim_of(
    epsilon: float,
    delta: float,
    relation: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE,
    unit: tuple[str, int] = ("record", 1),
) -> Claim:
    return Claim(
        epsilon=epsilon,
        delta=delta,
        neighbouring=relation.value,
        unit=PrivacyUnit(
            noun=None if unit[0] == "record" else unit[0],
            column=None if unit[0] == "record" else "Patient ID",
            max_records=unit[1],
            enforced_by="clipping",
        ),
        sentence="claimed",
        released=(),
        not_protected=(),
        profile=(),
        gdp=None,
        groups=(),
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
    assert variation * (1 - 1e-12) <= claim_of(epsilon, delta).risk.advantage <= variation * (1 + 1.1e-5)


@pytest.mark.parametrize(
    ("relation", "question", "suspicion"),
    [
        (Neighbouring.ADD_OR_REMOVE_ONE, "whether one patient is in the data.", "that it is in the data"),
        (
            Neighbouring.REPLACE_ONE,
            "which of two candidates for one patient is in the data.",
            "that it is the first of the two",
        ),
        (Neighbouring.ZERO_OUT_ONE, "whether one patient is in the data or blanked out.", "that it is in the data"),
    ],
)
def test_an_attack_in_words(relation: Neighbouring, question: str, suspicion: str) -> None:
    claim = claim_of(2.99983, 1e-5, relation=relation, unit=("patient", 4))
    text = meaning.describe_attack(claim)
    assert question in text
    assert "at most 95.26%." in text  # e^ε/(1 + e^ε), and little more
    sure = "at most 97.58% sure of the right answer afterwards"  # odds of 2 e^ε to 1
    assert f"{sure}, except with a chance of at most 1 in 50,000." in text
    assert any(name == f"attackers who are 10% sure beforehand {suspicion}" for name, _ in meaning.list_risk(claim))


def test_a_large_factor_promises_nothing() -> None:
    text = meaning.describe_attack(claim_of(5000.0, 1e-5))
    assert "with it, at most 100%." in text
    assert "one release may tell the attacker everything" in text


@pytest.mark.parametrize("epsilon", [7.5, 8.2, 12.0, 5000.0])
def test_no_bound_is_stated_that_bounds_nothing(epsilon: float) -> None:
    """No one is more than 100% sure, and a bound that is too large to be read is still no claim that there is none."""
    claim = claim_of(epsilon, 1e-5)
    rows = dict(meaning.list_risk(claim))
    texts = [meaning.describe_attack(claim), *rows.values()]
    assert not any(re.search(r"at most 100(\.0+)?% sure", text) for text in texts)
    odds = rows["odds of any guess after seeing the release"]
    assert ("no bound below 10,000 times" in odds) == (claim.risk.odds_factor is None or claim.risk.odds_factor > 10000)


@pytest.mark.parametrize(
    ("share", "read"),
    [
        (0.6405, "64.1%"),
        (0.8999, "90.0%"),
        (0.900001, "90.01%"),
        (0.990001, "99.01%"),
        (0.99975, "99.98%"),
        (1.0, "100%"),
    ],
)
def test_a_share_near_all_is_read_to_the_hundredth(share: float, read: str) -> None:
    """Without the release, 99% of guesses are right: 99.1% would show a gain where there is none."""
    assert meaning.read_percent(share) == read


@pytest.mark.parametrize(
    ("epsilon", "word"),
    [(0.5, "strong"), (1.0, "strong"), (1.00001, "reasonable"), (10.0, "reasonable"), (10.1, "weak")],
)
def test_how_large_epsilon_is_by_a_scale_that_is_named(epsilon: float, word: str) -> None:
    text = meaning.describe_scale(claim_of(epsilon, 1e-5))
    assert "Ponomareva et al. 2023" in text
    assert f"this guarantee is {word}" in text
    assert f"Its ε is {meaning.read_up(epsilon)}" in text


def test_who_is_protected() -> None:
    assert meaning.describe_protected(claim_of(1, 1e-5))[0] == "each record"
    assert meaning.describe_protected(claim_of(1, 1e-5, unit=("patient", 4))) == (
        "each patient",
        "all records with the same 'Patient ID', together; at most 4 of them are used",
    )
    assert meaning.describe_protected(claim_of(1, 1e-5, unit=("patient", 1)))[1].endswith("together; its one record")
    group = "group of records with the same 'Patient ID'"
    assert meaning.describe_protected(claim_of(1, 1e-5, unit=(group, 4))) == (
        "each group of records",
        "with the same 'Patient ID', together; at most 4 of them are used",
    )


@pytest.mark.parametrize(("delta", "words"), [(1e-5, "1 in 100,000"), (3e-6, "1 in 333,333"), (0.5, "1 in 2")])
def test_delta_in_words_is_never_too_small(delta: float, words: str) -> None:
    assert meaning.describe_delta(delta) == words


def test_the_risk_in_words_is_never_below_its_numbers() -> None:
    claim = claim_of(1.0, 1e-5)
    rows = dict(meaning.list_risk(claim))
    alarms = "attacks with false alarms in at most {}% of cases"
    assert [name for name in rows if name.startswith("attacks")] == [alarms.format(x) for x in ("0.1", "1", "10")]
    read = [Decimal(text.split()[-3].rstrip("%")) for name, text in rows.items() if name.startswith("attacks")]
    for shown, (x, rate) in zip(read, assess_point(1.0, 1e-5).true_positive_rates, strict=True):
        assert Decimal(repr(rate)) * 100 <= shown
        assert shown <= Decimal(repr(min(1.0, math.e * x + 1e-5))) * 100 * Decimal("1.01")
    odds = "odds of any guess after seeing the release"
    assert rows[odds] == "at most 5.44 times the odds before, except with a chance of at most 1 in 50,000"
    assert dict(meaning.list_risk(claim_of(12.0, 1e-5)))[odds] == "no bound below 10,000 times the odds before"


def test_the_risk_of_a_gaussian_claim_is_that_of_the_gaussian(finished: Any) -> None:
    """A certificate's risk is at most what its point alone gives, and not below the best attack on its profile."""
    from dprecipe.release.verify import verify

    claim = verify(finished.release).claim
    alone = assess_point(claim.epsilon, claim.delta)
    assert claim.risk.advantage < alone.advantage
    for rate, (_, most) in zip(claim.risk.true_positive_rates, alone.true_positive_rates, strict=True):
        assert rate.false_positive_rate < rate.true_positive_rate < most


@pytest.mark.parametrize("mu", [0.1, 0.7, 1.5])
@pytest.mark.parametrize("relation", Neighbouring)
def test_guesses_about_several_are_bounded_and_those_that_are_not_are_said_to_be(
    mu: float, relation: Neighbouring
) -> None:
    """Against the truth for N(μ, 1), of which k units move the mean by kμ."""
    epsilon = gdp.epsilon(mu, 1e-5)
    whole = claim_of(epsilon, 1e-5, relation).model_copy(
        update={"gdp": GaussianBound(mu=mu, from_epsilon=0.0, to_epsilon=None)}
    )
    part = whole.model_copy(update={"gdp": GaussianBound(mu=mu, from_epsilon=0.0, to_epsilon=2 * epsilon)})
    alone = whole.model_copy(update={"gdp": None})
    for claim in (whole, part, alone):
        text = meaning.describe_group(claim)
        by_word = {word: float(share) for share, word in re.findall(r"([\d.]+)%(?: of cases)? for (\w+)", text)}
        for size, word in meaning.WORDS.items():
            truth = 100 * 0.5 * (1 + math.erf(size * mu / 2 / math.sqrt(2)))
            assert truth <= by_word.get(word, 100)
            if claim is whole:
                assert by_word[word] <= truth * 1.01
        assert (len(by_word) < 3) == ("gives no bound that is of use" in text)
        assert meaning.TOGETHER[relation] in text or not by_word


def test_several_of_a_large_claim_have_no_bound() -> None:
    text = meaning.describe_group(claim_of(40.0, 1e-5, unit=("patient", 4)))
    assert text == (
        "Several of them, such as a family, are protected less than one alone. "
        "For two or more, this certificate gives no bound that is of use."
    )
    assert meaning.list_group(claim_of(40.0, 1e-5)) == []
    bounded = claim_of(3.0, 1e-5).model_copy(
        update={"groups": (GroupBound(size=2, epsilon=6.70574), GroupBound(size=3, epsilon=None))}
    )
    assert meaning.list_group(bounded) == [("two together", "ε = 6.71")]
