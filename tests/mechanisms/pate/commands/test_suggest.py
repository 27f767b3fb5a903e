"""What a sanitised release is expected to say, and that no constants nearby would say less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dprecipe.mechanisms.pate.commands import simulate, suggest
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.theory import sanitise, vote_analysis, vote_sensitivity
from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting

DELTA = 1e-5
SMALL = Voting(200, 5, "gaussian", 15.0, VoteSelection(120, 40))
LARGE = Voting(1050, 5, "gaussian", 60.0, VoteSelection(600, 250))
CONSTANTS = Sanitiser(15.0, 0.02, 12.0, 10.0, 1e-6)


def silent(_: str) -> None: ...


def test_the_sensitivity_of_few_teachers_is_that_of_a_run() -> None:
    table_ST = vote_sensitivity.local_sensitivities(vote_sensitivity.query_costs(SMALL, 8.0))
    assert suggest.local_sensitivity(SMALL, 8.0, 1) == pytest.approx(table_ST, rel=1e-12)


@pytest.mark.parametrize(
    ("voting", "constants"),
    [
        (SMALL, Sanitiser(6.0, 0.02, 2.0, 8.0, 1e-6)),
        (LARGE, CONSTANTS),
        (Voting(1050, 3, "laplace", 40.0), CONSTANTS),
    ],
)
def test_what_is_expected_is_what_runs_publish_on_average(voting: Voting, constants: Sanitiser) -> None:
    """4,000 releases of the run's own value and sensitivity, unclipped: within six standard errors, and 1 % for the
    coarser table."""
    counts_QM = simulate.simulate_counts(voting.teachers, voting.classes, 60, Agreement(0.9, 1.0), 5)
    actual = suggest.simulate_sums(counts_QM, voting, constants.order).published(constants, voting, 60, DELTA)
    pairs = vote_sensitivity.two_largest(counts_QM)
    value = float(vote_sensitivity.query_cost(*pairs, voting, constants.order).sum())
    table_ST = vote_sensitivity.local_sensitivities(vote_sensitivity.query_costs(voting, constants.order))
    log_smooth = vote_sensitivity.log_smooth(vote_sensitivity.at_distances(table_ST, *pairs), constants.smoothness)
    draws = np.random.default_rng(6).standard_normal((4_000, 2)).tolist()
    releases = [sanitise.release_cost(value, log_smooth, constants, *pair) for pair in draws]
    epsilons = [sanitise.upper_bound(one, constants, DELTA).epsilon for one in releases]
    assert actual.total == pytest.approx(value, rel=1e-12)
    quiet = replace(releases[0], value=value, log_sensitivity=-99.0)
    most = float(vote_analysis.independent_rdp(voting, 60, 60, [constants.order])[0])
    assert actual.epsilon < sanitise.upper_bound(replace(quiet, value=most), constants, DELTA).epsilon  # not clipped
    noise = actual.epsilon - sanitise.upper_bound(quiet, constants, DELTA).epsilon
    error = 6 * np.std(epsilons) / np.sqrt(len(epsilons))
    assert actual.epsilon == pytest.approx(np.mean(epsilons), abs=float(error) + 0.01 * float(noise))
    assert actual.delta == pytest.approx(DELTA + 2e-6)


def test_no_constants_nearby_are_better() -> None:
    counts_QM = simulate.simulate_counts(200, 5, 100, Agreement(0.8, 1.0), 7)
    best = suggest.suggest_constants(counts_QM, SMALL, 100, DELTA, 1e-6, 30.0, silent)

    def expected(constants: Sanitiser) -> float:
        return suggest.simulate_sums(counts_QM, SMALL, constants.order).published(constants, SMALL, 100, DELTA).epsilon

    at_best = expected(best)
    most = float(vote_analysis.independent_rdp(SMALL, 100, 100, [best.order])[0])
    assert at_best < most  # else all constants are as good
    for name in ("order", "smoothness", "value_multiplier", "sensitivity_multiplier"):
        for factor in (0.6, 1.2):
            other = {name: getattr(best, name) * factor}
            if name == "order":  # β goes with it, or the cost is infinite
                other["smoothness"] = best.smoothness / factor
            assert at_best < 1.01 * expected(replace(best, **other)), (name, factor)


def test_more_queries_are_the_same_ones_again() -> None:
    counts_QM = simulate.simulate_counts(200, 5, 50, Agreement(), 8)
    once = suggest.simulate_sums(counts_QM, SMALL, 15.0).published(CONSTANTS, SMALL, 100, DELTA)
    twice = suggest.simulate_sums(np.concatenate([counts_QM, counts_QM]), SMALL, 15.0).published(
        CONSTANTS, SMALL, 100, DELTA
    )
    assert once.epsilon == pytest.approx(twice.epsilon, rel=1e-12)
    assert once.deviation == pytest.approx(twice.deviation, rel=1e-12)
