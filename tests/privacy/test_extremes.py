"""Random corners of noisy sums: ε is finite, not negative, monotone, and the two accountants agree.

A discretised loss rounds up on a grid that depends on the events, so that ε may fall by a little where it should rise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dprecipe.privacy.accountants import epsilon
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.correlation.strategies import make_bands
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)

GRID, SMALL = 0.03, 1e-5
"""The share of ε, and for the smallest the ε, by which grids of two workloads may differ."""
ADD_OR_REMOVE, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def draw(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def cut(size: int, batch: int, sigma: float) -> PermutedGaussian:
    batch = min(batch, size - 1)
    return PermutedGaussian(size, batch, min(2000, (size - 1) // batch), sigma)


def make_pass(rng: random.Random, sigma: float) -> CycleGaussian:
    previous = rng.choice([0.0, 1.0, rng.random(), 1 - draw(rng, 1e-16, 1)])
    return CycleGaussian(sigma, previous, rng.choice([1, 2, 1000]), rng.choice([0, 1, 100]))


def limit(sigma: float, batches: int, size: int, wide: float) -> CappedDealtGaussian:
    """Dealt batches with a limit of so many times their mean."""
    return CappedDealtGaussian(sigma, batches, size, min(size, 1 + int(wide * size / batches)))


def make_event(rng: random.Random, kind: str) -> Any:
    sigma = draw(rng, 1e-3, 1e6) if rng.random() < 0.5 else draw(rng, 0.3, 30)
    rate = rng.choice([1.0, 0.999999, draw(rng, 1e-9, 1), draw(rng, 1e-4, 1)])
    size = rng.choice([2, 3, 1000, 10**7])
    few = min(size, max(1, int(min(rate, 0.5) * size * rng.choice([1, 1.5, 3]))))
    made: dict[str, Callable[[], Any]] = {
        "gaussian": lambda: Gaussian(sigma),
        "poisson": lambda: PoissonGaussian(rate, sigma),
        "fixed": lambda: FixedSizeGaussian(size, rng.choice([1, rng.randint(1, size - 1)]), sigma),
        "truncated": lambda: TruncatedPoissonGaussian(min(rate, 0.5), sigma, size, few),
        "laplace": lambda: PoissonLaplace(rate, sigma),
        "dealt": lambda: DealtGaussian(sigma, rng.choice([1, 2, 13, 1000])),
        "capped": lambda: limit(sigma, rng.choice([1, 2, 13, 1000]), size, rng.choice([1, 1.2, 3])),
        "permuted": lambda: cut(max(size, 3), few, sigma),
        "cycle": lambda: make_pass(rng, sigma),
        "banded": lambda: BandedGaussian(sigma, rate, make_bands(rng.choice([1, 2, 64]), draw(rng, 1e-3, 1)).bands),
    }
    return made[kind]()


def check_corner(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    event = make_event(rng, kind)
    steps = rng.choice([1, 2, 1000, int(draw(rng, 1, 1e7)), 10**7])
    delta = rng.choice([draw(rng, 1e-30, 0.5), 1e-30, 1e-12, 1e-5, 0.5])
    # a replaced unit under Laplace noise has no bound where both steps together exceed ε = 600
    relation = ADD_OR_REMOVE if kind == "laplace" else rng.choice([ADD_OR_REMOVE, REPLACE])
    case = f"{event} {steps} {delta} {relation}"

    def cost(event: Any = event, steps: int = steps, delta: float = delta, accountant: str = "pld") -> float:
        return epsilon([Charge(event, steps)], delta, relation, accountant)

    value = cost()
    assert 0 <= value < math.inf, case
    assert value <= cost(accountant="rdp") * (1 + 1e-9), case
    assert cost(steps=2 * steps) >= value * (1 - GRID) - SMALL, case
    assert cost(delta=delta / 2) >= value * (1 - GRID) - SMALL, case
    assert cost(event=replace(event, noise_multiplier=1.1 * event.noise_multiplier)) <= value * (1 + GRID) + SMALL, case


KINDS = ("gaussian", "poisson", "fixed", "truncated", "laplace", "dealt", "permuted", "cycle", "banded")
KINDS = ("gaussian", "poisson", "fixed", "truncated", "laplace", "dealt", "capped", "permuted")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_corners(kind: str, seed: int) -> None:
    check_corner(kind, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [3, 4, 5, *range(100, 106)])
def test_more_corners(kind: str, seed: int) -> None:
    check_corner(kind, seed)
