"""Composition of privacy-loss distributions by FFT, exponentially tilted, every error charged.

For a tilt θ >= 0 the step's masses become p exp(θ l) / M(θ), M the moment generating function. Tilting
commutes with composition, so the composed tilted masses, which a circular FFT gives with small *absolute*
error, are turned back by exp(K(θ) - θ l) (K the sum of log M) into composed masses with small *relative*
error around the tilted mean: δ of 1e-15 is as exact as δ of 1e-2, and a million steps do no harm.

What keeps the result an upper bound of the composed hockey-stick curve:
- aliasing adds mass from outside the window and takes none away inside it;
- P-mass above the window is bounded by Chernoff and charged to δ;
- each FFT value is raised by a bound of its rounding error (Higham 2002, Theorem 24.2, for the transforms);
- P-mass at infinity is charged to δ.

Source: Koskela, Jälkö & Honkela 2020 (FFT); Gopi, Lee & Wutschitz 2021 (windows and error charges); the tilt
is Esscher's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprecipe.privacy.loss import Array, Loss

_UNIT = 2.0**-53
_SLACK = 32.0
"""An exponent: the tilted mass outside the window is at most exp(-32) = 1e-14."""

_MAX_WINDOWS = 24
_MAX_SHARE = 3
"""A limit on the bins of all windows of a composition together, over the most that one window may have. Beyond it no
further window is made, and bounds are slightly looser. The largest of the repository's recipes need 0.4."""


class WindowError(Exception):
    """The error that the composed distribution needs more bins than allowed.

    `times`: the bins needed on this grid over those allowed.
    """

    def __init__(self, times: float = 2.0) -> None:
        super().__init__(f"{times:g} times as many bins as allowed are needed")
        self.times = times


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """δ(ε) for ε between `low` and `high`, as suffix sums over the grid losses `losses`."""

    losses: Array
    masses: Array
    """Upper bounds p_j of the composed masses."""
    above: Array
    """The sums Σ_{j>=i} p_j."""
    weighted: Array
    """The sums Σ_{j>=i} p_j exp(low - l_j)."""
    charge: float
    """The mass at infinity and above the window, added to every δ."""
    centre: float
    spread: float

    @property
    def low(self) -> float:
        return float(self.losses[0])

    @property
    def high(self) -> float:
        return float(self.losses[-1])

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound of δ(ε); 1 below the window, where nothing is known."""
        if not epsilon >= self.low:
            return 1.0
        index = int(np.searchsorted(self.losses, epsilon, side="right"))
        if index == len(self.losses):
            return min(1.0, self.charge)
        if epsilon - self.low < 600:
            value = float(self.above[index]) - math.exp(epsilon - self.low) * float(self.weighted[index])
        else:  # the suffix sums of exp(low - l) have left the range of doubles
            value = float(-(self.masses[index:] @ np.expm1(epsilon - self.losses[index:])))
        return min(1.0, max(value, 0.0) * (1 + 1e-10) + 1e-14 * float(self.above[index]) + self.charge)

    def epsilon(self, delta: float) -> float | None:
        """Returns the smallest ε of the window with `delta(ε) <= delta`; None when it lies outside."""
        if self.delta(self.low) <= delta or not self.delta(self.high) <= delta:
            return None
        low, high = 0, len(self.losses) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.delta(float(self.losses[middle])) <= delta:
                high = middle
            else:
                low = middle
        left, right = float(self.losses[low]), float(self.losses[high])
        while right - left > 1e-12 * max(abs(right), 1e-12):
            middle_loss = (left + right) / 2
            if not left < middle_loss < right:
                break
            if self.delta(middle_loss) <= delta:
                right = middle_loss
            else:
                left = middle_loss
        return right


class Composition:
    """The composition of `counts[j]` steps of `losses[j]`, all on one grid: its δ(ε) and ε(δ).

    Guarantees: every answer is an upper bound for the composition of the given pairs.
    """

    def __init__(self, losses: Sequence[Loss], counts: Sequence[int], max_bins: int) -> None:
        if not losses or len({loss.step for loss in losses}) != 1:
            raise ValueError("expected at least one distribution, all on one grid")
        self._losses, self._counts, self._max_bins = tuple(losses), tuple(counts), max_bins
        self._step = losses[0].step
        self._logs = [np.log(np.maximum(loss.masses, 1e-320)) for loss in losses]
        finite = math.fsum(n * math.log1p(-min(loss.infinity, 0.5)) for loss, n in zip(losses, counts, strict=True))
        self.infinity = -math.expm1(finite)
        self._first = sum(n * loss.first for loss, n in zip(losses, counts, strict=True))
        self._last = sum(n * loss.last for loss, n in zip(losses, counts, strict=True))
        self._windows: list[Window] = []
        self._cumulants: dict[float, float] = {}

    def cumulant(self, theta: float) -> float:
        """Returns K(θ) = log E[exp(θ L); L finite] of the composed loss."""
        if theta not in self._cumulants:
            self._cumulants[theta] = math.fsum(
                n * _log_sum(logs + theta * loss.losses)
                for loss, logs, n in zip(self._losses, self._logs, self._counts, strict=True)
            )
        return self._cumulants[theta]

    def best_tilt(self, delta: float, guess: float) -> float:
        """Returns θ near `guess` whose Rényi conversion gives the least ε at δ."""

        def bound(log_theta: float) -> float:
            theta = math.exp(log_theta)
            factor = theta * math.log(theta / (1 + theta)) - math.log1p(theta)
            return (self.cumulant(theta) + factor - math.log(delta)) / theta

        best, width = math.log(guess), 0.5
        value = bound(best)
        for _ in range(40):
            candidates = [(bound(best + move), best + move) for move in (-width, width)]
            lowest, where = min(candidates)
            if lowest < value:
                value, best = lowest, where
            elif width < 0.15:
                break
            else:
                width /= 2
        return math.exp(best)

    def epsilon(self, delta: float, guess: float) -> float | None:
        """Returns an upper bound of ε >= 0 at δ; None when no window reaches δ.

        `guess` is a tilt (a Rényi order minus one) near the optimum.

        Raises:
            WindowError: more bins needed than allowed.
        """
        theta = self.best_tilt(delta, guess)
        for _ in range(8):
            window = self.window(theta)
            if window.low <= 0 and window.delta(0.0) <= delta:
                return 0.0
            epsilon = window.epsilon(delta)
            if epsilon is not None:
                return max(epsilon, 0.0)
            theta = 2 * theta if window.delta(window.high) > delta else theta / 2
        return None

    def delta(self, epsilon: float, guess: float, enough: float = 0.0) -> float:
        """Returns an upper bound of δ at ε >= 0: the first one found that is at most `enough`.

        Raises:
            WindowError: more bins needed than allowed.
        """
        bound = min(self.chernoff(epsilon, guess * 2.0**k) for k in (-1, 0, 1, 2, 4, 6))
        if bound <= enough:
            return bound
        if not self._covered(epsilon) and self._may_add_window():
            self.window(guess)
        if not self._covered(epsilon) and self._may_add_window():
            self.window(self.tilt_for(epsilon, guess))
        return min(bound, *(window.delta(epsilon) for window in self._windows))

    def _may_add_window(self) -> bool:
        """Returns True if the limits allow one more; they always allow the first."""
        bins = sum(len(window.losses) for window in self._windows)
        return len(self._windows) < _MAX_WINDOWS and bins < _MAX_SHARE * self._max_bins

    def chernoff(self, epsilon: float, theta: float) -> float:
        """Returns an upper bound of δ(ε) from the moment at one θ > 0: the improved Rényi conversion at α = θ + 1."""
        log_tail = self.cumulant(theta) - theta * epsilon + theta * math.log(theta / (1 + theta))
        return min(1.0, math.exp(min(log_tail - math.log1p(theta), 0.0)) * (1 + 1e-9) + self.infinity)

    def _covered(self, epsilon: float) -> bool:
        return any(abs(epsilon - window.centre) <= 3 * window.spread for window in self._windows)

    def tilt_for(self, epsilon: float, guess: float) -> float:
        """Returns θ >= 0 whose tilted mean is ε, or 0 if the mean is already above ε (K' increases)."""
        if self._moments(0.0)[1] >= epsilon:
            return 0.0
        low, high = 0.0, guess
        for _ in range(10):  # a bounded loss may never get there
            if self._moments(high)[1] >= epsilon:
                break
            low, high = high, 2 * high
        for _ in range(12):
            middle = (low + high) / 2
            if self._moments(middle)[1] < epsilon:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    @property
    def spread(self) -> float:
        """Standard deviation of the composed loss."""
        return math.sqrt(max(self._moments(0.0)[2], 0.0))

    def _moments(self, theta: float) -> tuple[float, float, float]:
        """Returns K, K', K'' at θ: the tilted mean and variance of the composed loss."""
        totals = np.zeros(3)
        for loss, logs, n in zip(self._losses, self._logs, self._counts, strict=True):
            l_N = loss.losses
            log_m = _log_sum(logs + theta * l_N)
            tilted_N = np.exp(logs + theta * l_N - log_m)
            mean = float(tilted_N @ l_N)
            totals += n * np.array([log_m, mean, float(tilted_N @ (l_N - mean) ** 2)])
        return float(totals[0]), float(totals[1]), float(totals[2])

    def share_of_bins(self, theta: float) -> float:
        """Returns the number of bins that the window at θ needs, over the number allowed."""
        *_, first, last = self._reach(theta)
        return (last - first + 2) / self._max_bins

    def _reach(self, theta: float) -> tuple[float, float, float, int, int]:
        """Returns K, mean and spread of the tilted composition, and the grid points between which all but exp(-32) of
        it lies."""
        k, mean, variance = self._moments(theta)
        spread = math.sqrt(max(variance, self._step**2))
        tilts = [t / spread for t in (1.0, 2.0, 3.5, 5.0, 6.5, 8.0, 10.0)]
        top = min((self.cumulant(theta + t) - k + _SLACK) / t for t in tilts)
        bottom = max(-(self.cumulant(theta - t) - k + _SLACK) / t for t in tilts)
        first, last = math.floor(bottom / self._step), math.ceil(top / self._step)
        return k, mean, spread, max(first, self._first), min(last, self._last)

    def window(self, theta: float) -> Window:
        """Returns the composed distribution around its tilted mean.

        Raises:
            WindowError: more bins needed than allowed.
        """
        k, mean, spread, first, last = self._reach(theta)
        size = _fast_size(last - first + 2)
        if size > self._max_bins:
            raise WindowError((last - first + 2) / self._max_bins)
        masses_N, raised = self._convolve(theta, size)
        masses_N = np.roll(masses_N, -(first % size))
        losses_N = self._step * (first + np.arange(size))
        # masses under P; a probability is never above 1
        log_masses_N = np.log(np.maximum(masses_N, 0.0) + raised) + (k - theta * losses_N)
        p_N = np.exp(np.minimum(log_masses_N, 0.0))
        beyond = 0.0 if first + size > self._last else math.exp(min(0.0, k - theta * float(losses_N[-1]) - _SLACK))
        window = Window(
            losses=losses_N,
            masses=p_N,
            above=np.cumsum(p_N[::-1])[::-1],
            weighted=np.cumsum((p_N * np.exp(losses_N[0] - losses_N))[::-1])[::-1],
            charge=self.infinity + beyond,
            centre=mean,
            spread=spread,
        )
        self._windows.append(window)
        return window

    def _convolve(self, theta: float, size: int) -> tuple[Array, float]:
        """Returns tilted masses of the composition modulo `size` bins, and a bound of the rounding error of each."""
        log_spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
        log_upper = np.zeros(size // 2 + 1)
        error = 8 * _UNIT * (math.log2(size) + 4)
        for loss, logs, n in zip(self._losses, self._logs, self._counts, strict=True):
            exponents = logs + theta * loss.losses
            tilted = np.exp(exponents - _log_sum(exponents))
            index = (loss.first % size + np.arange(len(tilted))) % size
            spectrum = np.fft.rfft(np.bincount(index, tilted, size))
            spectrum[np.abs(spectrum) < 1e-300] = 1e-300
            log_spectrum += n * np.log(spectrum)
            log_upper += n * np.log(np.abs(spectrum) + error)
        steps = sum(self._counts)
        size_of = np.exp(log_spectrum.real)
        masses = np.fft.irfft(np.exp(log_spectrum), size)
        transform = np.exp(log_upper) - size_of + size_of * (16 * _UNIT * (steps + 1))
        raised = 2 * float(np.sum(transform) + error * np.sum(size_of)) / size
        return masses, raised


def _log_sum(logs: Array) -> float:
    top = float(logs.max())
    return top + math.log(float(np.sum(np.exp(logs - top))))


def _fast_size(min_size: int) -> int:
    """Returns the least even 2^a 3^b 5^c >= `min_size` with b + c <= 1."""
    power = 1 << max(4, (min_size - 1).bit_length())
    return min(n for n in (power, power * 5 // 8, power * 3 // 4) if n >= min_size and n % 2 == 0)
