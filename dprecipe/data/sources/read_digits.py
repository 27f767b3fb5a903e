"""`digits`: real handwritten digits that come with the package, for a first run without a download."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np

from dprecipe.data.collector import RecordCollector
from dprecipe.data.raw import Raw, Reading, channels_first, drop_labels, record_number
from dprecipe.data.sources.arrays import AnyDigits
from dprecipe.data.sources.base import Labelled

TEST_EVERY = 5
DARKEST = np.float32(16)


def read(source: AnyDigits, root: Path, reading: Reading) -> Raw:
    """Returns the records of a split: (N, 1, 8, 8) float32 in [0, 1]. Every fifth record of the set is `test`."""
    with (
        as_file(files("dprecipe.data") / "embedded" / "digits.npz") as path,
        np.load(path, allow_pickle=False) as archive,
    ):
        features = archive["features"]
        labels = archive["labels"] if isinstance(source, Labelled) else drop_labels(len(features))
    is_test = np.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
    chosen = is_test if source.split == "test" else ~is_test
    features, labels = features[chosen], labels[chosen]
    part = reading.span(source.records, len(labels), f"digits ({source.split})")
    collector = RecordCollector(reading)
    side = collector.choose({}, part.stop - part.start, record_number)
    rows = slice(part.start, part.stop) if side is None else part.start + side
    collector.append(channels_first(features[rows] / DARKEST), labels[rows].astype(np.int64))
    reading.counts.records = len(labels[rows])
    return collector.raw(np.empty((0, 1, *features.shape[1:]), np.float32))
