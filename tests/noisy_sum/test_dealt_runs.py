"""Neighbouring runs with the program's own sampler: what an attacker gets from them, beside the claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.noise.entropy import Secrets
from dprecipe.noisy_sum.batches import draw_batch
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge

RUNS, UNITS, TARGET = 20_000, 3, 2


def list_ratios(event: DealtGaussian, member: bool, secrets: Secrets, noise: np.random.Generator) -> NDArray:
    """Log likelihood ratios of runs whose gradients are 1 for one unit, if it is a member, and 0 for all others."""
    sigma = event.noise_multiplier
    moved_RT = np.zeros((RUNS, event.batches))
    for run in range(RUNS if member else 0):
        for step, batch in enumerate(draw_batch(event, UNITS, secrets.stream("sampling", run))):
            moved_RT[run, step] = float((batch == TARGET).any())
    seen_RT = moved_RT + noise.normal(0, sigma, moved_RT.shape)
    ratios: NDArray = np.log(np.exp(seen_RT / sigma**2 - 1 / (2 * sigma**2)).mean(axis=1))
    return ratios


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "steps", "delta"), [(0.6, 5, 0.05), (0.5, 4, 0.02)])
def test_simulated_runs_come_close_to_the_claim_and_not_beyond(sigma: float, steps: int, delta: float) -> None:
    """A threshold is chosen on one half of the runs, and counted on the other. A sound program fails with probability
    0.001 at most by the upper limit; the lower one is far below what is found."""
    event, secrets, noise = DealtGaussian(sigma, steps), Secrets(), np.random.default_rng(1)
    used, without = (list_ratios(event, member, secrets, noise) for member in (True, False))
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
    assert bound(0.025) >= 0.7 * claim
