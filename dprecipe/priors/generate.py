"""The images of a prior, and their digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from dprecipe.priors.leaves import draw_leaves
from dprecipe.priors.schema import Prior, fits_generators
from dprecipe.priors.spectrum import draw_spectrum
from dprecipe.priors.wavelets import draw_wavelets

Images = NDArray[np.uint8]
Generator = Callable[[int, range, tuple[int, int, int]], Images]
ImageShape = tuple[int, int, int]

GENERATORS: dict[str, Generator] = {
    "dead_leaves": draw_leaves,
    "spectrum": draw_spectrum,
    "wavelets": draw_wavelets,
}
BLOCK = 60
"""Images that are made at a time; no image depends on it."""


def draw_images(prior: Prior, shape: ImageShape, images: range) -> Images:
    """Returns the images (N, C, H, W) of these numbers, as bytes.

    Guarantees: an image is a function of (generator, version, seed, shape) and of its number, byte for byte, on every
    machine. `mixed` takes image i from generator i mod 3.

    Raises:
        ValueError: there are no images of this shape.
    """
    if not fits_generators(shape):
        raise ValueError(f"no generator makes images of {shape}")
    if prior.generator != "mixed":
        return GENERATORS[prior.generator](prior.seed, images, shape)
    result = np.empty((len(images), *shape), dtype=np.uint8)
    kinds = list(GENERATORS.values())
    for place in range(min(len(kinds), len(images))):
        own = images[place :: len(kinds)]
        result[place :: len(kinds)] = kinds[images[place] % len(kinds)](prior.seed, own, shape)
    return result


def iterate_blocks(prior: Prior, shape: ImageShape) -> Iterator[Images]:
    """Yields all images of a prior in their order, a block at a time."""
    for first in range(0, prior.images, BLOCK):
        yield draw_images(prior, shape, range(first, min(first + BLOCK, prior.images)))


def make_images(prior: Prior, shape: ImageShape, progress: Callable[[int], None] = lambda done: None) -> Images:
    """Returns all images of a prior, (N, C, H, W) bytes; `progress` is called with how many there are so far."""
    result = np.empty((prior.images, *shape), dtype=np.uint8)
    done = 0
    for block in iterate_blocks(prior, shape):
        result[done : done + len(block)] = block
        done += len(block)
        progress(done)
    return result


def digest_images(prior: Prior, shape: ImageShape, progress: Callable[[int], None] = lambda done: None) -> str:
    """Returns `digest_bytes` of all images of a prior, in little memory."""
    result, done = hashlib.sha256(), 0
    for block in iterate_blocks(prior, shape):
        result.update(block.data)
        done += len(block)
        progress(done)
    return f"sha256:{result.hexdigest()}"


def digest_bytes(images: Images) -> str:
    """Returns `sha256:…` of the bytes of images in their order, (N, C, H, W) with the last axis fastest."""
    return f"sha256:{hashlib.sha256(images.data).hexdigest()}"
