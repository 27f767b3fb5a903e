"""Encoded images (PNG, JPEG, WebP) to pixels of the declared shape."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dprecipe.faults import DataFault

FORMATS = ("PNG", "JPEG", "WEBP")
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def decode(images: Sequence[bytes | None], shape: tuple[int, ...], first: int, file: Path) -> NDArray[np.uint8]:
    """Images as (N, height, width, channels). `first` is the number of the first one, for messages.

    The size in an image's header is held against `shape` before a pixel is decoded.

    Raises:
        DataFault: one is missing, damaged, of another format or of another shape.
    """
    from PIL import Image, UnidentifiedImageError

    height, width, channels = shape
    pixels = np.empty((len(images), height, width, channels), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pillow's remarks on odd files; what matters is checked here
        for row, content in enumerate(images):
            where = f"{file.name}, row {first + row} (counted from 0)"
            if content is None:
                raise DataFault(f"{where}: holds no image bytes", "store the bytes in the file, not only their path")
            try:
                with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                    found = (image.height, image.width, len(image.getbands()))
                    if image.mode == "P" and channels == 3:
                        found = (*found[:2], 3)
                    if found != shape or image.mode not in (MODES[channels], "P"):
                        raise DataFault(
                            f"{where}: the image is {'×'.join(map(str, found))} ({image.mode}), expected "
                            f"{'×'.join(map(str, shape))} ({MODES[channels]}; height×width×channels)",
                            "resize or convert the images beforehand, or declare the shape that they have",
                        )
                    pixels[row] = np.asarray(image.convert(MODES[channels])).reshape(shape)
            except (
                UnidentifiedImageError,
                Image.DecompressionBombError,
                OSError,
                SyntaxError,
                ValueError,
            ) as error:
                raise DataFault(
                    f"{where}: the image is damaged, or is none of {', '.join(FORMATS)}", "store it again"
                ) from error
    return pixels
