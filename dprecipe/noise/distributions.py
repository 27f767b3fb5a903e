"""The distributions of noise: density, distribution function, likelihood ratio of a shift, information.

All are symmetric about 0 and fall with distance from it, so the corner of a box is its worst case (`privacy.box`). Here
they have scale 1: noise of scale s is s times a draw, and a shift τ is in units of s.

Pure numpy; scipy is loaded only where a distribution function needs it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dprecipe.noise import families

Array = NDArray[np.float64]

_CATALAN = 0.915965594177219015
_NARROW = 0.03
"""The width of an interval below which its mass is integrated; above, the mass is a difference of tails."""
_FARTHEST = 1e30
"""An x where likelihood ratios have reached their limits; its powers do not overflow."""


@dataclass(frozen=True)
class Distribution:
    """A noise distribution of scale 1, by the name of its family and its shape (df of student_t, λ of variance_gamma).

    Raises:
        ValueError: there is no such distribution (`dprecipe.noise.families.check`).
    """

    family: str
    shape: float | None = None

    def __post_init__(self) -> None:
        families.check(self.family, self.shape)

    def log_density(self, x: ArrayLike) -> Array:
        """Returns log z(x), elementwise; -inf at the infinities."""
        return self._form.log_density(np.abs(np.asarray(x, dtype=np.float64)))

    def cdf(self, x: ArrayLike) -> Array:
        """Returns P(X <= x), elementwise, with full relative precision in the lower tail."""
        x_N = np.asarray(x, dtype=np.float64)
        tail_N = self._form.tail(np.abs(x_N))
        return np.where(x_N <= 0, tail_N, 1 - tail_N)

    def interval(self, a: ArrayLike, b: ArrayLike) -> Array:
        """Returns P(a < X <= b), elementwise, for a <= b, infinities allowed.

        Guarantees: 1e-11 relative precision in both tails and for narrow intervals, as long as density and mass are
        normal floating-point numbers; never negative.
        """
        a_N, b_N = np.broadcast_arrays(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64))
        with np.errstate(invalid="ignore"):  # from an infinity to itself
            narrow_N = (b_N - a_N <= _NARROW) & ((a_N >= 0) | (b_N <= 0))  # no kink inside
        mass_N = np.empty(a_N.shape)
        mass_N[narrow_N] = self._mass_by_quadrature(a_N[narrow_N], b_N[narrow_N])
        mass_N[~narrow_N] = self._mass_by_tails(a_N[~narrow_N], b_N[~narrow_N])
        return mass_N

    def log_ratio(self, x: ArrayLike, tau: ArrayLike) -> Array:
        """Returns log z(x - τ)/z(x), elementwise, τ >= 0; its limits at the infinities (the Gaussian has none at
        τ = 0).

        Guarantees: an error of about 1e-16 times the largest value for the same τ, however small τ is.
        """
        x_N, tau_N = np.asarray(x, dtype=np.float64), np.asarray(tau, dtype=np.float64)
        return self._form.log_ratio(x_N, tau_N)

    def turning_points(self, tau: float) -> tuple[float, ...]:
        """Returns the x, increasing, where `log_ratio(x, τ)` has an extremum or a kink; between them it is monotone."""
        return self._form.turning_points(tau) if tau > 0 else ()

    def largest_loss(self, tau: float) -> float:
        """Returns sup over x of |log z(x - τ)/z(x)|: the most that one coordinate shifted by τ >= 0 costs."""
        return self._form.largest_loss(tau)

    @property
    def fisher(self) -> float:
        """Fisher information of a shift, ∫ z'²/z: what small shifts cost. At scale s it is 1/s² times this."""
        return self._form.fisher

    @property
    def standard_deviation(self) -> float:
        """sqrt(E X²); infinity where there is none."""
        return self._form.standard_deviation

    @property
    def mean_absolute(self) -> float:
        """E |X|; infinity where there is none."""
        return self._form.mean_absolute

    @property
    def _form(self) -> _Form:
        return _form(self.family, self.shape)

    def _mass_by_quadrature(self, a_N: Array, b_N: Array) -> Array:
        """Returns the mass of an interval by five-point Gauss-Legendre: its relative error, 4e-13 (x width)^10 for the
        steepest distribution, the Gaussian, is that of rounding."""
        nodes_G, weights_G = _gauss(5)
        half_N = (b_N - a_N) / 2
        x_NG = (a_N + half_N)[:, None] + half_N[:, None] * nodes_G
        mass_N: Array = half_N * (np.exp(self._form.log_density(np.abs(x_NG))) @ weights_G)
        return mass_N

    def _mass_by_tails(self, a_N: Array, b_N: Array) -> Array:
        low_N, high_N = self._form.tail(np.abs(a_N)), self._form.tail(np.abs(b_N))
        same_N = np.where(a_N >= 0, low_N - high_N, high_N - low_N)
        across_N = (a_N < 0) & (b_N > 0)
        return np.maximum(np.where(across_N, 1 - low_N - high_N, same_N), 0.0)


class _Form(Protocol):
    """The formulas that each family provides; `u` is |x|."""

    def log_density(self, u: Array) -> Array: ...
    def tail(self, u: Array) -> Array: ...
    def log_ratio(self, x: Array, tau: Array) -> Array: ...
    def turning_points(self, tau: float) -> tuple[float, ...]: ...
    def largest_loss(self, tau: float) -> float: ...

    @property
    def fisher(self) -> float: ...
    @property
    def standard_deviation(self) -> float: ...
    @property
    def mean_absolute(self) -> float: ...


@lru_cache(maxsize=64)
def _form(family: str, shape: float | None) -> _Form:
    if family == "gaussian":
        return _Gaussian()
    if family == "sech":
        return _Sech()
    if family in ("student_t", "cauchy"):
        return _StudentT(shape or 1.0)
    return _LaplaceSum(int(shape or 1))


class _Gaussian:
    """The density exp(-u²/2) / sqrt(2π)."""

    fisher = 1.0
    standard_deviation = 1.0
    mean_absolute = math.sqrt(2 / math.pi)

    def log_density(self, u: Array) -> Array:
        return -u * u / 2 - math.log(2 * math.pi) / 2

    def tail(self, u: Array) -> Array:
        from scipy import special

        return cast(Array, special.ndtr(-u))

    def log_ratio(self, x: Array, tau: Array) -> Array:
        return tau * (x - tau / 2)

    def turning_points(self, tau: float) -> tuple[float, ...]:
        return ()

    def largest_loss(self, tau: float) -> float:
        return math.inf if tau > 0 else 0.0


class _StudentT:
    """The density (1 + u²/df)^(-(df+1)/2), normalised; df = 1 is Cauchy's distribution."""

    def __init__(self, df: float) -> None:
        self.df = df
        log_gammas = math.lgamma((df + 1) / 2) - math.lgamma(df / 2)
        self.log_peak = log_gammas - math.log(math.pi * df) / 2
        self.fisher = (df + 1) / (df + 3)
        self.standard_deviation = math.sqrt(df / (df - 2)) if df > 2 else math.inf
        self.mean_absolute = 2 * df / (df - 1) * math.exp(self.log_peak) if df > 1 else math.inf

    def log_density(self, u: Array) -> Array:
        return self.log_peak - (self.df + 1) * np.log(np.hypot(1.0, u / math.sqrt(self.df)))

    def tail(self, u: Array) -> Array:
        if self.df == 1:
            return np.arctan2(1.0, u) / math.pi
        from scipy import special

        near = np.minimum(u, 1.0) ** 2 / self.df
        far = math.sqrt(self.df) / np.maximum(u, 1.0)
        center = 0.5 - 0.5 * special.betainc(0.5, self.df / 2, near / (1 + near))
        outside = 0.5 * special.betainc(self.df / 2, 0.5, far * far / (1 + far * far))
        tail: Array = np.where(u < 1, center, outside)
        return tail

    def log_ratio(self, x: Array, tau: Array) -> Array:
        x = np.clip(x, -_FARTHEST, _FARTHEST)
        excess = tau * (2 * x - tau)  # x² - (x-τ)²
        from_origin, from_shifted = self.df + x * x, self.df + (x - tau) ** 2
        grown = np.log1p(np.abs(excess) / np.where(excess > 0, from_shifted, from_origin))
        signed: Array = np.copysign((self.df + 1) / 2 * grown, excess)
        return signed

    def turning_points(self, tau: float) -> tuple[float, ...]:
        """Returns the roots of x² - τx - df = 0."""
        high = (tau + math.hypot(tau, 2 * math.sqrt(self.df))) / 2
        return -self.df / high, high

    def largest_loss(self, tau: float) -> float:
        return (self.df + 1) * math.asinh(tau / (2 * math.sqrt(self.df)))


class _LaplaceSum:
    """The sum of λ Laplace variables, variance-gamma with whole λ: a polynomial of degree λ-1 times exp(-u).

    Source: Kotz, Kozubowski & Podgórski 2001, The Laplace Distribution and Generalizations, (2.3.25).
    """

    def __init__(self, shape: int) -> None:
        n = shape - 1
        factorial = math.factorial
        # Lowest power first.
        self.density = [
            factorial(2 * n - m) / (factorial(n) * factorial(m) * factorial(n - m) * 2.0 ** (2 * n + 1 - m))
            for m in range(n + 1)
        ]
        # ∫ from u: exp(-u) times the sum of the polynomial's derivatives.
        self.survival = [
            sum(self.density[j] * factorial(j) for j in range(m, n + 1)) / factorial(m) for m in range(n + 1)
        ]
        self.standard_deviation = math.sqrt(2.0 * shape)
        self.mean_absolute = 2 * sum(self.density[m] * factorial(m + 1) for m in range(n + 1))
        self.fisher = self._fisher() if shape > 1 else 1.0

    def _fisher(self) -> float:
        """Returns 2 ∫ (p' - p)²/p exp(-u) over u > 0: smooth there, so by Gauss-Legendre on panels."""
        slope = [m * self.density[m] for m in range(1, len(self.density))]
        nodes_G, weights_G = _gauss(24)
        u_PG = np.arange(160)[:, None] / 2 + (nodes_G + 1) / 4
        p_PG = _polynomial(self.density, u_PG)
        return float(np.sum(2 * (_polynomial(slope, u_PG) - p_PG) ** 2 / p_PG * np.exp(-u_PG) * weights_G / 4))

    def log_density(self, u: Array) -> Array:
        u = np.asarray(u)
        return np.log(_polynomial(self.density, np.minimum(u, _FARTHEST))) - u

    def tail(self, u: Array) -> Array:
        return _polynomial(self.survival, np.minimum(u, _FARTHEST)) * np.exp(-u)

    def log_ratio(self, x: Array, tau: Array) -> Array:
        x = np.clip(x, -_FARTHEST, _FARTHEST)
        nearer = np.clip(2 * x - tau, -tau, tau)  # |x| - |x-τ|, exact where they are close
        origin, shifted = np.abs(x), np.abs(x - tau)
        quotient = _difference_quotient(self.density, origin, shifted)
        grown = np.log1p(np.abs(nearer) * quotient / _polynomial(self.density, np.minimum(origin, shifted)))
        ratio: Array = np.copysign(np.abs(nearer) - grown, nearer)
        return ratio

    def turning_points(self, tau: float) -> tuple[float, ...]:
        return 0.0, tau

    def largest_loss(self, tau: float) -> float:
        return tau


class _Sech:
    """The density sech(u) / π."""

    fisher = 0.5
    standard_deviation = math.pi / 2
    mean_absolute = 4 * _CATALAN / math.pi

    def log_density(self, u: Array) -> Array:
        return math.log(2 / math.pi) - u - np.log1p(np.exp(-2 * u))

    def tail(self, u: Array) -> Array:
        return 2 / math.pi * np.arctan(np.exp(-u))

    def log_ratio(self, x: Array, tau: Array) -> Array:
        x = np.clip(x, -_FARTHEST, _FARTHEST)
        # cosh(y+h)/cosh(y-h) = (1 + tanh y tanh h)/(1 - tanh y tanh h)
        mild = 2 * np.arctanh(np.tanh(x - tau / 2) * np.tanh(np.minimum(tau / 2, 1.0)))
        steep = np.log1p(np.exp(-2 * np.abs(x))) - np.log1p(np.exp(-2 * np.abs(x - tau)))
        ratio: Array = np.where(tau < 2, mild, np.clip(2 * x - tau, -tau, tau) + steep)
        return ratio

    def turning_points(self, tau: float) -> tuple[float, ...]:
        return ()

    def largest_loss(self, tau: float) -> float:
        return tau


@lru_cache(maxsize=8)
def _gauss(count: int) -> tuple[Array, Array]:
    """Returns Gauss-Legendre nodes and weights on [-1, 1]."""
    nodes_G, weights_G = np.polynomial.legendre.leggauss(count)
    return nodes_G, weights_G


def _polynomial(coefficients: list[float], u: Array) -> Array:
    """Returns Σ c_m u^m; zero where there are no coefficients."""
    value = np.zeros_like(u)
    for coefficient in reversed(coefficients):
        value = value * u + coefficient
    return value


def _difference_quotient(coefficients: list[float], a: Array, b: Array) -> Array:
    """Returns (p(b) - p(a)) / (b - a), or p'(a) where a = b, without cancellation if all coefficients are positive."""
    at_a, value = np.zeros_like(a), np.zeros_like(a + b)
    for coefficient in reversed(coefficients[1:]):
        at_a = at_a * a + coefficient
        value = value * b + at_a
    return value
