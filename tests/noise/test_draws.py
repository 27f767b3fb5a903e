"""Draws against their distribution, on a fixed key: each bound is passed by chance with the probability given."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from dprecipe.noise import draws as draws_module
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import BLOCK, draw_gaussian, draw_noise, turn
from dprecipe.noise.entropy import Stream

COUNT = 400_001
DISTRIBUTIONS = [
    Distribution("gaussian"),
    Distribution("laplace"),
    *(Distribution("student_t", df) for df in (0.5, 2.5, 9.0, 1000.0)),
    Distribution("cauchy"),
    *(Distribution("variance_gamma", float(n)) for n in (1, 2, 5, 8)),
    Distribution("sech"),
]


@pytest.fixture(scope="module")
def draws() -> np.ndarray:
    return draw_gaussian(Stream(b"draws for the tests of gaussian!"), COUNT)


@pytest.mark.parametrize("vectorised", [False, True])
def test_a_turn_is_cosine_and_sine_of_twice_the_angle(monkeypatch: pytest.MonkeyPatch, vectorised: bool) -> None:
    """In 40 digits, at random angles and next to each quarter of a turn: the error is below 2^-49 of the radius."""
    monkeypatch.setattr(draws_module, "VECTORISED", vectorised)
    quarters = np.arange(-4, 5) * (np.pi / 4)
    near = (quarters[:, None] + np.array([0.0, 1e-300, 1e-16, -1e-16, 1e-9, -1e-9])).clip(-np.pi, np.pi).ravel()
    angles = np.concatenate([near, np.random.default_rng(1).uniform(-np.pi, np.pi, 500)])
    for size in (9.4, 1.0, 2.0**-31):
        cosine, sine = np.full(len(angles), size), angles.copy()
        turn(cosine, sine, np.empty(len(angles)))
        with mpmath.workdps(40):
            for angle, c, s in zip(angles.tolist(), cosine.tolist(), sine.tolist(), strict=True):
                twice = 2 * mpmath.mpf(angle)
                assert abs(c - size * mpmath.cos(twice)) < 2.0**-49 * size
                assert abs(s - size * mpmath.sin(twice)) < 2.0**-49 * size


def test_a_processor_without_any_extension_draws_too() -> None:
    """numpy then lists none: not even an empty list."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())
    told = subprocess.run(
        [sys.executable, "-c", "from dprecipe.noise.draws import VECTORISED; print(VECTORISED)"],
        env={**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.stdout.strip() == "False", told.stderr


def test_the_distribution_is_normal(draws: np.ndarray) -> None:
    """Kolmogorov–Smirnov at 2e-6."""
    cdf = ndtr(np.sort(draws))
    n = len(cdf)
    distance = max(np.max(np.arange(1, n + 1) / n - cdf), np.max(cdf - np.arange(n) / n))
    assert distance < math.sqrt(math.log(2 / 2e-6) / 2 / n)


def test_variance_and_tails(draws: np.ndarray) -> None:
    """Five standard errors each: 6e-7."""
    assert abs(draws.var() - 1) < 5 * math.sqrt(2 / COUNT)
    for level in (2.0, 3.0, 4.0):
        tail = 2 * ndtr(-level)
        assert abs((np.abs(draws) > level).mean() - tail) < 5 * math.sqrt(tail / COUNT)


def test_neighbours_are_uncorrelated(draws: np.ndarray) -> None:
    """Also across the two halves that one radius makes: five standard errors."""
    for lag in (1, 2, BLOCK):
        assert abs(np.mean(draws[:-lag] * draws[lag:])) < 5 / math.sqrt(COUNT)
        assert abs(np.mean((draws[:-lag] ** 2 - 1) * (draws[lag:] ** 2 - 1))) < 5 * 2 / math.sqrt(COUNT)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_any_count(count: int) -> None:
    values = draw_gaussian(Stream(bytes(32)), count)
    assert values.shape == (count,)
    assert np.isfinite(values).all()
    assert len(np.unique(values)) == count


@pytest.fixture(
    scope="module", params=DISTRIBUTIONS, ids=lambda distribution: f"{distribution.family}-{distribution.shape}"
)
def sample(request: pytest.FixtureRequest) -> tuple[Distribution, np.ndarray]:
    key = f"{request.param.family} {request.param.shape}".encode().ljust(32, b".")
    return request.param, draw_noise(request.param, Stream(key), COUNT)


def test_every_sampler_draws_from_its_distribution(sample: tuple[Distribution, np.ndarray]) -> None:
    """Kolmogorov–Smirnov, and Anderson–Darling, which weighs the tails: 1e-9 each.

    The latter beyond z by chance: sqrt(3/(π z)) exp(-z), as Σ Z_j²/(j(j+1)) has it.
    """
    distribution, draws = sample
    ordered, n = np.sort(draws), len(draws)
    below, above = distribution.cdf(ordered), distribution.cdf(-ordered)
    ranks = np.arange(1, n + 1)
    distance = max(np.max(ranks / n - below), np.max(below - (ranks - 1) / n))
    assert distance < math.sqrt(math.log(2 / 1e-9) / 2 / n)
    assert -n - np.mean((2 * ranks - 1) * (np.log(below) + np.log(above[::-1]))) < 19.3


def test_both_tails_of_every_sampler(sample: tuple[Distribution, np.ndarray]) -> None:
    """Counts beyond a level are binomial: each of eight is out of bounds with probability 1e-9."""
    distribution, draws = sample
    for tail in (1e-1, 1e-2, 1e-3, 1e-4):
        level = 1.0
        while distribution.cdf(-level) > tail:
            level *= 1.1
        low, high = binom.ppf([5e-10, 1 - 5e-10], COUNT, float(distribution.cdf(-level)))
        for side in (draws, -draws):
            assert low <= np.count_nonzero(side > level) <= high


def test_moments_of_every_sampler(sample: tuple[Distribution, np.ndarray]) -> None:
    """Six standard errors each, 2e-9, where the distribution has the moments that they need."""
    distribution, draws = sample
    variance = distribution.standard_deviation**2
    if not math.isfinite(variance):
        return
    assert abs(draws.mean()) < 6 * math.sqrt(variance / COUNT)
    assert abs(np.abs(draws).mean() - distribution.mean_absolute) < 6 * math.sqrt(
        (variance - distribution.mean_absolute**2) / COUNT
    )
    if distribution.shape != 2.5:
        squares = draws**2
        assert abs(squares.mean() - variance) < 6 * squares.std() / math.sqrt(COUNT)


def test_no_draw_of_any_sampler_tells_of_its_neighbours(sample: tuple[Distribution, np.ndarray]) -> None:
    """Correlations of P(X <= x) and of P(|X| <= |x|), whose variance is 1/12: six standard errors, 2e-9."""
    distribution, draws = sample
    for uniform in (distribution.cdf(draws) - 0.5, 0.5 - 2 * distribution.cdf(-np.abs(draws))):
        for lag in (1, 2, BLOCK):
            assert abs(np.mean(uniform[:-lag] * uniform[lag:])) < 6 / 12 / math.sqrt(COUNT)


@pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS, ids=lambda distribution: f"{distribution.family}-{distribution.shape}"
)
def test_any_count_of_any_distribution(distribution: Distribution) -> None:
    for count in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1):
        values = draw_noise(distribution, Stream(bytes(32)), count)
        assert values.shape == (count,)
        assert values.dtype == np.float64
        assert np.isfinite(values).all()
        assert len(np.unique(values)) == count


@pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS, ids=lambda distribution: f"{distribution.family}-{distribution.shape}"
)
def test_the_ends_of_the_uniforms_reach_as_far_as_documented(
    monkeypatch: pytest.MonkeyPatch, distribution: Distribution
) -> None:
    shape = distribution.shape or 1.0
    reach = {
        "gaussian": 9.4,
        "laplace": 44.3,
        "student_t": math.sqrt(shape * math.expm1(128 / shape * math.log(2))) * (1 - 1e-9),
        "cauchy": 1.1e19,
        "variance_gamma": 44.3 * shape,
        "sech": 44.6,
    }[distribution.family]
    extremes = []
    for word in (0, 2**64 - 1):
        monkeypatch.setattr(Stream, "words", lambda self, count, w=word: np.full(count, w, dtype=np.uint64))
        extremes.append(abs(float(draw_noise(distribution, Stream(bytes(32)), 1)[0])))
    assert reach <= max(extremes) < math.inf


def test_the_sign_comes_from_the_first_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    for word, sign in [(0, -1.0), (2**63 - 1, -1.0), (2**63, 1.0), (2**64 - 1, 1.0)]:
        monkeypatch.setattr(Stream, "words", lambda self, count, w=word: np.full(count, w, dtype=np.uint64))
        for family in ("laplace", "cauchy", "sech"):
            assert math.copysign(1.0, float(draw_noise(Distribution(family), Stream(bytes(32)), 1)[0])) == sign
