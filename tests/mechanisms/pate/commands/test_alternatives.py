"""Other plans on the same simulated votes: shares, and where a run ends."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from dprecipe.mechanisms.pate.commands.forecast import count_first_round, expect_stop, pass_chances, share_right
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory.votes import VoteSelection
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text

FINE = (Path(__file__).parents[3] / "golden" / "rules" / "fine-pate.yaml").read_text("utf-8")
GNMAX = "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 40}}"
INTERACTIVE = (
    "mechanism.aggregator={kind: interactive_gnmax, noise: {family: gaussian, multiplier: 20}, "
    "selection: {threshold: 60, noise: {family: gaussian, multiplier: 40}}, interaction: {rounds: 4}}"
)


@cache
def plan_votes(*overrides: str) -> PatePlan:
    return plan(read_text(FINE, overrides=overrides)).as_plan_of(PatePlan)


def test_chances_to_pass_are_normal_tails() -> None:
    counts_QM = np.array([[90, 10], [50, 50], [30, 70]])
    chances_Q = pass_chances(counts_QM, VoteSelection(60.0, 20.0))
    assert chances_Q == pytest.approx(norm.sf((60.0 - np.array([90, 50, 70])) / 20.0), rel=1e-9)
    assert pass_chances(counts_QM, None).tolist() == [1.0, 1.0, 1.0]


def test_the_share_of_right_answers_weighs_queries_by_their_chance() -> None:
    assert share_right(np.array([1.0, 0.5]), np.array([0.9, 0.6])) == pytest.approx((0.9 + 0.3) / 1.5)
    assert share_right(np.zeros(2), np.ones(2)) is None
    rounded_Q = np.random.default_rng(1).random(8)
    assert rounded_Q @ np.ones(8) > rounded_Q.sum()
    assert share_right(rounded_Q, np.ones(8)) == 1.0


def test_a_first_round_is_a_part_of_the_queries() -> None:
    assert count_first_round(plan_votes(INTERACTIVE)) == round(plan_votes(INTERACTIVE).queries / 4)
    assert count_first_round(plan_votes()) == plan_votes().queries


@pytest.mark.parametrize("answered", [0.1, 0.5, 1.0])
def test_a_run_ends_with_the_last_query_that_fits_its_filter(answered: float) -> None:
    """Counted query by query: each needs room for its check and its answer, and spends the mean of what it uses."""
    own = plan_votes()
    assert own.check is not None
    assert own.filter_limit is not None
    check, answer = 1 / own.check.noise_multiplier**2, 2 / own.answer.noise_multiplier**2
    spent, queries = 0.0, 0
    while spent + check + answer <= own.filter_limit * (1 + 1e-9):
        spent, queries = spent + check + answered * answer, queries + 1
    stop = expect_stop(own, own.queries, answered)
    assert stop.max_queries == pytest.approx(queries, abs=1)
    assert stop.queries == min(stop.max_queries, own.queries)
    assert stop.reason == ("filter" if stop.max_queries < own.queries else "queries")
    assert stop.answers == pytest.approx(answered * stop.queries)


def test_without_a_check_all_queries_are_asked() -> None:
    own = plan_votes(GNMAX, "mechanism.queries.max=20")
    stop = expect_stop(own, own.queries, 1.0)
    assert (stop.queries, stop.answers, stop.reason, stop.max_queries) == (20, 20, "queries", None)
