"""The pair of a sum within a box: a product over millions of coordinates, on one grid.

One coordinate moved by τ is the pair of z(x-τ) against z(x). Its box is worst at the corner, so the whole release is
dominated by the product over the coordinates of the box (`curves` has the argument).

Reflection about τ/2 swaps the two densities, so every pair here is its own mirror image. Written as

    s(l) = p(l) exp(-l/2),   l the loss, p its mass under the shifted density,

it is symmetric, s(-l) = s(l); products of pairs are convolutions of s; and connecting the dots (`loss`), which keeps
both masses of a loss r between two points of a grid of step g, shares s between them like sinh(g-r)/2 and sinh(r/2):
on a grid it is a convolution as well, with the hat sinh((g-|r|)/2) / sinh(g/2).

1. Coordinates on a grid so fine that all their dots together add `_INFLATION` to the variance of the loss. Between
   two x with no turning point between them all losses lie between the losses at both.
2. Their product by its spectrum, at the few frequencies where it is not negligible. What the spectrum of a coordinate
   lacks of 1 is summed as such, so that its n-th power is as exact as itself; the rest of the frequencies is bounded
   by the mean square of the spectra (inequality of arithmetic and geometric means).
3. The hat, and back to losses on a coarse grid. The error is small beside the largest mass; so this is repeated for
   masses tilted by exp(η l), which makes others the largest, and the smallest of the bounds is kept.
4. Shifts of quite different sizes are done apart, on fine grids of their own, and convolved at last.

Everything is rounded up: dots dominate, aliasing adds, errors are added, tails go to ±infinity by Chernoff's bound.

Axes: K different shifts, J losses of a grid above 0, F frequencies.

Source: Nasr, Shokri & Houmansadr 2020 (the mechanism); Doroshenko et al. 2022 (dots); Koskela, Jälkö & Honkela 2020
(FFT); the tilt is Esscher's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.noise.laws import Law
from dprecipe.privacy.box.box import BoxSum
from dprecipe.privacy.loss import (
    LARGEST_LOSS,
    MAX_BINS,
    Array,
    GridError,
    Loss,
    LossPair,
    NoPairError,
    sampled,
    sampled_added,
)

_INFLATION = 3e-5
"""Share of the variance of the loss that the dots of the coordinates add; those of the product add less."""
_COARSE = 3e-3
"""Step of the product's grid over the standard deviation of its loss."""
_SPAN = 16.0
"""Shifts that differ by more than this factor are done apart."""
_MOST_BANDS = 6
_FINEST = 1 << 23
"""Most points of a fine grid: enough for 3e7 coordinates."""
_COARSEST = 5.0
"""How much coarser than it should be a fine grid may be, for up to 1e9 coordinates."""
_MOST_VALUES = 1 << 24
_AT_ONCE = 1 << 21
"""Values of a temporary table."""
_CONVOLVED = 1e8
"""About half the multiplications up to which a product is done coordinate by coordinate."""
_HALF_WIDTH, _TRUSTED, _BETWEEN = 8.5, 5.5, 10.0
"""Of a tilted window, in standard deviations: where it ends, how far it is precise, where the next one is centred."""
_NEGLIGIBLE = -60.0
"""Log of a spectrum (which is 1 at 0) that is bounded and not computed."""
_STEEPEST = 500.0
"""Largest exponent of a tilt."""
_TAILS = (1e-40, 1e-100, 1e-200)
"""Of the products that are kept: one serves all questions that need no deeper tail."""
_UNIT = 2.0**-53


def box_pair(box: BoxSum, tail: float) -> Loss:
    """The sum with the unit in it against the sum without, everybody taking part: its own mirror image.

    Guarantees: dominates the true pair, with an ε less than 1e-4 (relative) above its, 1e-3 beyond 3e7 coordinates;
    `tail` or 1e-200, whichever is more, is charged to either infinity at most.

    Raises:
        NoPairError: exchanged codes, losses beyond what doubles can hold, or too many points.
    """
    if box.exchanged:
        raise NoPairError
    law = Law(box.family, box.shape)
    deepest = next((bucket for bucket in _TAILS if bucket <= tail), _TAILS[-1])
    step, half_N, charge = _product(law, box.shifts, box.noise_multiplier, deepest)
    losses_N = step * np.arange(len(half_N))
    above_N = charge + np.append(np.cumsum((half_N * np.exp(losses_N / 2))[:0:-1])[::-1], 0.0)
    last = int(np.argmax(above_N <= max(tail / 2, charge)))
    if losses_N[last] > LARGEST_LOSS:
        raise NoPairError
    losses_N = np.concatenate([-losses_N[last:0:-1], losses_N[: last + 1]])
    masses_N = np.concatenate([half_N[last:0:-1], half_N[: last + 1]]) * np.exp(losses_N / 2)
    charged = 2 * float(above_N[last])  # both ends: a mass with no other to go with it costs most
    return Loss(step, -last, masses_N, charged, charged)


def box_losses(box: BoxSum, step: float, tail: float) -> LossPair:
    """One step, sampled or not, when a unit is removed, and when one is added, on the grid of `step`.

    Raises:
        GridError: too many points.
        NoPairError: as `box_pair`.
    """
    q, whole = box.sampling_rate, box_pair(box, tail)
    largest = float(whole.losses[-1])
    span = 2 * largest if q == 1 else math.log1p(q * math.expm1(largest)) - math.log1p(-q)
    if span > MAX_BINS * step:
        raise GridError
    return LossPair(sampled(whole, q, step), sampled_added(whole, q, step))


@lru_cache(maxsize=64)
def _product(
    law: Law, shifts: tuple[tuple[float, int], ...], noise_multiplier: float, tail: float
) -> tuple[float, Array, float]:
    """Step of the grid, s at its losses from 0 up, and a bound of the mass above them."""
    with np.errstate(over="ignore"):
        bounds_K, counts_K = np.array([pair for pair in shifts if pair[0] > 0], dtype=np.float64).T
        taus_K = bounds_K / noise_multiplier
    if not (taus_K[-1] > 1e-100 and law.largest_loss(float(taus_K[-1])) < LARGEST_LOSS):
        raise NoPairError
    taus_K = np.maximum(taus_K, 1e-12 * taus_K[-1])  # larger shifts cost more
    means_K, spreads_K = _typical(law, taus_K)
    variance = float(counts_K @ spreads_K**2)
    if not (variance > 0 and float(counts_K @ means_K) < LARGEST_LOSS):
        raise NoPairError
    step = _COARSE * math.sqrt(variance)
    least = max(taus_K[-1] * _SPAN ** (1 - _MOST_BANDS), taus_K[0])
    band_K = np.floor(np.log(taus_K[-1] / np.maximum(taus_K, least)) / math.log(_SPAN)).astype(np.int64)
    bands = [np.flatnonzero(band_K == band) for band in np.unique(band_K)]
    fines = [_fine_step(spreads_K[here], counts_K[here], variance / len(bands)) for here in bands]
    whole, charge = np.ones(1), 0.0
    for here, fine in zip(bands, fines, strict=True):
        part, charged = _band(law, taus_K[here], counts_K[here], step, fine, tail / len(bands))
        whole, charge = np.convolve(whole, part), charge + charged
    half = whole[len(whole) // 2 :]
    half.flags.writeable = False
    return step, half, charge


def _typical(law: Law, taus_K: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each coordinate's loss, about: they choose the grids."""
    edges_N = np.sinh(np.linspace(-6.0, 6.0, 257))
    masses_N = law.interval(edges_N[:-1], edges_N[1:])
    losses_KN = law.log_ratio((edges_N[:-1] + edges_N[1:]) / 2 + taus_K[:, None], taus_K[:, None])
    means_K = losses_KN @ masses_N
    return means_K, np.sqrt((losses_KN - means_K[:, None]) ** 2 @ masses_N)


def _fine_step(spreads_K: Array, counts_K: Array, others: float) -> float:
    """How fine a grid these coordinates need: their dots may add a share of their own variance, and a bit of the whole.

    A dot adds at most h²/6 on average to the variance of its loss, and at most h |l|.

    Raises:
        NoPairError: too fine.
    """
    number, variance = float(counts_K.sum()), float(counts_K @ spreads_K**2)
    allowed = _INFLATION * (0.9 * variance + 0.1 * others)
    fine = max(math.sqrt(6 * allowed / number), allowed / float(counts_K @ spreads_K))
    finest = 2 * _HALF_WIDTH * math.sqrt(variance) / _FINEST
    if finest > _COARSEST * fine:
        raise NoPairError
    return max(fine, finest)


def _band(law: Law, taus_K: Array, counts_K: Array, step: float, fine: float, tail: float) -> tuple[Array, float]:
    """s of the product on the grid of `step`, both sides of 0, and what is charged to either infinity."""
    number, steepest = float(counts_K.sum()), law.largest_loss(float(taus_K[-1]))
    if fine >= step and number * (number - 1) * (steepest / step + 1) ** 2 <= _CONVOLVED:
        whole = np.ones(1)
        for tau, count in zip(taus_K.tolist(), counts_K.tolist(), strict=True):
            half = _coordinate(law, tau, step)
            one = np.concatenate([half[:0:-1], half])
            for _ in range(int(count)):
                whole = np.convolve(whole, one)
        return whole, 0.0
    ratio = _fast(math.ceil(step / fine))
    fine = step / ratio
    if len(taus_K) * steepest / fine > _MOST_VALUES:
        raise NoPairError
    halves = [_coordinate(law, tau, fine) for tau in taus_K.tolist()]
    s_KJ = np.zeros((len(halves), max(map(len, halves))))
    for row, half in zip(s_KJ, halves, strict=True):
        row[: len(half)] = half
    return _Power(fine, s_KJ, counts_K).on_coarse(ratio, tail)


def _coordinate(law: Law, tau: float, step: float) -> Array:
    """s of one coordinate at the losses 0, h, 2h, …

    Guarantees: dominates the pair; keeps both masses.
    """
    edges_N = _edges(law, tau, step)
    losses_N = law.log_ratio(edges_N, tau)
    p_N = law.interval(edges_N[:-1] - tau, edges_N[1:] - tau)
    q_N = law.interval(edges_N[:-1], edges_N[1:])
    low_N, high_N = np.minimum(losses_N[:-1], losses_N[1:]), np.maximum(losses_N[:-1], losses_N[1:])
    low_N = np.maximum(low_N, 0.0)
    apart_N = high_N - low_N > 1e-7 * step
    across_N = 2 * np.sinh(np.where(apart_N, high_N - low_N, 1.0) / 2)
    upper_N = np.where(
        apart_N,
        (p_N * np.exp(-low_N / 2) - q_N * np.exp(low_N / 2)) / across_N,
        np.maximum(p_N * np.exp(-high_N / 2), q_N * np.exp(high_N / 2)),
    )
    upper_N = np.maximum(upper_N, 0.0)
    lower_N = np.maximum(p_N * np.exp(-low_N / 2) - upper_N * np.exp((high_N - low_N) / 2), 0.0)
    at_M = np.concatenate([low_N, high_N])
    s_M = np.concatenate([lower_N, upper_N])
    cell_M = np.floor(at_M / step)
    up_M = np.clip(np.sinh((at_M - cell_M * step) / 2) / math.sinh(step / 2), 0.0, 1.0)
    down_M = np.clip(np.sinh(((cell_M + 1) * step - at_M) / 2) / math.sinh(step / 2), 0.0, 1.0)
    index_M = cell_M.astype(np.int64)
    size = int(index_M.max()) + 2
    half = np.bincount(index_M, s_M * down_M, size) + np.bincount(index_M + 1, s_M * up_M, size)
    half[0] *= 2  # from both sides
    return half.astype(np.float64)


def _edges(law: Law, tau: float, step: float) -> Array:
    """Points x from τ/2 to infinity that cut where the loss turns, and nearly where it crosses the grid."""
    turns = [tau / 2, *(x for x in law.turning_points(tau) if x > tau / 2), math.inf]
    pieces = [np.array(turns)]
    for low, high in itertools.pairwise(turns):
        share_N = np.linspace(0.0, 1.0, 401)
        x_N = low + (high - low) * share_N if math.isfinite(high) else low + np.expm1(60 * share_N**2)
        for _ in range(2):  # the second time between points that lie close to where they should
            l_N = law.log_ratio(x_N, tau)
            if l_N[-1] < l_N[0]:
                x_N, l_N = x_N[::-1], l_N[::-1]
            crossed_N = step * np.arange(math.floor(l_N[0] / step) + 1, math.ceil(l_N[-1] / step))
            x_N = np.concatenate([x_N[:1], np.interp(crossed_N, l_N, x_N), x_N[-1:]])
        pieces.append(x_N[1:-1])
    return np.unique(np.concatenate(pieces))


class _Power:
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
        """s on the grid `ratio` times as coarse, both sides of 0, and what is charged to either infinity."""
        coarse = ratio * self._step
        top = -(-int(self._counts_K @ self._last_K) // ratio)  # no loss is larger
        half, eta = np.empty(0), 0.0
        log_m, centre, spread = self._tilted(eta)
        while True:
            size = _fast(max(math.ceil(2 * _HALF_WIDTH * spread / coarse) + 4, 16))
            middle = round(centre / coarse)
            masses = self._window(eta, log_m, ratio, size, middle)
            first, last = max(0, middle - size // 2), min(top + 1, middle - size // 2 + size)
            here = slice(first - middle + size // 2, last - middle + size // 2)
            half = np.append(half, np.full(max(0, last - len(half)), math.inf))
            with np.errstate(over="ignore"):
                found = masses[here] * np.exp(log_m - eta * coarse * np.arange(first, last))
            half[first:last] = np.minimum(half[first:last], found)
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
        """K, and mean and standard deviation of the loss under the tilted masses."""
        m_K, log_m_K = self._moments(eta)
        l_J, s_KJ = self._losses_J, self._s_KJ
        mean_K = s_KJ @ (2 * np.sinh(eta * l_J) * l_J) / m_K
        square_K = s_KJ @ (2 * np.cosh(eta * l_J) * l_J**2) / m_K
        variance = float(self._counts_K @ np.maximum(square_K - mean_K**2, 0.0))
        log_m = math.fsum(self._counts_K * log_m_K)
        return log_m, float(self._counts_K @ mean_K), math.sqrt(variance) + 1e-6 * self._step

    def _moments(self, eta: float) -> tuple[Array, Array]:
        """M_k(η) and its logarithm."""
        l_J = self._losses_J
        change_K = self._s_KJ @ (4 * np.sinh((eta + 0.5) * l_J / 2) * np.sinh((eta - 0.5) * l_J / 2))
        whole_K = self._zero_K + self._s_KJ @ (2 * np.cosh(eta * l_J))
        small_K = np.abs(change_K) < 0.5
        m_K = np.where(small_K, 1 + change_K, whole_K)
        return m_K, np.where(small_K, np.log1p(np.where(small_K, change_K, 0.0)), np.log(whole_K))

    def _beyond(self, loss: float, eta: float, further: float) -> float:
        """Chernoff's bound of the mass of larger losses under the shifted density, by tilts from η up."""
        etas = [eta + further / 2**k for k in range(6)]
        logs = [math.fsum(self._counts_K * self._moments(eta)[1]) - (eta - 0.5) * loss for eta in etas if eta >= 0.5]
        return math.exp(min([*logs, 0.0]))

    def _window(self, eta: float, log_m: float, ratio: int, size: int, middle: int) -> Array:
        """Tilted masses at `size` points of the coarse grid around `middle`; what is elsewhere is folded in.

        Guarantees: none is below its true value.
        """
        points = size * ratio
        f_F, left_out = self._audible(eta, points)
        log_size_F, phase_F, growth_F = self._log_spectrum(eta, f_F, points)
        size_F = np.exp(log_size_F)
        error_F = np.where(growth_F < 1, size_F * np.expm1(np.minimum(growth_F, 1.0)), np.exp(log_size_F + growth_F))
        error_F += 4 * _UNIT * (np.abs(log_size_F) + np.abs(phase_F) + 8) * size_F
        r_R = np.arange(1 - ratio, ratio)
        hat_R = np.sinh((ratio - np.abs(r_R)) * self._step / 2) / math.sinh(ratio * self._step / 2)
        hat_R *= np.exp(-eta * self._step * r_R)
        turned_F = 2 * math.pi / size * ((f_F % size) * (middle % size) % size)
        at_F = size_F * np.exp(1j * (turned_F - phase_F)) * (np.exp(2j * math.pi / points * np.outer(f_F, r_R)) @ hat_R)
        twice_F = np.where((f_F == 0) | (2 * f_F == points), 1.0, 2.0)
        spectrum = np.zeros(size, dtype=np.complex128)
        np.add.at(spectrum, f_F % size, twice_F * at_F)
        masses = np.roll(np.fft.ifft(spectrum).real * (size / points), size // 2)
        rounding = 8 * _UNIT * (math.log2(size) + 4) * float(twice_F @ size_F)
        raised = (float(twice_F @ error_F) + left_out + rounding) * float(hat_R.sum()) / points
        uncertain = 4 * _UNIT * (len(self._losses_J) + 16) * (1 + abs(log_m))  # of exp(K)
        bounded: Array = (np.maximum(masses, 0.0) + raised) * (1 + uncertain)
        return bounded

    def _audible(self, eta: float, points: int) -> tuple[NDArray[np.int64], float]:
        """The frequencies f <= points/2 where the spectrum may exceed exp(`_NEGLIGIBLE`), and a bound of the sum of
        its size at all others, on both sides.

        Π |φ_k|^n_k <= B^(n/2), B the mean of |φ_k|² over the n coordinates: the spectrum of a mean autocorrelation.
        """
        number = float(self._counts_K.sum())
        short = _fast(4 * len(self._losses_J) + 2)
        squares_F = np.zeros(short // 2 + 1)
        for k, rows_KI in self._tilted_rows(eta, short):
            squares_F += self._counts_K[k] @ np.abs(np.fft.rfft(rows_KI, short, axis=1)) ** 2 / number
        correlation = np.fft.irfft(squares_F, short)
        lag = np.arange(short)
        lag = np.where(lag <= short // 2, lag, lag - short)
        mean_F = np.fft.rfft(np.bincount(lag % points, correlation, points)).real
        log_bound_F = number / 2 * np.log(np.clip(mean_F + 1e-13, 1e-13, 1.0))
        heard_F = log_bound_F > _NEGLIGIBLE
        return np.flatnonzero(heard_F), 2 * float(np.exp(log_bound_F[~heard_F]).sum())

    def _log_spectrum(self, eta: float, f_F: NDArray[np.int64], points: int) -> tuple[Array, Array, Array]:
        """Logarithm of its size, its phase, and by how much the logarithm may be too small.

        By sums of sines over the losses or, where there are many frequencies (so that the powers are low), by FFT.
        """
        width, length = self._s_KJ.shape
        if (width + 20) * length * len(f_F) <= 100 * width * points:
            chunks = np.array_split(f_F, 1 + length * len(f_F) // _AT_ONCE)
            parts = np.concatenate([self._by_sums(eta, 2 * math.pi / points * f_G) for f_G in chunks], axis=1)
        else:
            parts = np.zeros((3, len(f_F)))
            error = 8 * _UNIT * (math.log2(points) + 4)
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
        # what was summed, without its signs: a sine is at most its angle and at most 1
        steep_K1, flat_K1 = (s_KJ @ (odd_J * self._index_J))[:, None], (s_KJ @ odd_J)[:, None]
        summed_KF = np.minimum(steep_K1 * omega_F, flat_K1) / m_K1 - x_KF
        return _logs(self._counts_K, x_KF, y_KF, 4 * _UNIT * (len(self._index_J) + 16) * summed_KF)

    def _tilted_rows(self, eta: float, size: int) -> Iterator[tuple[slice, Array]]:
        """Tilted masses from the least loss to the largest, of as many coordinates at a time as fit rows of `size`."""
        m_K, _ = self._moments(eta)
        rows = max(1, _AT_ONCE // size)
        for start in range(0, len(m_K), rows):
            k = slice(start, start + rows)
            up_KJ = self._s_KJ[k] * np.exp(eta * self._losses_J) / m_K[k, None]
            down_KJ = self._s_KJ[k] * np.exp(-eta * self._losses_J) / m_K[k, None]
            zero_K = np.maximum(1 - up_KJ.sum(axis=1) - down_KJ.sum(axis=1), 0.0)
            yield k, np.concatenate([down_KJ[:, ::-1], zero_K[:, None], up_KJ], axis=1)


def _logs(counts_K: Array, x_KF: Array, y_KF: Array, error_KF: Array) -> Array:
    """Of Π (1 + x + iy)^n: logarithm of the size, phase, and what an error of that much adds to the logarithm."""
    square_KF = 2 * x_KF + x_KF**2 + y_KF**2  # of the size, less 1
    near_KF = square_KF > -0.5
    far_KF = np.maximum((1 + x_KF) ** 2 + y_KF**2, 1e-290)
    log_size_KF = np.where(near_KF, np.log1p(np.where(near_KF, square_KF, 0.0)), np.log(far_KF)) / 2
    grown_KF = np.log1p(error_KF * np.exp(-log_size_KF))
    logs: Array = counts_K @ np.stack([log_size_KF, np.arctan2(y_KF, 1 + x_KF), grown_KF])
    return logs


def _fast(least: int) -> int:
    """The least 2^a or 3 2^a that is >= least."""
    power = 1 << (least - 1).bit_length()
    return power * 3 // 4 if power * 3 // 4 >= least else power
