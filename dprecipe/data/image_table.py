"""Rows of images to records: what every source of encoded images passes its chunks to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np

from dprecipe.data.collector import RecordCollector
from dprecipe.data.images import Decode, EncodedImage, ImageForm, decoding_images
from dprecipe.data.problems import Place
from dprecipe.data.raw import Labels, Raw, Reading, channels_first, drop_labels
from dprecipe.data.schema import Label
from dprecipe.data.table import encode_labels, read_names, select_places
from dprecipe.data.values import Values, select_rows


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
