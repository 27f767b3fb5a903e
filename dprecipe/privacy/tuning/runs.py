"""The number of runs from which the best is released: a public distribution, drawn in secret before the first run.

Notation: K the number of runs; f its generating function E[s^K]; x the probability that a run is better than the one
released, so that f'(1 - x) is the density of the release over that of one run. f' increases.

Source: Liu & Talwar 2019; Papernot & Steinke 2022, Definitions 1 and 3, Section 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.entropy import Stream

Array = NDArray[np.floating[Any]]

MAX_MEAN = 1e6
MAX_SHAPE = 100.0
"""The largest η: beyond it a truncated negative binomial distribution hardly differs from Poisson's."""
MIN_GAMMA = 1e-12
_MAX_DRAW = 10**8
_FAINTEST = 1e-290


@dataclass(frozen=True, slots=True)
class NegativeBinomialRuns:
    """The truncated negative binomial with η = `shape` >= 0 and 0 < γ = `gamma` < 1: at least one run. η = 0 is the
    logarithmic distribution, η = 1 the geometric one.

    Raises:
        ValueError: η or γ out of range.
    """

    shape: float
    gamma: float

    def __post_init__(self) -> None:
        if not 0 <= self.shape <= MAX_SHAPE:  # written so that NaN fails
            raise ValueError(f"expected 0 <= shape <= {MAX_SHAPE:g}, got {self.shape}")
        if not MIN_GAMMA <= self.gamma < 1:
            raise ValueError(f"expected {MIN_GAMMA:g} <= gamma < 1, got {self.gamma}")

    @classmethod
    def with_mean(cls, shape: float, mean: float) -> NegativeBinomialRuns:
        """Returns the distribution with a given mean, 1 < mean <= 10^6.

        Raises:
            ValueError: the shape or the mean is out of range, or no distribution has both.
        """
        if not 1 < mean <= MAX_MEAN:
            raise ValueError(f"expected 1 < mean <= {MAX_MEAN:g}, got {mean}")
        low, high = math.log(MIN_GAMMA), -1e-15
        if cls(shape, MIN_GAMMA).mean < mean:
            raise ValueError(f"no distribution of shape {shape:g} has the mean {mean:g}")
        while high - low > 1e-15 * -low:  # the mean falls as γ rises
            middle = (low + high) / 2
            if not low < middle < high:
                break
            if cls(shape, math.exp(middle)).mean > mean:
                low = middle
            else:
                high = middle
        return cls(shape, math.exp(low))

    @property
    def mean(self) -> float:
        """The mean E[K]; exact up to rounding, which matters only if γ is within 1e-12 of 1."""
        log_gamma = math.log(self.gamma)
        odds = -math.expm1(log_gamma) / self.gamma
        if self.shape == 0:
            return odds / -log_gamma
        return self.shape * odds / -math.expm1(self.shape * log_gamma)

    def generate(self, s: Array) -> Array:
        """Returns f(s), 0 <= s <= 1."""
        log_gamma, log_rest = math.log(self.gamma), np.log1p(-(1 - self.gamma) * s)
        if self.shape == 0:
            return np.asarray(log_rest / log_gamma)
        return np.asarray(np.expm1(-self.shape * log_rest) / math.expm1(-self.shape * log_gamma))

    def density(self, better: Array, others: Array) -> Array:
        """Returns f'(1 - x) for x = `better`, `others` = 1 - x."""
        return np.asarray(self.mean * (self.gamma / (self.gamma + (1 - self.gamma) * better)) ** (1 + self.shape))

    def chances(self) -> Iterator[float]:
        """Yields P[K = 0], P[K = 1], …"""
        yield 0.0
        log_first = math.log(self.mean) + (1 + self.shape) * math.log(self.gamma) - math.lgamma(1 + self.shape)
        chance = 0.0
        for k in itertools.count(1):
            if chance < _FAINTEST:  # a product that began in the denormals, or at 0, would stay wrong
                log_ratio = math.lgamma(k + self.shape) - math.lgamma(k + 1) + (k - 1) * math.log1p(-self.gamma)
                chance = math.exp(log_first + log_ratio)
            yield chance
            chance *= (1 - self.gamma) * (k + self.shape) / (k + 1)


@dataclass(frozen=True, slots=True)
class PoissonRuns:
    """The truncated Poisson: that of `rate` λ, conditional on at least one run, so that there is a model to release.

    Raises:
        ValueError: the rate is out of range.
    """

    rate: float

    def __post_init__(self) -> None:
        if not 1e-6 <= self.rate <= MAX_MEAN:
            raise ValueError(f"expected 1e-6 <= rate <= {MAX_MEAN:g}, got {self.rate}")

    @classmethod
    def with_mean(cls, mean: float) -> PoissonRuns:
        """Returns the distribution with a given mean, 1 < mean <= 10^6.

        Raises:
            ValueError: the mean is out of range.
        """
        if not 1 + 1e-6 <= mean <= MAX_MEAN:
            raise ValueError(f"expected 1 < mean <= {MAX_MEAN:g}, got {mean}")
        low, high = 1e-6, mean
        while high - low > 1e-15 * high:  # the mean rises with the rate
            middle = (low + high) / 2
            if not low < middle < high:
                break
            if cls(middle).mean > mean:
                high = middle
            else:
                low = middle
        return cls(high)

    @property
    def mean(self) -> float:
        """The mean E[K]."""
        return self.rate / self.some

    @property
    def some(self) -> float:
        """The probability that a number without truncation is at least 1."""
        return -math.expm1(-self.rate)

    def generate(self, s: Array) -> Array:
        """Returns f(s), 0 <= s <= 1."""
        return np.asarray(np.exp(self.rate * (s - 1.0)) * -np.expm1(-self.rate * s) / self.some)

    def density(self, better: Array, others: Array) -> Array:
        """Returns f'(1 - x) for x = `better`, `others` = 1 - x."""
        return np.asarray(self.mean * np.exp(-self.rate * better))

    def chances(self) -> Iterator[float]:
        """Yields P[K = 0], P[K = 1], …"""
        yield 0.0
        for k in itertools.count(1):
            yield math.exp(k * math.log(self.rate) - self.rate - math.lgamma(k + 1)) / self.some


@dataclass(frozen=True, slots=True)
class FixedRuns:
    """A fixed number of runs, which is no secret.

    Raises:
        ValueError: the number is out of range.
    """

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not 1 <= self.count <= MAX_MEAN or self.count != int(self.count):
            raise ValueError(f"expected a whole number of runs from 1 to {MAX_MEAN:g}, got {self.count}")

    @property
    def mean(self) -> float:
        return float(self.count)

    def generate(self, s: Array) -> Array:
        """Returns f(s), 0 <= s <= 1."""
        return np.asarray(np.asarray(s, dtype=np.float64) ** self.count)

    def density(self, better: Array, others: Array) -> Array:
        """Returns f'(1 - x) for x = `better`, `others` = 1 - x."""
        return np.asarray(self.count * np.asarray(others, dtype=np.float64) ** (self.count - 1))

    def chances(self) -> Iterator[float]:
        """Yields P[K = 0], P[K = 1], …"""
        for k in itertools.count():
            yield float(k == self.count)


RunDistribution = NegativeBinomialRuns | PoissonRuns | FixedRuns


@lru_cache(maxsize=256)
def make_runs(distribution: str, mean: float, shape: float | None = None) -> RunDistribution:
    """Returns the distribution with a name: `negative_binomial` (with a shape), `poisson` or `fixed`.

    Raises:
        ValueError: an unknown name, a superfluous or missing shape, or values out of range.
    """
    if (shape is not None) != (distribution == "negative_binomial"):
        raise ValueError(f"expected a shape of negative_binomial and of no other, got {distribution} and {shape}")
    if distribution == "negative_binomial" and shape is not None:
        return NegativeBinomialRuns.with_mean(shape, mean)
    if distribution == "poisson":
        return PoissonRuns.with_mean(mean)
    if distribution == "fixed":
        if not 1 <= mean <= MAX_MEAN or mean != int(mean):
            raise ValueError(f"expected a whole number of runs from 1 to {MAX_MEAN:g}, got {mean}")
        return FixedRuns(int(mean))
    raise ValueError(f"unknown distribution {distribution!r}; known: negative_binomial, poisson, fixed")


def chance_of_one(runs: RunDistribution) -> float:
    """Returns P[K = 1] = f'(0): that the search tries a single point."""
    return float(runs.density(np.array(1.0), np.array(0.0)))


def runs_quantile(runs: RunDistribution, probability: float) -> int:
    """Returns the least k with P[K <= k] >= probability, 0 < probability < 1: the number of runs to prepare for.

    Raises:
        ValueError: probability outside (0, 1).
    """
    if not 0 < probability < 1:
        raise ValueError(f"expected 0 < probability < 1, got {probability}")
    total = 0.0
    for k, chance in enumerate(runs.chances()):
        total += chance
        if total >= probability or k >= _MAX_DRAW:
            return k
    raise AssertionError("the chances never end")


def draw_runs(runs: RunDistribution, stream: Stream) -> int:
    """Draws K from a secret stream that draws nothing else. Call it once, before the first run.

    Guarantees: the distribution of K up to 1e-12 in total variation (52 bits of a uniform, and rounding).
    """
    return runs.count if isinstance(runs, FixedRuns) else runs_quantile(runs, float(stream.uniform(1)[0]))
