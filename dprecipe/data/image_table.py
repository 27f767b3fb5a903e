"""Rows of images to records: what every source of encoded images passes its chunks to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.encoders import Place
from dprecipe.data.images import Decode, EncodedImage, ImageForm, decoding_images
from dprecipe.data.raw import Labels, Raw, Reading, channels_first, drop_labels
from dprecipe.data.schema import Label
from dprecipe.data.table import encode_labels, join_labels, name_texts
from dprecipe.data.values import Values


@contextmanager
def collecting_images(form: ImageForm, label: Label | None, reading: Reading) -> Iterator[ImageCollector]:
    """A collector of images, while the block lasts: several threads decode them."""
    with decoding_images(form) as decode:
        yield ImageCollector(form, label, reading, decode)


@final
class ImageCollector:
    """The chunks of one source of images, concatenated. Without a label, labels are zeros and no column is read for
    them."""

    def __init__(self, form: ImageForm, label: Label | None, reading: Reading, decode: Decode) -> None:
        height, width, channels = form.shape
        self.form, self._label, self._reading, self._decode = form, label, reading, decode
        self._pixels: list[NDArray[np.generic]] = [np.empty((0, channels, height, width), np.uint8)]
        self._labels: list[Labels] = []
        self._names: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read beside the images, each once."""
        label = None if self._label is None else self._label.column
        return tuple(dict.fromkeys(name for name in (label, self._reading.name_column) if name is not None))

    def add(
        self, images: Sequence[EncodedImage], columns: Mapping[str, Values], place: Place, where: Place, subject: str
    ) -> None:
        """Decode a chunk of images and append them.

        `columns`: the values of `names`. `place` is that of a row, for columns; `subject` and `where` name the source
        and the place in it, for images.
        """
        label, reading = self._label, self._reading
        self._pixels.append(channels_first(self._decode(images, subject, where, reading.problems)))
        reading.counts.records += len(images)
        if label is None:
            self._labels.append(drop_labels(len(images)))
        else:
            self._labels.append(encode_labels(columns[label.column], label, place, reading.problems, reading.counts))
        if reading.name_column is not None:
            self._names += name_texts(columns[reading.name_column], reading.name_column, place, reading.problems)

    def raw(self) -> Raw:
        """All records so far."""
        names = None if self._reading.name_column is None else tuple(self._names)
        return Raw(np.concatenate(self._pixels), join_labels(self._labels), names)
