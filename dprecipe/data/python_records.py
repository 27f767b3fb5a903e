"""Records that are passed from Python: recognised before anything is read, built or probed, and checked against the
recipe and against each request. No torch here.

A batch must contain each record exactly as often as it was requested: a record that came twice would count twice, and
the noise covers it once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import DataFacts, Role, describe_data
from dprecipe.data.raw import Labels, is_count, size_fault
from dprecipe.data.records import Records, RecordSource, describe_type, suggest_taker
from dprecipe.data.schema import Data
from dprecipe.data.several import are_answers, pack_answers
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, TokenTarget
from dprecipe.faults import DataFault, UsageFault

ACCEPTED = (
    "pass (features, labels) as two NumPy arrays, features float32 of the shape {shape} a record, prepared as the "
    "model takes them, labels {labels}; or `dprecipe.Records(features, labels, units)`; or omit it and name a file in "
    "the recipe"
)

_SOURCE = ("batch", "units", "unit_count", "__len__")


def records_from_python(value: object, data: Data, role: Role) -> RecordSource:
    """Returns the source that a run reads from, given an object that was passed as `train`, `public` or `test`.

    A source is checked against the recipe, and each of its batches against the request. Two arrays, features (N, …)
    and labels (N,), become records; `public` needs features only, and labels are ignored.

    Raises:
        UsageFault: it is neither; the message says what to pass.
        DataFault: the records, the number of units or their grouping do not match the recipe.
    """
    source = _source_of(value, data, role)
    if role == "train":
        if not data.admits(source.unit_count):
            raise size_fault(data, source.unit_count)
        _check_grouping(source, data)
    return source


def _source_of(value: object, data: Data, role: Role) -> RecordSource:
    expected = describe_data(data, role)
    accepted = ACCEPTED.format(shape=list(expected.shape), labels=expected.target.describe_labels())
    if not isinstance(value, type) and all(hasattr(value, name) for name in _SOURCE):
        return check_records(cast(RecordSource, value), expected, role)
    if role == "public" and isinstance(value, np.ndarray):
        return Records(_features(value, expected, role, accepted), np.zeros(len(value), np.int64))
    if not (isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_array, value))):
        raise UsageFault(
            f"`{role}` is {describe_type(value)}; a run can't read from it",
            f"{suggest_taker(value)}: it is read as a file is; or {accepted}",
        )
    features = _features(_array(value[0]), expected, role, accepted)
    if role == "train" and data.unit != "record":
        raise UsageFault(
            f"`train` is two arrays, which do not say which {data.unit.column} each record belongs to",
            "pass dprecipe.Records.from_torch(features, labels, units), with the unit of each record, or "
            "name a file in the recipe",
        )
    if role == "public":
        return Records(features, np.zeros(len(features), np.int64))
    return Records(features, _labels(_array(value[1]), len(features), expected, role))


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "numpy"))


def _array(value: Any) -> NDArray[Any]:
    return value if isinstance(value, np.ndarray) else np.asarray(value.detach().cpu().numpy())


def _features(array: NDArray[Any], expected: DataFacts, role: Role, accepted: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "iufb" or array.ndim < 1:
        raise UsageFault(f"the features of `{role}` are an array of {array.dtype}", accepted)
    if array.shape[1:] != expected.shape:
        raise DataFault(
            f"a record of `{role}` has the shape {list(array.shape[1:])}, expected {list(expected.shape)}",
            "pass records of that shape, prepared as the model takes them",
        )
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def _check_grouping(train: RecordSource, data: Data) -> None:
    """Checks that records are grouped into units as the guarantee says.

    Raises:
        DataFault: they are not.
    """
    unit = data.unit
    if (train.units is None) != (unit == "record"):
        units = "no units" if train.units is None else "units"
        raise DataFault(
            f"the training records come with {units}, the recipe protects {'records' if unit == 'record' else 'units'}",
            "give Records.units where, and only where, data.unit is a column",
        )
    if train.units is not None and unit != "record":
        counts = np.bincount(train.units, minlength=train.unit_count)
        if not (counts.min(initial=1) >= 1 and counts.max(initial=0) <= unit.max_records):
            raise DataFault(
                f"a unit has no record, or more than the {unit.max_records} that the recipe allows",
                "number the units from 0 without gaps, and cut each to data.unit.max_records",
                f"up to {counts.max()} records, and down to {counts.min()}",
            )


@final
class CheckedSource:
    """A user's own source. Every batch is checked before it is used."""

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
        self.units = _whole_units(source.units, self._count, role)
        self.unit_count = self._count if self.units is None else int(self.units.max(initial=-1)) + 1

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        """Returns the source's batch, checked.

        Raises:
            DataFault: there is not one row and one label for each requested record, the rows are not numbers of the
                same shape and type in every batch, or a label does not match the recipe.
        """
        requested = len(range(self._count)[indices]) if isinstance(indices, slice) else len(indices)
        features, labels = self._source.batch(indices)
        if not (isinstance(features, np.ndarray) and isinstance(labels, np.ndarray)):
            raise DataFault(
                f"`{self._role}`.batch does not return NumPy arrays", "return (features, labels), both arrays"
            )
        if features.ndim < 1 or not len(features) == len(labels) == requested:
            raise DataFault(
                f"`{self._role}`.batch does not return one row and one label for each requested record",
                "return row i for the i-th requested number: a record that came twice would count twice",
            )
        form = (features.shape[1:], features.dtype)
        if self._form is None:
            _check_numbers(features, self._role)
            self._form = form
        if form != self._form:
            raise DataFault(
                f"`{self._role}`.batch returned rows of {form[1]} {list(form[0])}, after rows of "
                f"{self._form[1]} {list(self._form[0])}",
                "give every record one shape and type",
            )
        return features, _labels(labels, requested, self._expected, self._role)


def check_records(records: RecordSource, expected: DataFacts, role: Role) -> RecordSource:
    """Records from Python, checked: `Records` now and completely, other sources batch by batch.

    Raises:
        DataFault: arrays are not one row, one label and one unit a record, features are not numbers, or a label does
            not match the recipe.
    """
    if type(records) is not Records:  # a subclass may override `batch`
        return CheckedSource(records, expected, role)
    _check_numbers(records.features, role)
    if len(records.features) != len(records.labels):
        raise DataFault(f"`{role}` does not have one label a record", "pass features and labels of one length")
    labels = _labels(records.labels, len(records.features), expected, role)
    units = _whole_units(records.units, len(records.features), role)
    if labels is records.labels and units is records.units:
        return records
    return replace(records, labels=labels, units=units)


def _check_numbers(features: NDArray[np.generic], role: Role) -> None:
    """Checks that features are numbers.

    Raises:
        DataFault: they are not.
    """
    if features.dtype.kind not in "iufb" or features.ndim < 1:
        raise DataFault(f"the features of `{role}` are an array of {features.dtype}", "pass an array of numbers")


def _whole_units(units: NDArray[np.int64] | None, count: int, role: Role) -> NDArray[np.int64] | None:
    """Returns the units of records, int64.

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


def _labels(labels: NDArray[np.generic], count: int, expected: DataFacts, role: Role) -> Labels:
    """Labels as a run takes them: int64, or float32 if they are numbers or counts. Those of public records are never
    looked at.

    Raises:
        DataFault: there is not one for each record, or one does not match the recipe.
    """
    target = expected.target
    remedy = target.describe_labels()
    if role == "public":
        return np.zeros(count, np.int64)
    if isinstance(target, SeveralTarget) and labels.shape == (count, target.outputs):
        sound = labels.dtype.kind in "biu" and bool(are_answers(labels).all())
        labels = pack_answers(labels) if sound else np.full(count, -1)
    if labels.shape != (count,):
        raise DataFault(
            f"`{role}` does not have one label a record",
            f"pass labels that are {remedy}"
            if isinstance(target, SeveralTarget)
            else f"pass labels of shape (N,), {remedy}",
            f"labels of shape {list(labels.shape)}, {count:,} records",
        )
    numeric = labels.dtype.kind in "iuf"
    match target:
        case SeveralTarget(names):
            whole = labels.dtype.kind in "iu"
            if not whole or (count and not (labels.min() >= 0 and int(labels.max()) >> len(names) == 0)):
                raise DataFault(f"a label of `{role}` is neither 0 nor 1", f"pass labels that are {remedy}")
            return labels.astype(np.int64, copy=False)
        case TokenTarget():
            whole = labels.dtype.kind in "iu"
            if not whole or (count and not (labels.min() >= 1 and labels.max() < expected.shape[-1])):
                raise DataFault(
                    f"a label of `{role}` is no number of learned tokens, 1 … {expected.shape[-1] - 1}",
                    f"pass labels that are {remedy}",
                )
            return labels.astype(np.int64, copy=False)
        case NumberTarget():
            if not numeric or not bool((np.abs(labels) <= 1).all()):  # nor is NaN
                raise DataFault(f"a label of `{role}` is not a number from -1 to 1", f"pass labels that are {remedy}")
            return labels.astype(np.float32, copy=False)
        case CountTarget(max=largest):
            counts = labels.astype(np.float64) if numeric else np.full(count, np.nan)
            if not bool((is_count(counts) & (counts <= largest)).all()):
                raise DataFault(f"a label of `{role}` is no count up to {largest}", f"pass labels that are {remedy}")
            return labels.astype(np.float32, copy=False)
        case ClassTarget(classes=classes):
            whole = labels.dtype.kind in "iu"
            if not whole or (count and not (labels.min() >= 0 and labels.max() < classes)):
                raise DataFault(
                    f"a label of `{role}` is not an integer from 0 to {classes - 1}", f"pass labels that are {remedy}"
                )
            return labels.astype(np.int64, copy=False)
