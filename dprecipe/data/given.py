"""Records that come from Python: told from other objects before anything is read, built or probed. No torch here."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.facts import DataFacts, Role, facts
from dprecipe.data.held import held, hold_labels
from dprecipe.data.records import Records, RecordSource
from dprecipe.data.schema import Data
from dprecipe.faults import DataFault, UsageFault

ACCEPTED = (
    "pass (features, labels) as two NumPy arrays, features float32 of the shape {shape} a record, prepared as the "
    "model takes them, labels {labels}; or `dprecipe.data.records.Records`; or leave it out and name a file in the "
    "recipe"
)

_SOURCE = ("batch", "units", "unit_count", "__len__")


def given(value: object, data: Data, role: Role) -> RecordSource:
    """What a run reads from, of an object that was passed as `train`, `public` or `test`.

    A source is held to what was declared and to what each batch asks for: `data.held`. Of two arrays, features (N, …)
    and labels (N,), records are made; of `public`, features alone will do, and labels are not looked at.

    Raises:
        UsageFault: it is neither; says what to pass.
        DataFault: the arrays are not what the recipe declares.
    """
    expected = facts(data, role)
    labels = "from -1 to 1" if expected.target is not None else f"int64 from 0 to {expected.classes - 1}"
    accepted = ACCEPTED.format(shape=list(expected.shape), labels=labels)
    if not isinstance(value, type) and all(hasattr(value, name) for name in _SOURCE):
        return held(cast(RecordSource, value), expected, role)
    if role == "public" and isinstance(value, np.ndarray):
        return Records(_features(value, expected, role, accepted), np.zeros(len(value), np.int64))
    if not (isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_array, value))):
        raise UsageFault(f"`{role}` is {_described(value)}, which no run can read from", accepted)
    features = _features(_array(value[0]), expected, role, accepted)
    if role == "train" and data.unit != "record":
        raise UsageFault(
            f"`train` is two arrays, which do not say which {data.unit.column} a record is of",
            "pass dprecipe.data.records.Records(features, labels, units), with the number of each record's unit, or "
            "name a file in the recipe",
        )
    if role == "public":
        return Records(features, np.zeros(len(features), np.int64))
    return Records(features, hold_labels(_array(value[1]), len(features), expected, role))


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "detach") and hasattr(value, "numpy"))


def _array(value: Any) -> NDArray[Any]:
    return value if isinstance(value, np.ndarray) else np.asarray(value.detach().cpu().numpy())


def _described(value: object) -> str:
    """An object by its type, never by its content."""
    kind = type(value)
    if isinstance(value, tuple | list):
        return f"a {kind.__name__} of {', '.join(sorted({type(one).__name__ for one in value[:20]})) or 'nothing'}"
    return f"{'an' if kind.__name__[:1] in 'AEIOUaeiou' else 'a'} {kind.__module__.partition('.')[0]} {kind.__name__}"


def _features(array: NDArray[Any], expected: DataFacts, role: Role, accepted: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "iufb" or array.ndim < 1:
        raise UsageFault(f"the features of `{role}` are an array of {array.dtype}", accepted)
    if array.shape[1:] != expected.shape:
        raise DataFault(
            f"a record of `{role}` has the shape {list(array.shape[1:])}, the recipe's have {list(expected.shape)}",
            "pass records of that shape, prepared as the model takes them",
        )
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)
