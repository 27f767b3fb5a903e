"""Encoded images (PNG, JPEG, WebP) to pixels of the declared shape.

Images are untrusted: see `image_pixels`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.problems import Place, Problems
from dprecipe.libraries import ignoring_warnings, importing_libraries

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
MAX_IMAGE_BYTES = 16 << 20
MAX_THREADS = 8
Resize = Literal["stretch", "crop"]
EncodedImage = bytes | Path | None
"""An image's bytes, its file, or nothing."""
Decode = Callable[[Sequence[EncodedImage], str, Place, Problems], NDArray[np.uint8]]


@final
@dataclass(frozen=True, slots=True)
class ImageForm:
    """Form that images are brought to: `shape` (height, width, channels), and the way to resize others.

    Without `resize`, images of another size are refused."""

    shape: tuple[int, ...]
    resize: Resize | None = None

    @property
    def mode(self) -> str:
        """Pillow's word for the channels."""
        return MODES[self.shape[2]]


@contextmanager
def decoding_images(form: ImageForm) -> Iterator[Decode]:
    """Yields a function from images to their pixels (N, height, width, channels), in order, by several threads.

    Its arguments: the images, the name of their source and the place of each, for messages, and the problems. To those
    it adds each image that is missing, damaged, animated, or of another format, mode or shape; its pixels are zeros.
    """
    with importing_libraries("an image"):
        from dprecipe.data.image_pixels import decode_image

    threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="images") as pool, ignoring_warnings():

        def decode(images: Sequence[EncodedImage], subject: str, where: Place, problems: Problems) -> NDArray[np.uint8]:
            pixels = np.zeros((len(images), *form.shape), dtype=np.uint8)
            for row, refused in enumerate(pool.map(partial(decode_image, form), images, pixels)):
                if refused is not None:
                    detail = f": {refused.detail}" if refused.detail else ""
                    problems.add(subject, refused.problem, refused.remedy, f"{where(row)}{detail}")
            return pixels

        yield decode
