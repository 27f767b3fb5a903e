"""Preprocessing: every step is a function of one record and of public constants.

Constants are written in the recipe, or a paid step has released them (`dprecipe.data.paid`). The map of a record costs
no privacy, and neighbouring data sets stay neighbours. Columns of a table are encoded (`one_hot`, `hash`, `tokenize`)
while the file is read: `dprecipe.data.table`. What moves at random (`crop`, `flip`) is in `dprecipe.data.augment`.

Shapes: N records, (N, D) vectors or (N, C, H, W) images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.image_steps import Patches, Scattering, Whiten
from dprecipe.data.paid.constants import PublicConstants, StageConstants
from dprecipe.data.paid.schema import is_paid
from dprecipe.data.schema import ClipFeatures, Flatten, GroupNorm, PerChannel, Scale, Step

Floats = NDArray[np.float32]
ReadyStep = Step | StageConstants
"""A step, or what a paid step has released."""
BYTE = np.float32(255)
STABILITY = np.float32(1e-5)
"""Constant that `group_norm` adds to a variance, as most libraries do."""


def prepare_features(features: NDArray[np.generic], steps: Sequence[ReadyStep]) -> Floats:
    """Returns the features that the model sees: bytes become [0, 1], then each step in order.

    Steps of other kinds are passed over: `one_hot`, `hash` and `tokenize` have been applied by the reader, `crop` and
    `flip` are training's.

    Guarantees: record i of the result depends on record i of `features` alone.

    Raises:
        ValueError: a paid step has not released its constants.
    """
    from dprecipe.data.paid.apply import apply_constants  # clips as this module does

    x = as_unit(features)
    for index, step in enumerate(steps):
        if isinstance(step, PublicConstants):
            x = apply_constants(x, step)
            continue
        operation = step.operation
        if is_paid(operation):
            raise ValueError("a paid step has not released its constants yet")
        if isinstance(operation, Scale):
            x = scale_features(x, operation)
        elif isinstance(operation, ClipFeatures):
            x = clip_features(x, operation.norm)
        elif isinstance(operation, Scattering):
            from dprecipe.data.scattering import scatter_images  # brings scipy.fft

            x = scatter_images(x, operation.scales, operation.angles)
        elif isinstance(operation, Patches):
            from dprecipe.data.patches import find_patch_filters

            x = find_patch_filters(operation, x.shape[1:]).apply(x)
        elif isinstance(operation, GroupNorm):
            x = group_norm(x, operation.groups)
        elif isinstance(operation, Whiten):
            from dprecipe.data.whitening import find_whitening  # prepares images as this module does

            before = [each for each in steps[:index] if isinstance(each, Step)]
            x = find_whitening(operation, before, features.shape[1:], prepare_features).apply(x)
        elif isinstance(operation, Flatten):
            x = x.reshape(len(x), math.prod(x.shape[1:]))
    return x


def is_pending(step: ReadyStep) -> bool:
    """Returns True for a paid step that has not released its constants."""
    return isinstance(step, Step) and is_paid(step.operation)


def as_unit(features: NDArray[np.generic]) -> Floats:
    """Returns unsigned bytes as [0, 1]; floats as they are, in single precision (too large becomes infinite)."""
    if features.dtype == np.uint8:
        return features.astype(np.float32) / BYTE
    with np.errstate(over="ignore"):
        return features.astype(np.float32, copy=False)


def scale_features(x: Floats, step: Scale) -> Floats:
    """Returns (x − mean) / std; constants one for all, or one a channel (a feature, for vectors)."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        result: Floats = (x - _constant(step.mean, x.ndim)) / _constant(step.std, x.ndim)
    return result


def _constant(value: PerChannel, ndim: int) -> Floats:
    if isinstance(value, tuple):
        return np.asarray(value, dtype=np.float32).reshape(-1, *[1] * (ndim - 2))
    return np.asarray(value, dtype=np.float32)


def group_norm(x: Floats, groups: int) -> Floats:
    """Scales each record to mean 0 and variance 1 over each group of consecutive channels (of vectors: features).

    Wu & He, "Group normalization", 2018, without their learned scale and shift. The variance is that of the numbers
    themselves (not of a sample), plus 10⁻⁵, so that a group without any variance becomes zero.
    """
    grouped = x.reshape(len(x), groups, math.prod(x.shape[1:]) // groups)
    with np.errstate(over="ignore", invalid="ignore"):
        centred: Floats = grouped - grouped.mean(axis=2, keepdims=True)
        variance = np.square(centred).mean(axis=2, keepdims=True)
        centred /= np.sqrt(variance + STABILITY)
    return centred.reshape(x.shape)


def clip_features(x: Floats, norm: float) -> Floats:
    """Shrinks each record to an L2 norm of at most `norm`; a record with a non-finite feature becomes zero.

    Zeroing is the conservative choice: the bound holds for every record there can be, and one strange record
    can neither stop a run nor spread.

    Guarantees: the exact L2 norm of every record of the result is at most `norm` (rounding included, for
    norms that single precision can hold).
    """
    flat = x.reshape(len(x), math.prod(x.shape[1:])).astype(np.float64)
    finite = np.isfinite(flat).all(axis=1)
    flat[~finite] = 0.0
    length = np.sqrt(np.einsum("nd,nd->n", flat, flat))
    target = norm * (1 - 1e-6)  # rounding to single precision moves a norm by at most 6e-8 of it
    factor = target / np.maximum(length, target)
    clipped: Floats = (flat * factor[:, None]).astype(np.float32).reshape(x.shape)
    return clipped
