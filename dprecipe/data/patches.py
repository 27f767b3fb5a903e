"""Random patches: what small parts of an image share with parts of generated images, which no record has a part in.

A part p of size s, all channels of it, is centred and divided by its deviation, q = (p - mean) / sqrt(var + CONTRAST).
With the mean m and the second moments Σ of such parts of images of a random process,

    z(p) = (Σ + FLOOR · I)^(-1/2) (q - m)          r_k(p) = <z(p), z(p_k)> / |z(p_k)|

for filters k, each of a generated image of its own. Features of an image are averages, over cells of a grid that
overlap by half, of max(r_k - t, 0) and max(-r_k - t, 0), with the threshold t. `mirror` takes the mean of them and of
those of the mirrored image, so that both have the same features.

Sources: A. Coates, H. Lee, A. Y. Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning", 2011;
L. Thiry, M. Arbel, E. Belilovsky, E. Oyallon, "The Unreasonable Effectiveness of Patches in Deep Convolutional Kernels
Methods", 2021. Their patches are of the data themselves.

Shapes: N images, C channels, H and W pixels; K filters, G rows and columns of the grid; P places of a part in an image,
D = C·s² numbers of a part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from dprecipe.data.image_steps import Patches
from dprecipe.faults import DataFault
from dprecipe.priors.generate import iterate_blocks
from dprecipe.priors.numbers import PARTS_PURPOSE, below, draw_numbers
from dprecipe.priors.schema import Prior, fits_generators
from dprecipe.progress import report_progress

Floats = NDArray[np.float32]
Number = TypeVar("Number", np.float32, np.float64)
CONTRAST = 0.01
"""Added to a part's variance, of values in [0, 1]: what hardly varies is hardly amplified."""
FLOOR = 0.03
"""Added to the variances of parts along each direction, which are 1 on average."""
IMAGES = 4096
"""Generated images. Moments are of all their parts; a filter is one of the first two of an image."""
CACHED = 1 << 18
"""Products of parts and filters that are held together: few, so that they stay near the processor."""
PARTS = 16
"""Parts of a generated image, at places that its words draw."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchFilters:
    """The constants of a step for images of one shape.

    `weights` (D, K), or (D, 2K) with the mirrored filters behind, and `constants` (K or 2K): a part q has the responses
    q @ weights + constants. `cells` (G², P): weights of averages.
    """

    step: Patches
    weights: Floats
    constants: Floats
    cells: Floats

    def apply(self, x: Floats) -> Floats:
        """Returns the features (N, 2K, G, G) of images (N, C, H, W) of values in [0, 1].

        Guarantees: image i of the result depends on image i alone, to the last bit; what is not finite stays in it.
        """
        grid, filters = self.step.grid, self.step.filters
        result = np.empty((len(x), 2, filters, grid, grid), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for image, features in zip(x, result, strict=True):  # one at a time: products round by their shapes
                averages = self._average(normalise_parts(cut_parts(image, self.step.size)))
                if self.step.mirror:
                    # A mirrored image answers a filter as the image answers the mirrored filter, at mirrored places.
                    averages = averages[:, :filters] + averages[:, filters:, :, ::-1]
                    averages /= 2
                features[:] = averages
        return result.reshape(len(x), 2 * filters, grid, grid)

    def _average(self, parts: Floats) -> Floats:
        """Averages what all parts (P, D) of an image share with filters, and the opposite, (2, K or 2K, G, G).

        max(r - t, 0) is max(product, upper) - upper, and max(-r - t, 0) is lower - min(product, lower).
        """
        threshold, count = np.float32(self.step.threshold), self.weights.shape[1]
        upper, lower = threshold - self.constants, -threshold - self.constants
        averages = np.empty((2, len(self.cells), count), dtype=np.float32)
        columns = max(CACHED // len(parts), 16)
        for start in range(0, count, columns):
            some = slice(start, start + columns)
            products = parts @ self.weights[:, some]
            averages[0, :, some] = self.cells @ np.maximum(products, upper[some])
            averages[1, :, some] = self.cells @ np.minimum(products, lower[some], out=products)
        averages[0] -= upper
        np.subtract(lower, averages[1], out=averages[1])
        return averages.transpose(0, 2, 1).reshape(2, count, self.step.grid, self.step.grid)


def cut_parts(image: Floats, size: int) -> Floats:
    """Returns all parts of an image (C, H, W), (P, C·size²), by rows and columns of where they are."""
    windows = np.moveaxis(sliding_window_view(image, (size, size), axis=(1, 2)), 0, 2)
    return np.ascontiguousarray(windows).reshape(-1, len(image) * size * size)


def normalise_parts(parts: NDArray[Number]) -> NDArray[Number]:
    """Centres parts (…, D) and divides them by their deviation; modifies them."""
    parts -= parts.mean(axis=-1, keepdims=True)
    parts /= np.sqrt(np.square(parts).mean(axis=-1, keepdims=True) + parts.dtype.type(CONTRAST))
    return parts


@lru_cache(maxsize=2)
def find_patch_filters(step: Patches, shape: tuple[int, ...]) -> PatchFilters:
    """Returns the constants of a step for images (C, H, W); they are kept for the next call.

    Raises:
        DataFault: generators make no such images, or a part or the grid is larger than they are.
    """
    if not fits_generators(shape) or step.size + step.grid - 1 > min(shape[1:]):  # a release may say anything
        raise DataFault("patches takes images of 1 or 3 channels that its parts and its grid fit, and these are none")
    channels, height, width = shape
    report_progress(f"making {step.filters:,} filters of patches from {IMAGES:,} generated images")
    parts = _draw_parts(step, (channels, height, width))
    every = _normalise_bytes(parts.reshape(-1, parts.shape[-1]))
    mean = every.mean(axis=0)
    every -= mean
    values, vectors = np.linalg.eigh(every.T @ every / len(every))
    whitening = (vectors / np.sqrt(np.maximum(values, 0) + FLOOR)) @ vectors.T
    white = (_normalise_bytes(choose_parts(parts[: step.filters, :2])) - mean) @ whitening
    weights = whitening @ (white / np.maximum(np.linalg.norm(white, axis=1, keepdims=True), 1e-12)).T
    constants = -mean @ weights
    if step.mirror:
        planes = weights.reshape(channels, step.size, step.size, -1)
        weights = np.hstack([weights, planes[:, :, ::-1].reshape(weights.shape)])
        constants = np.tile(constants, 2)
    cells = _make_cells(height - step.size + 1, width - step.size + 1, step.grid)
    return PatchFilters(step, weights.astype(np.float32), constants.astype(np.float32), cells)


def _draw_parts(step: Patches, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Draws parts of generated images, (IMAGES, PARTS, D) bytes."""
    numbers = draw_numbers(step.seed, PARTS_PURPOSE, range(IMAGES), 2 * PARTS)
    rows = below(numbers[:, :PARTS], shape[1] - step.size + 1)
    columns = below(numbers[:, PARTS:], shape[2] - step.size + 1)
    drawn = np.empty((IMAGES, PARTS, shape[0], step.size, step.size), dtype=np.uint8)
    first = 0
    for images in iterate_blocks(Prior(generator=step.generator, images=IMAGES, seed=step.seed), shape):
        some = slice(first, first + len(images))
        windows = np.moveaxis(sliding_window_view(images, (step.size, step.size), axis=(2, 3)), 1, 3)
        drawn[some] = windows[np.arange(len(images))[:, None], rows[some], columns[some]]
        first = some.stop
    return drawn.reshape(IMAGES, PARTS, -1)


def _normalise_bytes(parts: NDArray[np.uint8]) -> NDArray[np.float64]:
    return normalise_parts(parts.astype(np.float64) / 255)


def choose_parts(parts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Returns of each image's parts (N, M, D) of bytes the one that varies most, (N, D): flat ones are like no other.

    Variances are whole numbers, so that every machine chooses the same part.
    """
    whole = parts.astype(np.int64)
    spread = parts.shape[-1] * np.square(whole).sum(axis=-1) - np.square(whole.sum(axis=-1))
    return np.take_along_axis(parts, spread.argmax(axis=1)[:, None, None], axis=1)[:, 0]


def _make_cells(rows: int, columns: int, grid: int) -> Floats:
    """Returns weights (G², P) of averages over cells that overlap by half; left and right are alike."""
    across, down = _cut_side(columns, grid), _cut_side(rows, grid)
    cells = np.zeros((grid, grid, rows, columns), dtype=np.float32)
    for i, vertical in enumerate(down):
        for j, horizontal in enumerate(across):
            cells[i, j, vertical, horizontal] = 1 / cells[i, j, vertical, horizontal].size
    return cells.reshape(grid * grid, rows * columns)


def _cut_side(length: int, grid: int) -> list[slice]:
    """Returns `grid` intervals of 2 / (grid + 1) of a side, rounded outwards."""
    return [slice(i * length // (grid + 1), -(-(i + 2) * length // (grid + 1))) for i in range(grid)]
