"""Encoded images (PNG, JPEG, WebP) to pixels of the declared shape."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.encoders import Place
from dprecipe.data.problems import Problems

FORMATS = ("PNG", "JPEG", "WEBP")
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def decode_images(
    images: Sequence[bytes | None], shape: tuple[int, ...], subject: str, where: Place, problems: Problems
) -> NDArray[np.uint8]:
    """Images as (N, height, width, channels). `subject` names their source, and `where` the place of each.

    The size in an image's header is held against `shape` before a pixel is decoded.

    One that is missing, damaged, of another format or of another shape is told to the problems.
    """
    from PIL import Image, UnidentifiedImageError

    height, width, channels = shape
    pixels = np.zeros((len(images), height, width, channels), dtype=np.uint8)
    damaged = (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pillow's remarks on odd files; what matters is checked here
        for row, content in enumerate(images):
            place = where(row)
            if content is None:
                remedy = "store the bytes in the file, not only their path"
                problems.add(subject, "a record holds no image bytes", remedy, place)
                continue
            try:
                with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                    result = (image.height, image.width, len(image.getbands()))
                    if image.mode == "P" and channels == 3:
                        result = (*result[:2], 3)
                    if result == shape and image.mode in (MODES[channels], "P"):
                        pixels[row] = np.asarray(image.convert(MODES[channels])).reshape(shape)
                    else:
                        problems.add(
                            subject,
                            f"an image is not {'×'.join(map(str, shape))} ({MODES[channels]}; height×width×channels)",
                            "resize or convert the images beforehand, or declare the shape that they have",
                            f"{place}: {'×'.join(map(str, result))}, {image.mode}",
                        )
            except damaged:
                problems.add(
                    subject, f"an image is damaged, or is none of {', '.join(FORMATS)}", "store it again", place
                )
    return pixels
