"""Records without a label, where a recipe says `missing: omit`: their gradients are zero.

*Guarantee*: records without a label change no claim. The loss of a record is a function of it alone, and
the constant 0 where its label is missing; its gradient is then the zero vector, which is as short as clipping demands.
So every record, labelled or not, adds a vector of at most the clip norm: adding, removing, replacing or blanking out
one moves the sum as far as before, batches are drawn from all records, and `data.size` counts them all. How many labels
are missing is a function of private records: nothing that is released or logged depends on it otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.values import Values, select_rows, texts_of
from dprecipe.data.words import MARKS

OMITTED = -1
"""The label of a record without one; NaN where labels are not whole numbers."""


def is_omitted(labels: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Returns a mask of the labels (N,) that are missing."""
    return np.isnan(labels) if labels.dtype.kind == "f" else np.asarray(labels == OMITTED)


def find_missing(values: Values, names: Sequence[str] = ()) -> NDArray[np.bool_]:
    """Finds the fields that are empty or hold a mark for a missing value, such as NA, that is none of the `names`."""
    if isinstance(values, np.ma.MaskedArray):
        masked = np.array(np.ma.getmaskarray(values))
        return masked | np.isnan(values.data) if values.dtype.kind == "f" else masked
    known, texts = frozenset(names), texts_of(values)
    found = {text: text not in known and (text == "" or text.casefold() in MARKS) for text in set(texts)}
    return np.fromiter((found[text] for text in texts), np.bool_, len(texts))


def encode_present(
    values: Values, missing: NDArray[np.bool_], encode: Callable[[Values, Sequence[int]], NDArray[Any]]
) -> NDArray[Any]:
    """Returns labels (N,): those of the fields that are present, as `encode` makes them of their values and rows, and
    the mark of a missing one elsewhere."""
    rows = np.flatnonzero(~missing).tolist()
    return mark_missing(encode(select_rows(values, rows), rows), missing)


def mark_missing(encoded: NDArray[Any], missing: NDArray[np.bool_]) -> NDArray[Any]:
    """Returns labels (N,): in their order those `encoded` that are present, and the mark of a missing one elsewhere."""
    labels = np.full(len(missing), np.nan if encoded.dtype.kind == "f" else OMITTED, encoded.dtype)
    labels[~missing] = encoded
    return labels
