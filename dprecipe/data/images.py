"""Encoded images (PNG, JPEG, WebP) to pixels of the declared shape, and rows of images to records.

Images are untrusted: see `image_pixels`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.collector import RecordCollector
from dprecipe.data.problems import Place, Problems
from dprecipe.data.raw import Labels, Raw, Reading, channels_first, drop_labels
from dprecipe.data.schema import Label
from dprecipe.data.table import encode_labels, read_names, select_places
from dprecipe.data.values import Values, select_rows
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
                    remedy = refused.remedy.partition(", or declare")[0] if problems.finished else refused.remedy
                    problems.add(subject, refused.problem, remedy, f"{where(row)}{detail}")
            return pixels

        yield decode


@contextmanager
def collecting_images(form: ImageForm, label: Label | None, reading: Reading) -> Iterator[ImageCollector]:
    """Yields a collector of images, while the block lasts: several threads decode them."""
    with decoding_images(form) as decode:
        yield ImageCollector(form, label, reading, decode)


@final
class ImageCollector:
    """The chunks of one source of images. Without a label, labels are zeros and no column is read for them.

    Images on the other side of a split, and those of a unit after its first `max_records`, are skipped before they are
    decoded."""

    def __init__(self, form: ImageForm, label: Label | None, reading: Reading, decode: Decode) -> None:
        self.form, self._label, self._reading, self._decode = form, label, reading, decode
        self._records = RecordCollector(reading)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read beside the images, each once."""
        label = () if self._label is None else self._label.read_columns
        return tuple(dict.fromkeys((*label, *self._reading.naming_columns)))

    def add(
        self, images: Sequence[EncodedImage], columns: Mapping[str, Values], place: Place, where: Place, subject: str
    ) -> None:
        """Decodes a chunk of images and appends them.

        `columns`: the values of `names`. `place` is that of a row, for columns; `subject` and `where` name the source
        and the place in it, for images.

        Raises:
            DataFault: there are more units than declared; the disk refuses.
        """
        label, reading = self._label, self._reading
        chosen = self._records.choose(read_names(columns, place, reading), len(images), place)
        if chosen is not None:
            kept = chosen.tolist()
            images = [images[row] for row in kept]
            columns = {name: select_rows(values, kept) for name, values in columns.items()}
            place, where = select_places(place, kept), select_places(where, kept)
        pixels = channels_first(self._decode(images, subject, where, reading.problems))
        reading.counts.records += len(images)
        labels: Labels = drop_labels(len(images))
        if label is not None:
            labels = encode_labels(columns, label, place, reading.problems, reading.counts)
        self._records.append(pixels, labels)

    def raw(self) -> Raw:
        """Returns all records so far.

        Raises:
            DataFault: the disk refuses.
        """
        height, width, channels = self.form.shape
        return self._records.raw(np.empty((0, channels, height, width), np.uint8))
