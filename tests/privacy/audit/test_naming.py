"""How many canaries are named: near the best choice, found by trying them all; and the bounds that theory lets it."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from dprecipe.privacy import gdp
from dprecipe.privacy.audit.any_program import lower_epsilon_of_guesses
from dprecipe.privacy.audit.naming import choose_naming
from dprecipe.privacy.audit.results import Guesses

CONFIDENCE, DELTA = 0.95, 1e-5


def expected_right(canaries: int, epsilon: float, each: int) -> int:
    """By scipy, and by the threshold of the mixture: no code is shared with the choice."""
    half, share = gdp.mu_for(epsilon, DELTA) / 2, each / canaries
    low, high = -10.0, 10.0
    for _ in range(80):
        middle = (low + high) / 2
        above = (stats.norm.sf(middle - half) + stats.norm.sf(middle + half)) / 2
        low, high = (middle, high) if above > share else (low, middle)
    return math.floor(2 * each * min(1.0, stats.norm.sf(low - half) / (2 * share)) + 0.5)


def lower(canaries: int, each: int, correct: int) -> float:
    guesses = Guesses(canaries=canaries, named_in=each, named_out=each, correct=correct)
    return lower_epsilon_of_guesses(guesses, CONFIDENCE, DELTA, roughly=True)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "canaries", "reported"), [(1, 1000, 0.34), (3, 1000, 1.65), (8, 1000, 4.6)])
def test_the_choice_is_near_the_best(epsilon: float, canaries: int, reported: float) -> None:
    naming = choose_naming(canaries, epsilon, DELTA, CONFIDENCE)
    chosen = lower(canaries, naming.each, naming.expected)
    tried = range(20, canaries // 2 + 1, 80)
    best = max(lower(canaries, each, expected_right(canaries, epsilon, each)) for each in tried)
    assert naming.expected == expected_right(canaries, epsilon, naming.each)
    assert chosen >= 0.9 * best
    assert chosen == pytest.approx(reported, rel=0.13)


def test_the_choice_follows_its_arguments_alone_and_names_no_canary_twice() -> None:
    for canaries in (2, 3, 10, 201, 10_000):
        for epsilon in (0.01, 1.0, 20.0):
            naming = choose_naming(canaries, epsilon, DELTA, CONFIDENCE)
            assert 1 <= naming.each <= canaries // 2
            assert naming.each <= naming.expected <= 2 * naming.each
            choose_naming.cache_clear()
            assert choose_naming(canaries, epsilon, DELTA, CONFIDENCE) == naming


@pytest.mark.parametrize("wrong", [(1, 1.0, 1e-5, 0.95), (10, 0.0, 1e-5, 0.95), (10, 1.0, 0.0, 0.95), (10, 1, 0.1, 1)])
def test_there_is_no_choice_without_canaries_or_claim(wrong: tuple[int, float, float, float]) -> None:
    with pytest.raises(ValueError, match="no names"):
        choose_naming(*wrong)
