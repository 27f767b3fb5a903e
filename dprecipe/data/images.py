"""Encoded images (PNG, JPEG, WebP) to pixels of the declared shape.

Images are untrusted: the header is held against what is declared before a pixel is decoded, a file has at most
`MAX_IMAGE_BYTES` bytes, and one to be resized at most `MAX_PIXELS` pixels.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.problems import Place, Problems
from dprecipe.libraries import importing_libraries
from dprecipe.library_warnings import ignoring_warnings

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

FORMATS = ("PNG", "JPEG", "WEBP")
DAMAGED = f"an image is damaged, or is none of {', '.join(FORMATS)}"
MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
MAX_IMAGE_BYTES = 16 << 20
MAX_PIXELS = 1 << 26
"""Of an image that is resized; another one has the declared pixels."""
MAX_THREADS = 8
Resize = Literal["stretch", "crop"]
EncodedImage = bytes | Path | None
"""An image's bytes, its file, or nothing."""
Decode = Callable[[Sequence[EncodedImage], str, Place, Problems], NDArray[np.uint8]]


@final
@dataclass(frozen=True, slots=True)
class ImageForm:
    """What images become: `shape` (height, width, channels), and how those of another size are brought to it; without
    `resize`, they are refused."""

    shape: tuple[int, ...]
    resize: Resize | None = None

    @property
    def mode(self) -> str:
        """Pillow's word for the channels."""
        return MODES[self.shape[2]]


@final
@dataclass(frozen=True, slots=True)
class _Refused:
    """Why an image is refused; `detail` says more, about a private record."""

    problem: str
    remedy: str
    detail: str = ""


@contextmanager
def decoding_images(form: ImageForm) -> Iterator[Decode]:
    """A function from images to their pixels (N, height, width, channels), in order, by several threads.

    Its arguments: the images, the name of their source and the place of each, for messages, and the problems. To those
    it adds each image that is missing, damaged, animated, or of another format, mode or shape; its pixels are zeros.
    """
    threads = min(MAX_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(threads, thread_name_prefix="images") as pool, ignoring_warnings():

        def decode(images: Sequence[EncodedImage], subject: str, where: Place, problems: Problems) -> NDArray[np.uint8]:
            pixels = np.zeros((len(images), *form.shape), dtype=np.uint8)
            for row, refused in enumerate(pool.map(partial(_decode, form), images, pixels)):
                if refused is not None:
                    detail = f": {refused.detail}" if refused.detail else ""
                    problems.add(subject, refused.problem, refused.remedy, f"{where(row)}{detail}")
            return pixels

        yield decode


def _decode(form: ImageForm, content: EncodedImage, pixels: NDArray[np.uint8]) -> _Refused | None:
    """Decode an image into `pixels`, or say why not."""
    with importing_libraries("an image"):
        from PIL import Image

    try:
        if isinstance(content, Path):
            with content.open("rb") as stream:
                content = stream.read(MAX_IMAGE_BYTES + 1)
        if content is None:
            return _Refused("a record holds no image bytes", "store the bytes in the file, not only their path")
        if len(content) > MAX_IMAGE_BYTES:
            return _Refused(f"an image has more than {MAX_IMAGE_BYTES:,} bytes", "store it smaller")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            refused = _check_header(image, form)
            if refused is None:
                pixels[:] = _pixels(image, form)
            return refused
    except MemoryError:
        raise
    except FileNotFoundError:
        return _Refused("an image is not there", "add the file to the folder, or remove its row from the table")
    except OSError as error:
        if error.errno is None:  # pillow's own
            return _Refused(DAMAGED, "store it again")
        return _Refused("an image can't be read", "check its permissions, or copy it again")
    except Exception:  # whatever a decoder meets in a hostile file; its message could quote the file
        return _Refused(DAMAGED, "store it again")


def _check_header(image: Picture, form: ImageForm) -> _Refused | None:
    channels = form.shape[2]
    palette = image.mode == "P" and channels in (1, 3)
    result = (image.height, image.width, channels if palette else len(image.getbands()))
    detail = f"{'×'.join(map(str, result))}, {image.mode}"
    shape = f"{'×'.join(map(str, form.shape))} ({form.mode}; height×width×channels)"
    if getattr(image, "is_animated", False):
        return _Refused("an image is animated", "store one frame of it as an image", detail)
    if form.resize is not None:
        if image.height * image.width > MAX_PIXELS:
            return _Refused(f"an image has more than {MAX_PIXELS:,} pixels", "store it smaller", detail)
        if not (image.mode == form.mode or palette):
            remedy = "convert the images beforehand, or declare the channels that they have"
            return _Refused(f"an image is not of mode {form.mode}, as {channels} channels are", remedy, detail)
    elif result != form.shape or not (image.mode == form.mode or palette):
        remedy = "resize or convert the images beforehand, or declare the shape that they have"
        return _Refused(f"an image is not {shape}", remedy, detail)
    return None


def _pixels(image: Picture, form: ImageForm) -> NDArray[np.uint8]:
    """An image's pixels, brought to the declared size if they are of another one."""
    with importing_libraries("an image"):
        from PIL import Image, ImageOps

    height, width, _ = form.shape
    if form.resize is None or (image.height, image.width) == (height, width):
        return np.asarray(image.convert(form.mode), np.uint8).reshape(form.shape)
    factor = _reduction(image, form)
    image.draft(None, (-(-image.width // factor), -(-image.height // factor)))  # JPEG: fewer pixels are decoded
    bilinear, converted = Image.Resampling.BILINEAR, image.convert(form.mode)
    if form.resize == "crop":
        resized = ImageOps.fit(converted, (width, height), bilinear)
    else:
        resized = converted.resize((width, height), bilinear)
    return np.asarray(resized, np.uint8).reshape(form.shape)


def _reduction(image: Picture, form: ImageForm) -> int:
    """By how much an image may be decoded smaller and still have twice the pixels that are needed each way."""
    height, width, _ = form.shape
    return max(1, min(image.height // (2 * height), image.width // (2 * width)))
