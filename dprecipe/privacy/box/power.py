"""A power of one coordinate's symmetrised mass, by its spectrum: see `pairs`, points 2 and 3."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.loss import Array

MAX_AT_ONCE = 1 << 21
"""The most values in a temporary table."""
HALF_WIDTH, _TRUSTED, _BETWEEN = 8.5, 5.5, 10.0
"""Distances from the centre of a tilted window, in standard deviations: its end, the range where it is precise, and the
centre of the next window."""
_NEGLIGIBLE = -60.0
"""The logarithm below which a spectrum (which is 1 at 0) is bounded and not computed."""
_STEEPEST = 500.0
"""The largest exponent of a tilt."""
UNIT = 2.0**-53


class Power:
    """The product of `counts_K[k]` coordinates with s = `s_KJ[k]`, on the grid of `step`.

    M_k(η) = Σ s_k exp(ηl) and K(η) = Σ n_k log M_k(η). M_k(1/2) = 1, the mass of the shifted density: so the s at loss
    0 need not be known, and M_k(η) - 1 is a sum of small terms.
    """

    def __init__(self, step: float, s_KJ: Array, counts_K: Array) -> None:
        self._step, self._counts_K = step, counts_K
        self._zero_K, self._s_KJ = s_KJ[:, 0], s_KJ[:, 1:]
        self._index_J = np.arange(1, s_KJ.shape[1])
        self._losses_J = step * self._index_J
        self._last_K = s_KJ.shape[1] - 1 - np.argmax(s_KJ[:, ::-1] > 0, axis=1)

    def on_coarse(self, ratio: int, tail: float) -> tuple[Array, float]:
        """Returns s on the grid `ratio` times as coarse, both sides of 0, and the mass charged to either infinity."""
        coarse = ratio * self._step
        top = -(-int(self._counts_K @ self._last_K) // ratio)  # no loss is larger
        half, eta = np.empty(0), 0.0
        log_m, centre, spread = self._tilted(eta)
        while True:
            size = fast_size(max(math.ceil(2 * HALF_WIDTH * spread / coarse) + 4, 16))
            middle = round(centre / coarse)
            masses = self._window(eta, log_m, ratio, size, middle)
            first, last = max(0, middle - size // 2), min(top + 1, middle - size // 2 + size)
            here = slice(first - middle + size // 2, last - middle + size // 2)
            half = np.append(half, np.full(max(0, last - len(half)), math.inf))
            with np.errstate(over="ignore"):
                result = masses[here] * np.exp(log_m - eta * coarse * np.arange(first, last))
            half[first:last] = np.minimum(half[first:last], result)
            reach = math.ceil((centre + _TRUSTED * spread) / coarse)
            if reach >= top:
                return np.concatenate([half[:0:-1], half]), 0.0
            steepest = _STEEPEST / float(self._losses_J[-1])
            charge = self._beyond(reach * coarse, eta, min(_TRUSTED / spread, steepest - eta))
            move = _BETWEEN / spread
            if charge <= tail or eta + move > steepest:
                return np.concatenate([half[reach:0:-1], half[: reach + 1]]), charge
            log_m, further, narrower = self._tilted(eta + move)
            while further - centre > _BETWEEN * (spread + narrower) / 2:
                move /= 1.5
                log_m, further, narrower = self._tilted(eta + move)
            eta, centre, spread = eta + move, further, narrower

    def _tilted(self, eta: float) -> tuple[float, float, float]:
        """Returns K, and the mean and standard deviation of the loss under the tilted masses."""
        m_K, log_m_K = self._moments(eta)
        l_J, s_KJ = self._losses_J, self._s_KJ
        mean_K = s_KJ @ (2 * np.sinh(eta * l_J) * l_J) / m_K
        square_K = s_KJ @ (2 * np.cosh(eta * l_J) * l_J**2) / m_K
        variance = float(self._counts_K @ np.maximum(square_K - mean_K**2, 0.0))
        log_m = math.fsum(self._counts_K * log_m_K)
        return log_m, float(self._counts_K @ mean_K), math.sqrt(variance) + 1e-6 * self._step

    def _moments(self, eta: float) -> tuple[Array, Array]:
        """Returns M_k(η) and its logarithm."""
        l_J = self._losses_J
        change_K = self._s_KJ @ (4 * np.sinh((eta + 0.5) * l_J / 2) * np.sinh((eta - 0.5) * l_J / 2))
        whole_K = self._zero_K + self._s_KJ @ (2 * np.cosh(eta * l_J))
        small_K = np.abs(change_K) < 0.5
        m_K = np.where(small_K, 1 + change_K, whole_K)
        return m_K, np.where(small_K, np.log1p(np.where(small_K, change_K, 0.0)), np.log(whole_K))

    def _beyond(self, loss: float, eta: float, further: float) -> float:
        """Returns Chernoff's bound on the mass of larger losses under the shifted density, over tilts from η
        upwards."""
        etas = [eta + further / 2**k for k in range(6)]
        logs = [math.fsum(self._counts_K * self._moments(eta)[1]) - (eta - 0.5) * loss for eta in etas if eta >= 0.5]
        return math.exp(min([*logs, 0.0]))

    def _window(self, eta: float, log_m: float, ratio: int, size: int, middle: int) -> Array:
        """Returns tilted masses at `size` points of the coarse grid around `middle`; masses elsewhere are folded in.

        Guarantees: none is below its true value.
        """
        points = size * ratio
        f_F, omitted = self._select_frequencies(eta, points)
        log_size_F, phase_F, growth_F = self._log_spectrum(eta, f_F, points)
        size_F = np.exp(log_size_F)
        error_F = np.where(growth_F < 1, size_F * np.expm1(np.minimum(growth_F, 1.0)), np.exp(log_size_F + growth_F))
        error_F += 4 * UNIT * (np.abs(log_size_F) + np.abs(phase_F) + 8) * size_F
        r_R = np.arange(1 - ratio, ratio)
        hat_R = np.sinh((ratio - np.abs(r_R)) * self._step / 2) / math.sinh(ratio * self._step / 2)
        hat_R *= np.exp(-eta * self._step * r_R)
        turned_F = 2 * math.pi / size * ((f_F % size) * (middle % size) % size)
        at_F = size_F * np.exp(1j * (turned_F - phase_F)) * (np.exp(2j * math.pi / points * np.outer(f_F, r_R)) @ hat_R)
        twice_F = np.where((f_F == 0) | (2 * f_F == points), 1.0, 2.0)
        spectrum = np.zeros(size, dtype=np.complex128)
        np.add.at(spectrum, f_F % size, twice_F * at_F)
        masses = np.roll(np.fft.ifft(spectrum).real * (size / points), size // 2)
        rounding = 8 * UNIT * (math.log2(size) + 4) * float(twice_F @ size_F)
        raised = (float(twice_F @ error_F) + omitted + rounding) * float(hat_R.sum()) / points
        uncertain = 4 * UNIT * (len(self._losses_J) + 16) * (1 + abs(log_m))  # of exp(K)
        bounded: Array = (np.maximum(masses, 0.0) + raised) * (1 + uncertain)
        return bounded

    def _select_frequencies(self, eta: float, points: int) -> tuple[NDArray[np.int64], float]:
        """Returns the frequencies f <= points/2 where the spectrum may exceed exp(`_NEGLIGIBLE`), and a bound on the
        sum of its modulus at all others, positive and negative.

        Π |φ_k|^n_k <= B^(n/2), B the mean of |φ_k|² over the n coordinates: the spectrum of a mean autocorrelation.
        """
        number = float(self._counts_K.sum())
        short = fast_size(4 * len(self._losses_J) + 2)
        squares_F = np.zeros(short // 2 + 1)
        for k, rows_KI in self._tilted_rows(eta, short):
            squares_F += self._counts_K[k] @ np.abs(np.fft.rfft(rows_KI, short, axis=1)) ** 2 / number
        correlation = np.fft.irfft(squares_F, short)
        lag = np.arange(short)
        lag = np.where(lag <= short // 2, lag, lag - short)
        mean_F = np.fft.rfft(np.bincount(lag % points, correlation, points)).real
        log_bound_F = number / 2 * np.log(np.clip(mean_F + 1e-13, 1e-13, 1.0))
        selected_F = log_bound_F > _NEGLIGIBLE
        return np.flatnonzero(selected_F), 2 * float(np.exp(log_bound_F[~selected_F]).sum())

    def _log_spectrum(self, eta: float, f_F: NDArray[np.int64], points: int) -> tuple[Array, Array, Array]:
        """Returns the logarithm of the spectrum's modulus, its phase, and a bound on the error of the logarithm.

        By sums of sines over the losses or, where there are many frequencies (so that the powers are low), by FFT.
        """
        width, length = self._s_KJ.shape
        if (width + 20) * length * len(f_F) <= 100 * width * points:
            chunks = np.array_split(f_F, 1 + length * len(f_F) // MAX_AT_ONCE)
            parts = np.concatenate([self._by_sums(eta, 2 * math.pi / points * f_G) for f_G in chunks], axis=1)
        else:
            parts = np.zeros((3, len(f_F)))
            error = 8 * UNIT * (math.log2(points) + 4)
            for k, rows_KI in self._tilted_rows(eta, points):
                wrapped_KI = np.zeros((len(rows_KI), points))
                for start in range(0, rows_KI.shape[1], points):
                    piece_KI = rows_KI[:, start : start + points]
                    wrapped_KI[:, : piece_KI.shape[1]] += piece_KI
                spectrum_KF = np.fft.rfft(wrapped_KI, axis=1)[:, f_F]
                spectrum_KF *= np.exp(2j * math.pi / points * (f_F * length % points))  # the first is at -length
                parts += _logs(self._counts_K[k], spectrum_KF.real - 1, -spectrum_KF.imag, np.full(len(f_F), error))
        return parts[0], parts[1], parts[2]

    def _by_sums(self, eta: float, omega_F: Array) -> Array:
        m_K1, s_KJ = self._moments(eta)[0][:, None], self._s_KJ
        even_J, odd_J = 2 * np.cosh(eta * self._losses_J), 2 * np.sinh(eta * self._losses_J)
        angle_JF = np.outer(self._index_J, omega_F)
        x_KF = s_KJ @ (even_J[:, None] * (-2 * np.sin(angle_JF / 2) ** 2)) / m_K1
        y_KF = s_KJ @ (odd_J[:, None] * np.sin(angle_JF)) / m_K1
        # the sum of absolute values: a sine is at most its angle and at most 1
        steep_K1, flat_K1 = (s_KJ @ (odd_J * self._index_J))[:, None], (s_KJ @ odd_J)[:, None]
        summed_KF = np.minimum(steep_K1 * omega_F, flat_K1) / m_K1 - x_KF
        return _logs(self._counts_K, x_KF, y_KF, 4 * UNIT * (len(self._index_J) + 16) * summed_KF)

    def _tilted_rows(self, eta: float, size: int) -> Iterator[tuple[slice, Array]]:
        """Yields tilted masses from the least loss to the largest, for as many coordinates at a time as fit rows of
        `size`."""
        m_K, _ = self._moments(eta)
        rows = max(1, MAX_AT_ONCE // size)
        for start in range(0, len(m_K), rows):
            k = slice(start, start + rows)
            gains_KJ = self._s_KJ[k] * np.exp(eta * self._losses_J) / m_K[k, None]
            losses_KJ = self._s_KJ[k] * np.exp(-eta * self._losses_J) / m_K[k, None]
            zero_K = np.maximum(1 - gains_KJ.sum(axis=1) - losses_KJ.sum(axis=1), 0.0)
            yield k, np.concatenate([losses_KJ[:, ::-1], zero_K[:, None], gains_KJ], axis=1)


def _logs(counts_K: Array, x_KF: Array, y_KF: Array, error_KF: Array) -> Array:
    """Returns, for Π (1 + x + iy)^n, the logarithm of the modulus, the phase, and what errors of `error_KF` add to the
    logarithm."""
    square_KF = 2 * x_KF + x_KF**2 + y_KF**2  # the squared modulus, less 1
    near_KF = square_KF > -0.5
    far_KF = np.maximum((1 + x_KF) ** 2 + y_KF**2, 1e-290)
    log_size_KF = np.where(near_KF, np.log1p(np.where(near_KF, square_KF, 0.0)), np.log(far_KF)) / 2
    grown_KF = np.log1p(error_KF * np.exp(-log_size_KF))
    logs: Array = counts_K @ np.stack([log_size_KF, np.arctan2(y_KF, 1 + x_KF), grown_KF])
    return logs


def fast_size(min_size: int) -> int:
    """Returns the least 2^a or 3 2^a that is >= `min_size`."""
    power = 1 << (min_size - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= min_size else power
