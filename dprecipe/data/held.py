"""Records that come from Python, held to what was declared and to what was asked for.

A step counts on it that a record is in an answer exactly as often as it was asked for: one that came twice would count
twice, and the noise covers once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import DataFacts, Role
from dprecipe.data.raw import Labels
from dprecipe.data.records import Records, RecordSource
from dprecipe.faults import DataFault


@final
class HeldSource:
    """A source of a kind of somebody's own. Every answer is looked at before anything is made of it."""

    def __init__(self, source: RecordSource, expected: DataFacts, role: Role) -> None:
        """
        Raises:
            DataFault: its units are not whole numbers from 0 on, one a record.
        """
        self._source = source
        self._expected = expected
        self._role = role
        self._count = len(source)
        self._form: tuple[tuple[int, ...], np.dtype[np.generic]] | None = None
        self.units = hold_units(source.units, self._count, role)
        self.unit_count = self._count if self.units is None else int(self.units.max(initial=-1)) + 1

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        """What the source answers.

        Raises:
            DataFault: it has not one row and one label for each record that was asked for, its rows are not numbers of
                one shape and type from answer to answer, or a label is not what the recipe declares.
        """
        asked = len(range(self._count)[indices]) if isinstance(indices, slice) else len(indices)
        features, labels = self._source.batch(indices)
        if not (isinstance(features, np.ndarray) and isinstance(labels, np.ndarray)):
            raise DataFault(f"`{self._role}`.batch answers no NumPy arrays", "return (features, labels), both arrays")
        if features.ndim < 1 or not len(features) == len(labels) == asked:
            raise DataFault(
                f"`{self._role}`.batch does not answer one row and one label for each record it was asked for",
                "return row i for the i-th number asked for: a record that comes twice would count twice",
            )
        form = (features.shape[1:], features.dtype)
        if self._form is None:
            hold_numbers(features, self._role)
            self._form = form
        if form != self._form:
            raise DataFault(
                f"`{self._role}`.batch answers rows of {form[1]} {list(form[0])}, and of {self._form[1]} "
                f"{list(self._form[0])} before",
                "give every record one shape and type",
            )
        return features, hold_labels(labels, asked, self._expected, self._role)


def held(records: RecordSource, expected: DataFacts, role: Role) -> RecordSource:
    """Records from Python, checked now as far as that can be: `Records` whole, others answer by answer.

    Raises:
        DataFault: arrays are not one row, one label and one unit a record, features are no numbers, or a label is not
            what the recipe declares.
    """
    if type(records) is not Records:  # what is derived from it may answer by itself
        return HeldSource(records, expected, role)
    hold_numbers(records.features, role)
    if len(records.features) != len(records.labels):
        raise DataFault(f"`{role}` does not have one label a record", "pass features and labels of one length")
    labels = hold_labels(records.labels, len(records.features), expected, role)
    units = hold_units(records.units, len(records.features), role)
    if labels is records.labels and units is records.units:
        return records
    return replace(records, labels=labels, units=units)


def hold_numbers(features: NDArray[np.generic], role: Role) -> None:
    """Features are numbers.

    Raises:
        DataFault: they are not.
    """
    if features.dtype.kind not in "iufb" or features.ndim < 1:
        raise DataFault(f"the features of `{role}` are an array of {features.dtype}", "pass an array of numbers")


def hold_units(units: NDArray[np.int64] | None, count: int, role: Role) -> NDArray[np.int64] | None:
    """The units of records, int64.

    Raises:
        DataFault: they are not whole numbers from 0 on, one a record.
    """
    if units is None:
        return None
    units = np.asarray(units)
    if units.shape != (count,) or units.dtype.kind not in "iu" or units.min(initial=0) < 0:
        raise DataFault(
            f"the units of `{role}` are not one whole number a record, from 0 on",
            "number the units from 0 without gaps, int64",
        )
    return units.astype(np.int64, copy=False)


def hold_labels(labels: NDArray[np.generic], count: int, expected: DataFacts, role: Role) -> Labels:
    """Labels as a run takes them, int64, or float32 of numbers; of public records they are never looked at.

    Raises:
        DataFault: there is not one a record, or one is not what the recipe declares.
    """
    remedy = "from -1 to 1" if expected.target is not None else f"integers from 0 to {expected.classes - 1}"
    if role == "public":
        return np.zeros(count, np.int64)
    if labels.shape != (count,):
        raise DataFault(
            f"`{role}` does not have one label a record",
            f"pass labels of shape (N,), {remedy}",
            f"labels of shape {list(labels.shape)}, {count:,} records",
        )
    if expected.target is not None:
        if labels.dtype.kind not in "iuf" or not bool((np.abs(labels) <= 1).all()):
            raise DataFault(f"a label of `{role}` is not a number from -1 to 1", f"pass labels {remedy}")  # nor is NaN
        return labels.astype(np.float32, copy=False)
    whole = labels.dtype.kind in "iu"
    if not whole or (count and not (labels.min() >= 0 and labels.max() < expected.classes)):
        raise DataFault(
            f"a label of `{role}` is no integer from 0 to {expected.classes - 1}", f"pass labels that are {remedy}"
        )
    return labels.astype(np.int64, copy=False)
