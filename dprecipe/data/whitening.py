"""Whitening of features by images of random processes: constants from a seed, which no record has a part in.

Where features vary much in a few directions, clipped gradients point along these, and noise drowns the others. So
features are divided by a power of their standard deviation along each direction. The deviations are those of images
that a generator makes from a public seed, and that go through the same steps as the records.

With the mean m and the second moments Σ of such features about it, λ the largest eigenvalue of Σ,

    x → (Σ + floor · λ · I)^(−power/2) (x − m)

The matrix is symmetric, so that no choice of eigenvectors matters. Across channels, x is what the channels have at one
place: each place has a mean of its own, and all share the moments.

Shapes: N records of D features in the order of memory, or of C channels at P places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import MAX_WHITENED
from dprecipe.data.image_steps import Whiten
from dprecipe.data.schema import Step
from dprecipe.faults import DataFault
from dprecipe.priors.generate import iterate_blocks
from dprecipe.priors.schema import Prior, fits_generators
from dprecipe.progress import report_progress

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
MOMENT_ROWS = 1024
Prepare = Callable[[NDArray[np.generic], Sequence[Step]], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class Whitening:
    """The mean and the matrix of a step: (D,) and (D, D), or (C, P) and (C, C) across channels."""

    mean: Doubles
    matrix: Doubles

    def apply(self, x: Floats) -> Floats:
        """Returns features (N, …) whitened: (N, D), or as they were, across channels.

        Guarantees: record i of the result depends on record i alone; one that is not finite stays so.
        """
        # In double precision, then rounded: what a matrix product rounds may depend on how many rows it has.
        with np.errstate(over="ignore", invalid="ignore"):
            rows = x.reshape(len(x), *self.mean.shape).astype(np.float64) - self.mean
            if self.mean.ndim == 1:
                return (rows @ self.matrix).astype(np.float32)
            return (self.matrix @ rows).astype(np.float32).reshape(x.shape)


def find_whitening(step: Whiten, before: Sequence[Step], shape: tuple[int, ...], prepare: Prepare) -> Whitening:
    """Returns the constants of a step for images (C, H, W) of bytes that go through the steps `before` it.

    `prepare` applies these steps. Constants are kept for the next call.

    Raises:
        DataFault: there are more features than a recipe may whiten, or no images.
    """
    return _find(step, tuple(before), shape, prepare)


@lru_cache(maxsize=2)
def _find(step: Whiten, before: tuple[Step, ...], shape: tuple[int, ...], prepare: Prepare) -> Whitening:
    if not fits_generators(shape):  # a release may say anything
        raise DataFault("whiten takes images of 1 or 3 channels, and these are none")
    channels, height, width = shape
    report_progress(f"making the constants of whiten from {step.images:,} generated images")
    prior = Prior(generator=step.generator, images=step.images, seed=step.seed)
    parts: list[Floats] = []
    for images in iterate_blocks(prior, (channels, height, width)):
        part = prepare(images, before)
        parts.append(part.reshape(len(part), *((part.shape[1], -1) if step.across == "channels" else (-1,))))
        if parts[0].shape[1] > MAX_WHITENED:
            raise DataFault(f"whiten takes at most {MAX_WHITENED:,} {step.across}, not {parts[0].shape[1]:,}")
    features = np.concatenate(parts)
    mean: Doubles = features.mean(axis=0, dtype=np.float64)
    values, vectors = np.linalg.eigh(_find_moments(features, mean))
    values = np.maximum(values, 0.0)
    largest = values[-1] or 1.0  # constant features stay what they are
    scaled: Doubles = (values + step.floor * largest) ** (-step.power / 2)
    return Whitening(mean, (vectors * scaled) @ vectors.T)


def _find_moments(features: Floats, mean: Doubles) -> Doubles:
    """Returns second moments about the mean: of features (N, D), or of channels (N, C, P) over images and places."""
    total: Doubles = np.zeros((len(mean), len(mean)))
    for start in range(0, len(features), MOMENT_ROWS):
        centred = features[start : start + MOMENT_ROWS] - mean
        rows = centred if mean.ndim == 1 else np.moveaxis(centred, 1, 2).reshape(-1, len(mean))
        total += rows.T @ rows
    return total / (features.size // len(mean))
