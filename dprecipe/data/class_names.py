"""Numbers of classes whose names are stored with a column, as Hugging Face's `ClassLabel` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dprecipe.data.sources.base import Columns
from dprecipe.data.sources.labels import Label
from dprecipe.data.words import Header
from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_text


def named_columns(columns: Columns, label: Label | None) -> frozenset[str]:
    """Returns the columns that are read by the names of their classes: their names or texts are declared."""
    named = {name for name, column in columns.items() if column.limits is None}
    if label is not None and (label.values is not None or label.several is not None):
        named.update(label.read_columns)
    return frozenset(named)


def name_classes(batch: Any, classes: Mapping[str, list[str]]) -> Any:
    """Returns a batch of Arrow with names instead of class numbers. A number without one is missing, as -1 is."""
    for name, names in classes.items():
        batch = batch.set_column(batch.schema.names.index(name), name, _names(batch.column(name), names))
    return batch


def _names(column: Any, names: list[str]) -> Any:
    with importing_libraries("a class of names"):
        import pyarrow as pa
        import pyarrow.compute as compute

    if not pa.types.is_integer(column.type):
        return column
    known = compute.and_(compute.greater_equal(column, 0), compute.less(column, len(names)))
    return pa.array(names, pa.string()).take(compute.if_else(known, column, None))


def check_classes(stored: Mapping[str, list[str]], label: Label, subject: str) -> None:
    """Checks that all stored classes of a label's columns are declared; in any order.

    Raises:
        DataFault: one is not.
    """
    declared = label.values or ()
    for column in label.read_columns if declared else ():
        others = [name for name in stored.get(column, ()) if normalise_text(name) not in declared]
        if not others:
            continue
        meant = Header(declared).nearest(others[0])
        raise DataFault(
            f"{subject}, column {column!r}: a class of the data set is none of the {len(declared)} declared ones"
            + (f", and nearly {meant!r}" if meant is not None else ""),
            "declare all classes in label.values as the data set names them",
            ", ".join(map(repr, others[:20])),
        )
