"""The pixels of one encoded image.

Images are untrusted: the header is compared with the declaration before a pixel is decoded, a file has at most
`MAX_IMAGE_BYTES` bytes, and one to be resized at most `MAX_PIXELS` pixels.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dprecipe.data.images import MAX_IMAGE_BYTES, EncodedImage, ImageForm

FORMATS = ("PNG", "JPEG", "WEBP")
DAMAGED = f"an image is damaged, or is none of {', '.join(FORMATS)}"
MAX_PIXELS = 1 << 26
"""Upper bound for an image that is resized; another one has the declared pixels."""


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """Reason to refuse an image; `detail` says more, about a private record."""

    problem: str
    remedy: str
    detail: str = ""


def decode_image(form: ImageForm, content: EncodedImage, pixels: NDArray[np.uint8]) -> Refused | None:
    """Decodes an image into `pixels`, or says why it can't."""
    try:
        if isinstance(content, Path):
            with content.open("rb") as stream:
                content = stream.read(MAX_IMAGE_BYTES + 1)
        if content is None:
            return Refused("a record holds no image bytes", "store the bytes in the file, not only their path")
        if len(content) > MAX_IMAGE_BYTES:
            return Refused(f"an image has more than {MAX_IMAGE_BYTES:,} bytes", "store it smaller")
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            refused = _check_header(image, form)
            if refused is None:
                pixels[:] = _pixels(image, form)
            return refused
    except MemoryError:
        raise
    except FileNotFoundError:
        return Refused("an image is not there", "add the file to the folder, or remove its row from the table")
    except OSError as error:
        if error.errno is None:  # pillow's own
            return Refused(DAMAGED, "store it again")
        return Refused("an image can't be read", "check its permissions, or copy it again")
    except Exception:  # whatever a decoder meets in a hostile file; its message could quote the file
        return Refused(DAMAGED, "store it again")


def _check_header(image: Image.Image, form: ImageForm) -> Refused | None:
    channels = form.shape[2]
    palette = image.mode == "P" and channels in (1, 3)
    result = (image.height, image.width, channels if palette else len(image.getbands()))
    detail = f"{'×'.join(map(str, result))}, {image.mode}"
    shape = f"{'×'.join(map(str, form.shape))} ({form.mode}; height×width×channels)"
    if getattr(image, "is_animated", False):
        return Refused("an image is animated", "store one frame of it as an image", detail)
    if form.resize is not None:
        if image.height * image.width > MAX_PIXELS:
            return Refused(f"an image has more than {MAX_PIXELS:,} pixels", "store it smaller", detail)
        if not (image.mode == form.mode or palette):
            remedy = "convert the images beforehand, or declare the channels that they have"
            return Refused(f"an image is not of mode {form.mode}, as {channels} channels are", remedy, detail)
    elif result != form.shape or not (image.mode == form.mode or palette):
        remedy = "resize or convert the images beforehand, or declare the shape that they have"
        return Refused(f"an image is not {shape}", remedy, detail)
    return None


def _pixels(image: Image.Image, form: ImageForm) -> NDArray[np.uint8]:
    """Returns an image's pixels, brought to the declared size if they are of another one."""
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


def _reduction(image: Image.Image, form: ImageForm) -> int:
    """Returns the factor by which an image may be decoded smaller and still have twice the pixels that are needed
    each way.
    """
    height, width, _ = form.shape
    return max(1, min(image.height // (2 * height), image.width // (2 * width)))
