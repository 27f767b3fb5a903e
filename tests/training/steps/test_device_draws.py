"""Draws that a GPU makes of its keystream, made on the CPU: those of the CPU's own functions, word by word."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Stream
from dprecipe.training.steps.chacha import Keystream
from dprecipe.training.steps.device_draws import draw_from

CPU = torch.device("cpu")
DISTRIBUTIONS = [
    Distribution("laplace"),
    Distribution("cauchy"),
    Distribution("sech"),
    Distribution("student_t", 9.0),
    Distribution("student_t", 1.0),
]
DISTRIBUTIONS += [Distribution("variance_gamma", 1.0), Distribution("variance_gamma", 3.0)]
KEY = bytes(range(32))
named = pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS, ids=lambda distribution: f"{distribution.family}-{distribution.shape}"
)


class Words:
    """In the place of a keystream: words that are given."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, dtype="<u8")

    def next(self, count: int) -> torch.Tensor:
        first, self.words = self.words[: 8 * count], self.words[8 * count :]
        return torch.from_numpy(np.resize(first, 8 * count).view("<i4").copy())


@named
@pytest.mark.parametrize("count", [8, 1000, 1 << 15])  # whole blocks, of which nothing is left
def test_draws_are_those_of_the_same_words_on_the_cpu(distribution: Distribution, count: int) -> None:
    """Same sign, and the same size but for the last bits of a logarithm, a sine or a tangent."""
    result = draw_from(distribution, Keystream(KEY, CPU), count)
    expected = draw_noise(distribution, Stream(KEY), count)
    assert (result.dtype, result.shape) == (torch.float64, (count,))
    # Where terms nearly cancel, what is left has their error.
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
@named
@pytest.mark.parametrize("count", [1, 7, 9, 100_001])
def test_every_family_has_its_distribution(distribution: Distribution, count: int) -> None:
    """Kolmogorov–Smirnov: 1e-9. Of two draws from one keystream none is the other's."""
    blocks = Keystream(KEY, CPU)
    one, other = (draw_from(distribution, blocks, count).numpy() for _ in range(2))
    assert not np.intersect1d(one, other).size
    ordered, ranks = np.sort(one), np.arange(count)
    below = distribution.cdf(ordered)
    distance = float(max(np.max((ranks + 1) / count - below), np.max(below - ranks / count)))
    assert distance < math.sqrt(math.log(2 / 1e-9) / 2 / count)


@pytest.mark.parametrize("family", ["laplace", "cauchy", "sech"])
def test_the_ends_of_a_uniform_are_finite_and_far_out(family: str) -> None:
    words = Words(0, 1 << 63, (1 << 63) - 1, (1 << 64) - 1, 0, 0, 0, 0)
    result = draw_from(Distribution(family), words, 4).tolist()  # type: ignore[arg-type]
    least = 44.0 if family != "cauchy" else 1e19
    assert result[0] < -least
    assert result[1] > least
    assert -1e-15 < result[2] <= 0 <= result[3] < 1e-15


@pytest.mark.parametrize("df", [1.0, 9.0])
def test_the_ends_of_a_radius_are_finite(df: float) -> None:
    words = Words(*([0, (1 << 63) - 1] * 4), *([(1 << 64) - 1, 0] * 4))
    assert bool(torch.isfinite(draw_from(Distribution("student_t", df), words, 8)).all())


def test_normal_noise_is_made_elsewhere() -> None:
    with pytest.raises(ValueError, match="not made here"):
        draw_from(Distribution("gaussian"), Keystream(KEY, CPU), 8)
