"""Raw records to the features that a released module takes: the preprocessing of training, from `model.json` alone.

No torch: what predicts may be another runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.counts import SourceCounts
from dprecipe.data.facts import sequences_step
from dprecipe.data.frames import chunk_table, place_of
from dprecipe.data.preprocess import Floats, prepare_features
from dprecipe.data.problems import Place, Problems
from dprecipe.data.raw import channels_first
from dprecipe.data.records import Records
from dprecipe.data.table import TableEncoder
from dprecipe.data.tokens import Tokens
from dprecipe.data.values import Values
from dprecipe.faults import DataFault
from dprecipe.models.file import ModelFile

ROWS = 1024
"""Records that are prepared together."""


class UndeclaredValues(UserWarning):
    """Values of new records are outside of what the recipe declares, and count as they would have in training."""


@final
class Preparation:
    """Prepares new records for one prediction, and counts values that are missing, clamped or not declared.

    Edge cases: a number outside its range is clamped, a category that is not declared becomes `other`, a missing field
    counts as what the column declares. A field that is none of these is a problem, as it is in training.

    `private`: messages name no place in the records, as of a file; see `Problems`. `lenient`: a record with a problem
    has features too, which mean nothing, and those around it are prepared.
    """

    def __init__(
        self, file: ModelFile, private: bool = False, tokens: Tokens | None = None, lenient: bool = False
    ) -> None:
        """`tokens`: those of the release's tokeniser, if it has one."""
        self.file = file
        self._tokens, self._lenient = tokens, lenient
        if sequences_step(file.preprocess) is not None:
            raise DataFault("the model writes text, and has no label to predict", "use dprecipe generate")
        self.counts = SourceCounts()
        self.problems = Problems(private, finished=True)
        encoder = self._encoder()
        self.names = encoder.names
        """The columns of a table that are features; none of an array."""
        self.numeric = frozenset(encoder.numeric)

    def _encoder(self) -> TableEncoder:
        return TableEncoder(self.file.columns or {}, self.file.preprocess, self.problems, self.counts, self._tokens)

    def batches(self, raw: object, rows: int = ROWS) -> Iterator[Floats]:
        """Yields prepared features (n, *shape), n at most `rows`, of records that are in memory.

        A table is what `frames.chunk_table` takes; arrays are (N, …) in the source's layout (height, width, channels),
        bytes 0 … 255 or floats (pixels: 0 … 1).

        Raises:
            DataFault: they are not of the shape, or not of the columns, that the model was trained on. Problems with
                fields are raised together, after the last batch.
        """
        if self.file.columns is None:
            array = self._check_array(raw)
            for first in range(0, len(array), rows):
                yield self.prepare_array(array[first : first + rows])
            return
        for first, count, columns in chunk_table(raw, self.names, rows):
            features = self.prepare_columns(columns, count, partial(place_of, first))
            if features is not None:
                yield features
        self.problems.check()

    def prepare_columns(self, columns: Mapping[str, Values], rows: int, place: Place) -> Floats | None:
        """Returns the features of a chunk of a table; None once there is a problem, unless `lenient`."""
        encoder = self._encoder()  # anew: it keeps the texts of what it has encoded
        encoded = encoder.encode(columns, rows, place)
        if self.problems.found and not self._lenient:
            return None
        pending, texts = self.file.preprocess, encoder.text_values()
        records = Records(encoded, np.zeros(rows, np.int64), pending=pending, texts=texts)
        features, _ = records.with_all_constants(self.file.stages or ()).batch(slice(None))
        return features

    def prepare_array(self, array: NDArray[np.generic]) -> Floats:
        """Returns the features of arrays in the source's layout."""
        self.counts.records += len(array)
        array = array if array.dtype == np.uint8 else array.astype(np.float32)
        return prepare_features(channels_first(array), self.file.ready_steps)

    def _check_array(self, raw: Any) -> NDArray[np.generic]:
        array: NDArray[np.generic] = np.asarray(raw)
        expected = self.file.source_shape or ()
        if array.ndim == 0 or array.shape[1:] != expected or array.dtype.kind not in "uif":
            raise DataFault(
                f"the features have shape {list(array.shape)} ({array.dtype}), expected numbers of shape "
                f"[records, {', '.join(map(str, expected))}]",
                "pass raw features in the layout of the recipe's source",
            )
        return array

    def describe_undeclared(self, missing: bool = False) -> list[str]:
        """Describes for each column how many values were clamped or not declared.

        With `missing`, also how many were missing, which a recipe foresees."""
        counts = {
            name: {
                "missing": column.missing if missing else 0,
                "clamped": column.below + column.above,
                "not declared (`other`)": column.other,
            }
            for name, column in self.counts.columns.items()
        }
        return [
            f"{name}: " + ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)
            for name, parts in counts.items()
            if any(parts.values())
        ]
