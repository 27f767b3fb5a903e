"""Neighbouring runs with the program's own sampler: what an attacker gets from them, beside the claim."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.noise.entropy import Secrets
from dprecipe.noisy_sum.batches import UnitNumbers, draw_batch
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian, EpochEvent, PermutedGaussian
from dprecipe.privacy.events import Charge

RUNS = 20_000


def draw_epochs(event: EpochEvent, units: int, secrets: Secrets | None = None) -> Iterator[list[UnitNumbers]]:
    secrets = secrets or Secrets()
    for run in range(RUNS):
        yield list(draw_batch(event, units, secrets.stream("sampling", run)))


def check_claim(
    event: EpochEvent, delta: float, moved_RT: NDArray, farthest_RT: NDArray | None = None, attained: float = 0.7
) -> None:
    """Attacks runs whose noisy sums are moved so far, and runs whose sums are moved by nothing. `farthest_RT`: how far
    the attacker knows them to be moved at most; `attained`: the share of the claim that the attack shows at least.

    A threshold on the likelihood ratio is chosen on one half of the runs, and counted on the other. A sound program
    fails with probability 0.001 at most by the upper limit; the lower one is far below what is found."""
    ratio, noise = event.ratio, np.random.default_rng(1)
    mu_RT = np.full(moved_RT.shape, ratio.mu) if farthest_RT is None else farthest_RT
    used, without = (
        np.log(ratio.idle + ratio.weight * np.exp(mu_RT * seen_RT - mu_RT**2 / 2).sum(axis=1))
        for seen_RT in (moved_RT + noise.normal(size=moved_RT.shape), noise.normal(size=moved_RT.shape))
    )
    half = RUNS // 2

    def gain(threshold: float) -> float:
        right, wrong = float((used[:half] > threshold).mean()), float((without[:half] > threshold).mean())
        return math.log(max(right - delta, 1e-9) / max(wrong, 1e-4))

    threshold = max(np.quantile(used[:half], np.linspace(0.3, 0.99, 60)).tolist(), key=gain)
    right, wrong = int((used[half:] > threshold).sum()), int((without[half:] > threshold).sum())

    def bound(level: float) -> float:
        least = stats.beta.ppf(level, right, half - right + 1)
        return math.log((least - delta) / stats.beta.ppf(1 - level, wrong + 1, half - wrong))

    claim = accountants.epsilon([Charge(event, 1)], delta, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert bound(0.0005) <= claim
    assert bound(0.025) >= attained * claim


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "steps", "delta"), [(0.6, 5, 0.05), (0.5, 4, 0.02)])
def test_simulated_dealt_runs_come_close_to_the_claim_and_not_beyond(sigma: float, steps: int, delta: float) -> None:
    """The gradient of one of three units is 1, all others are 0."""
    event = DealtGaussian(sigma, steps)
    moved_RT = np.array([[float((batch == 2).any()) for batch in epoch] for epoch in draw_epochs(event, 3)])
    check_claim(event, delta, moved_RT / sigma)


@pytest.mark.slow
def test_simulated_permuted_runs_come_close_to_the_claim_and_not_beyond() -> None:
    """The gradient of one of seven units is 1, all others are -1: with the unit, a sum is 2 more, or the same."""
    event = PermutedGaussian(7, 2, 3, 1.2)

    def list_sums(units: int) -> NDArray:
        sums = [[2.0 * (batch == 6).sum() - len(batch) for batch in epoch] for epoch in draw_epochs(event, units)]
        return np.array(sums) / 1.2

    without_RT = list_sums(6)
    assert (without_RT == without_RT[0, 0]).all()
    check_claim(event, 0.05, list_sums(7) - without_RT)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "attained"), [(8, 0.6), (6, 0.4), (4, 0.3)])
def test_simulated_capped_runs_stay_below_the_claim(limit: int, attained: float) -> None:
    """The gradient of one of 13 units is 1, all others are -1, and the attacker knows which batches they fill: there a
    sum is 2 more with the unit, or the same. The more often batches are full, the less of the claim is attained: a unit
    with a low priority displaces nobody."""
    event, secrets = CappedDealtGaussian(0.8, 4, 12, limit), Secrets()

    def list_sums(units: int) -> NDArray:
        return np.array(
            [
                [2.0 * (batch == 12).sum() - len(batch) for batch in epoch]
                for epoch in draw_epochs(event, units, secrets)
            ]
        )

    with_RT, without_RT = list_sums(13), list_sums(12)
    moved_RT = with_RT - without_RT
    assert set(moved_RT.ravel()) == {0.0, 1.0, 2.0}
    assert ((moved_RT != 0).sum(axis=1) <= 1).all()
    full_RT = without_RT == -limit
    assert (moved_RT[~full_RT] < 2).all()
    check_claim(event, 0.02, moved_RT / 0.8, np.where(full_RT, 2.0, 1.0) / 0.8, attained)
