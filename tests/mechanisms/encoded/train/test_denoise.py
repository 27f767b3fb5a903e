"""The step multiplier against its golden figures, the plain formula, and what noise and signal make of it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dprecipe.mechanisms.encoded.train import run as denoise
from dprecipe.mechanisms.encoded.train.run import kolmogorov_smirnov
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Stream

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "encoding.json").read_text(encoding="utf-8"))["A_ks"]
DISTRIBUTIONS = [
    Distribution("gaussian"),
    Distribution("laplace"),
    Distribution("student_t", 9.0),
    Distribution("cauchy"),
    Distribution("variance_gamma", 2.0),
    Distribution("sech"),
]


def plainly(values: NDArray[np.float64], distribution: Distribution) -> float:
    """The definition, every value evaluated."""
    count = len(values)
    cdf = distribution.cdf(np.sort(values))
    ranks = np.arange(count)
    return float(np.maximum((ranks + 1) / count - cdf, cdf - ranks / count).max())


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['family']}-{row['a']}-{row['b']}")
def test_golden(row: dict[str, float | str]) -> None:
    family = str(row["family"])
    distribution = Distribution("variance_gamma", 2.0) if family == "vg2" else Distribution(family, row["nu"])  # type: ignore[arg-type]
    sample = float(row["a"]) * stats.norm.ppf((np.arange(1, 201) - 0.5) / 200) + float(row["b"])
    (distance,) = kolmogorov_smirnov(torch.from_numpy(sample * 3), distribution, 3 * float(row["scale"]))
    assert distance == pytest.approx(row["ks"], abs=1e-12)


@settings(deadline=None, derandomize=True)
@given(
    st.integers(1, 2000),
    st.sampled_from(DISTRIBUTIONS),
    st.floats(-3, 3),
    st.floats(0.01, 5),
    st.integers(0, 3),
    st.integers(0, 2**32 - 1),
)
def test_equals_the_definition(
    count: int, distribution: Distribution, mean: float, scale: float, decimals: int, seed: int
) -> None:
    """Rounded values tie; a distance between the values that are looked at first has to be found all the same."""
    values = np.round(mean + scale * np.random.default_rng(seed).standard_normal(count), decimals)
    (distance,) = kolmogorov_smirnov(torch.from_numpy(values), distribution, 1.0)
    assert distance == pytest.approx(plainly(values, distribution), abs=1e-12)


@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("groups", [None, (1, 16, 17, 4000, 966)])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
def test_sorted_on_a_device_it_is_the_same_to_the_bit(
    distribution: Distribution, groups: tuple[int, ...] | None, shrink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sum on CUDA goes through; little of it is fetched."""
    noisy = torch.from_numpy(1.7 * draw_noise(distribution, Stream(b"on a device".ljust(32)), 5000)) + 0.3
    noisy[::7] = noisy[::7].round()
    before = noisy.clone()
    expected = kolmogorov_smirnov(noisy, distribution, 1.7, groups, shrink=shrink)
    fetched = []
    real = denoise._fetch_from

    def noted(ordered: Tensor) -> denoise.At:
        at = real(ordered)
        return lambda ranks: fetched.append(len(ranks)) or at(ranks)  # type: ignore[func-returns-value, return-value]

    monkeypatch.setattr(denoise, "_fetch_from", noted)
    monkeypatch.setattr(denoise, "sorts_on_device", lambda device: True)
    assert kolmogorov_smirnov(noisy, distribution, 1.7, groups, shrink=shrink) == expected
    assert torch.equal(noisy, before)
    assert 5000 / 16 <= sum(fetched) < 5000 / 2


def test_on_a_cpu_sums_are_sorted_by_numpy() -> None:
    assert not denoise.sorts_on_device(torch.device("cpu"))
    assert denoise.sorts_on_device(torch.device("cuda"))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.family)
def test_of_noise_alone_the_mean_is_the_null_value(distribution: Distribution) -> None:
    """400 times 1,000 draws: the mean has standard error 0.013, so 0.065 is five of them (6e-7 each)."""
    rows, count = 400, 1000
    draws = torch.from_numpy(draw_noise(distribution, Stream(b"draws for the tests of denoising"), rows * count))
    mean = sum(kolmogorov_smirnov(draws, distribution, 1.0, [count] * rows)) / rows
    assert mean * math.sqrt(count) == pytest.approx(0.86, abs=0.065)


def test_grows_with_the_signal_and_shrinks_to_nothing_without() -> None:
    """Noise plus Gaussian signal is Gaussian, so the distance is known; within 2/sqrt(count) but for 7e-4 each."""
    distribution, random, count = Distribution("gaussian"), np.random.default_rng(1), 20_000
    noise, signal = random.standard_normal(count), random.standard_normal(count)
    grid = np.linspace(0, 5, 100_001)
    actual = []
    for ratio in (0.3, 1.0, 3.0):
        (distance,) = kolmogorov_smirnov(torch.from_numpy(noise + ratio * signal), distribution, 1.0)
        exact = float((distribution.cdf(grid) - distribution.cdf(grid / math.hypot(1, ratio))).max())
        assert distance == pytest.approx(exact, abs=2 / math.sqrt(count))
        actual.append(distance)
    assert actual == sorted(actual)
    shrunk = kolmogorov_smirnov(torch.from_numpy(noise + signal), distribution, 1.0, shrink=True)[0]
    assert shrunk == pytest.approx(actual[1] - 0.87 / math.sqrt(count), abs=1e-15)
    assert kolmogorov_smirnov(torch.from_numpy(np.linspace(-2, 2, 9)), distribution, 1.0, shrink=True) == (0.0,)


def test_groups_are_each_on_their_own() -> None:
    distribution = Distribution("laplace")
    noisy = torch.from_numpy(np.random.default_rng(2).standard_normal(60))
    actual = kolmogorov_smirnov(noisy, distribution, 0.7, [10, 1, 49], shrink=True)
    parts = (noisy[:10], noisy[10:11], noisy[11:])
    assert actual == tuple(kolmogorov_smirnov(part, distribution, 0.7, shrink=True)[0] for part in parts)
    assert kolmogorov_smirnov(noisy, distribution, 0.7, [60]) == kolmogorov_smirnov(noisy, distribution, 0.7)


@pytest.mark.parametrize("values", [[0.0], [1e300, -1e300], [5.0] * 40, [-1e-300] * 3])
def test_stays_between_zero_and_one(values: list[float]) -> None:
    for distribution in DISTRIBUTIONS:
        for shrink in (False, True):
            (distance,) = kolmogorov_smirnov(
                torch.tensor(values, dtype=torch.float64), distribution, 0.5, shrink=shrink
            )
            assert 0 <= distance <= 1


def test_leaves_the_noisy_sum_as_it_was() -> None:
    noisy = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    before = noisy.clone()
    kolmogorov_smirnov(noisy, Distribution("sech"), 2.0, [20, 30])
    assert torch.equal(noisy, before)
