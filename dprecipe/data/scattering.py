"""Scattering of images: moduli of wavelet coefficients, averaged; nothing in it is learned.

Two layers of Morlet wavelets, each followed by the modulus, and a Gaussian average over 2^J pixels (Bruna & Mallat,
"Invariant scattering convolution networks", 2013; Oyallon & Mallat 2015). Of an image x with wavelets ψ(j, θ) of sizes
2^j, j < J, and L directions:

    order 0    x ∗ φ
    order 1    |x ∗ ψ(j, θ)| ∗ φ
    order 2    ||x ∗ ψ(j, θ)| ∗ ψ(k, η)| ∗ φ       for k > j

Convolutions are products of Fourier transforms, of images mirrored by 2^J pixels at their edges; what has been filtered
to a size 2^j is kept at every 2^j-th pixel. The constants (widths, wavelengths, the mirrored edge) are those of the
usual implementations, so that published settings carry over.

Shapes: N images, C channels, H and W pixels; K = 1 + JL + L²J(J−1)/2 coefficients of a channel, in the order above, by
(j, θ) and by (j, θ, k, η), h = H/2^J, w = W/2^J.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import cast

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from dprecipe.data.facts import count_scattering_coefficients

Floats = NDArray[np.float32]
Spectra = NDArray[np.complex64]
BLOCK = 16
"""Planes transformed together; always as many, so that no record's last digit depends on how many there are."""


def scatter_images(images: Floats, scales: int, angles: int) -> Floats:
    """Returns the coefficients (N, C·K, h, w) of images (N, C, H, W).

    H and W have to be multiples of 2^scales, and at least twice that.

    Guarantees: image i of the result depends on image i alone, to the last bit; whatever is not finite stays in it.
    """
    count, channels, height, width = images.shape
    bank = _bank(height, width, scales, angles)
    planes = images.reshape(count * channels, height, width)
    result = np.empty((len(planes), bank.coefficients, height >> scales, width >> scales), dtype=np.float32)
    block = np.zeros((BLOCK, height, width), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(planes), BLOCK):
            part = planes[start : start + BLOCK]
            block[: len(part)] = part
            result[start : start + BLOCK] = bank.transform(block)[: len(part)]
    return result.reshape(count, channels * bank.coefficients, *result.shape[2:])


def mirror_coefficients(scales: int, angles: int) -> NDArray[np.int64]:
    """Returns, for each coefficient of a mirrored image, which one of the image it is, (K,): waves of angle θ become
    waves of angle −θ.

    The maps have to be mirrored, too. What they are centred on moves then by 2^scales − 1 pixels.
    """
    angle = (2 * (angles // 2 - 1) - np.arange(angles)) % angles
    first = 1 + angles * np.arange(scales)[:, None] + angle
    parts, start = [np.zeros(1, np.int64), first.ravel()], 1 + scales * angles
    for j in range(scales - 1):
        larger = scales - 1 - j
        places = start + np.arange(angles * larger * angles).reshape(angles, larger, angles)
        parts.append(places[angle][:, :, angle].ravel())
        start += places.size
    return np.concatenate(parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Bank:
    """Filters for images of one size.

    `wavelets[r][j]`: the Fourier transforms, real, (L, M / 2^r, N / 2^r), of wavelets of size 2^j for maps at every
    2^r-th pixel. `averages[r]`: the averages along rows and columns that such maps are multiplied by.
    """

    scales: int
    mirrored: tuple[NDArray[np.int64], NDArray[np.int64]]
    wavelets: tuple[dict[int, Floats], ...]
    averages: tuple[tuple[Floats, Floats], ...]

    @property
    def coefficients(self) -> int:
        return count_scattering_coefficients(self.scales, len(self.wavelets[0][0]))

    def transform(self, x: Floats) -> Floats:
        """Maps (B, H, W) to (B, K, h, w)."""
        rows, columns = self.mirrored
        x = x[:, rows[:, None], columns]
        first, second = [self._averaged(x, 0)[:, None]], []
        spectrum = cast(Spectra, scipy.fft.fft2(x))
        for j, wavelets in self.wavelets[0].items():
            once = _modulus(spectrum[:, None], wavelets, j)
            first.append(self._averaged(once, j))
            if j + 1 < self.scales:
                again = cast(Spectra, scipy.fft.fft2(once))[:, :, None]
                # by direction first, then by size: the order of the coefficients
                twice = [
                    self._averaged(_modulus(again, filters, k - j), k)
                    for k, filters in self.wavelets[j].items()
                    if k > j
                ]
                second.append(np.concatenate(twice, axis=2).reshape(len(x), -1, *first[0].shape[2:]))
        return np.concatenate([*first, *second], axis=1)

    def _averaged(self, maps: Floats, r: int) -> Floats:
        """Maps at every 2^r-th pixel, (…, M, N), averaged at every 2^J-th, (…, h, w)."""
        rows, columns = self.averages[r]
        across = (maps.reshape(-1, maps.shape[-1]) @ columns).reshape(*maps.shape[:-1], -1)
        upright = np.ascontiguousarray(across.swapaxes(-1, -2))
        averaged = upright.reshape(-1, upright.shape[-1]) @ rows
        return averaged.reshape(*upright.shape[:-1], -1).swapaxes(-1, -2)


def _modulus(spectrum: Spectra, filters: Floats, r: int) -> Floats:
    """Computes |x ∗ ψ| at every 2^r-th pixel, of the spectrum of x (…, 1, M, N) and filters (L, M, N)."""
    step = 2**r
    height, width = filters.shape[-2] // step, filters.shape[-1] // step
    folded = np.zeros((), dtype=np.complex64)
    for top in range(0, filters.shape[-2], height):  # every 2^r-th pixel: the mean of as many parts of the spectrum
        for left in range(0, filters.shape[-1], width):
            here = (..., slice(top, top + height), slice(left, left + width))
            folded = folded + spectrum[here] * (filters[here] / np.float32(step**2))
    return np.abs(cast(Spectra, scipy.fft.ifft2(folded, overwrite_x=True)))


@cache
def _bank(height: int, width: int, scales: int, angles: int) -> _Bank:
    margin = 2**scales
    size = (height + 2 * margin, width + 2 * margin)
    wavelets: list[dict[int, Floats]] = [{} for _ in range(scales)]
    for j in range(scales):
        full = np.stack([np.fft.fft2(_morlet(size, j, angle, angles)).real for angle in range(angles)])
        for r in range(j if j else 1):
            wavelets[r][j] = _coarser(full, r, (-2, -1)).astype(np.float32)
    averages = []
    for r in range(scales):
        rows, columns = (_average(length, scales, r) for length in size)
        averages.append((rows, columns))
    mirrored = tuple(np.pad(np.arange(length), margin, mode="reflect") for length in (height, width))
    return _Bank(scales, (mirrored[0], mirrored[1]), tuple(wavelets), tuple(averages))


def _morlet(size: tuple[int, int], j: int, angle: int, angles: int) -> NDArray[np.complex128]:
    """Returns a wave of length 8/3·2^j and mean zero, under a Gaussian of width 0.8·2^j along it, and L/4 times that
    across.
    """
    sigma, frequency, slant = 0.8 * 2**j, 0.75 * np.pi / 2**j, 4.0 / angles
    theta = (angles // 2 - 1 - angle) * np.pi / angles
    envelope = np.zeros(size)
    wave = np.zeros(size, dtype=np.complex128)
    for row_shift in range(-2, 3):  # circular: the sum of all copies that reach here
        for column_shift in range(-2, 3):
            y = (np.arange(size[0]) + row_shift * size[0])[:, None]
            x = np.arange(size[1]) + column_shift * size[1]
            along, across = y * np.cos(theta) + x * np.sin(theta), x * np.cos(theta) - y * np.sin(theta)
            bell = np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
            envelope += bell
            wave += bell * np.exp(1j * frequency * along)
    morlet: NDArray[np.complex128] = (wave - wave.sum() / envelope.sum() * envelope) * slant / (2 * np.pi * sigma**2)
    return morlet


def _average(length: int, scales: int, r: int) -> Floats:
    """Returns the right factor for lines of every 2^r-th pixel: a Gaussian about every 2^J-th, without the margin."""
    sigma = 0.8 * 2 ** (scales - 1)
    distances = np.arange(length)[:, None] + length * np.arange(-2, 3)
    bell = np.exp(-(distances**2) / (2 * sigma**2)).sum(axis=1) / (np.sqrt(2 * np.pi) * sigma)
    line = np.fft.ifft(_coarser(np.fft.fft(bell).real, r, (-1,))).real
    centres = np.arange(2 ** (scales - r), len(line) - 2 ** (scales - r), 2 ** (scales - r))
    return line[(centres - np.arange(len(line))[:, None]) % len(line)].astype(np.float32)


def _coarser(spectrum: NDArray[np.float64], r: int, axes: tuple[int, ...]) -> NDArray[np.float64]:
    """Returns the spectrum of a filter for maps at every 2^r-th pixel: its low frequencies."""
    for axis in axes:
        length = spectrum.shape[axis]
        size = length >> r
        low = np.arange(size)
        low[(size + 1) // 2 :] += length - size
        spectrum = np.take(spectrum, low, axis=axis)
    return spectrum
