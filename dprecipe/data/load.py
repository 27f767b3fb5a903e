"""A source and the recipe's declarations to records in memory, checked against one another.

Nothing is derived from the data: shape, classes, size and ranges are what the recipe declares, and a file
that is otherwise is refused.
"""

from __future__ import annotations

from pathlib import Path

from dprecipe.data.facts import DataFacts, Role, facts
from dprecipe.data.files import data_root
from dprecipe.data.raw import Raw
from dprecipe.data.records import Records
from dprecipe.data.schema import Csv, Data, Digits, Idx, Npz, Source
from dprecipe.data.units import bounded
from dprecipe.faults import DataFault

__all__ = ["DataFacts", "Records", "data_root", "facts", "load"]


def load(source: Source, data: Data, root: Path, role: Role) -> Records:
    """The records of a source, ready for `Records.batch`.

    As `train`, each unit is cut to its first `max_records` records and the number of units (of records, where
    `unit` is `record`) has to be `data.size`. A `test` source has neither units nor a declared size.

    Raises:
        RecipeError: `data` contradicts itself.
        DataFault: a file is missing, or is not what the recipe declares.
    """
    facts(data, role)
    unit = data.unit if role == "train" and data.unit != "record" else None
    raw = _read(source, data, root, None if unit is None else unit.column)
    units = None
    features, labels = raw.features, raw.labels
    if unit is not None and raw.units is not None:
        kept, units = bounded(raw.units, unit.max_records)
        features, labels = features[kept], labels[kept]
    records = Records(features, labels, units, data.preprocess)
    if role == "train":
        _hold_size(records, data)
    return records.prepared()


def _read(source: Source, data: Data, root: Path, unit_column: str | None) -> Raw:
    # Each reader is imported on use: parquet brings pyarrow and pillow.
    match source:
        case Digits():
            from dprecipe.data.sources import digits

            return digits.read(source)
        case Idx():
            from dprecipe.data.sources import idx

            return idx.read(source, root)
        case Npz():
            from dprecipe.data.sources import npz

            return npz.read(source, root, unit_column)
        case Csv():
            from dprecipe.data.sources import csv_table

            return csv_table.read(source, data, root, unit_column)
        case _:
            from dprecipe.data.sources import parquet

            return parquet.read(source, data, root, unit_column)


def _hold_size(records: Records, data: Data) -> None:
    count = records.unit_count
    if count != data.size:
        what = "records" if data.unit == "record" else f"units (values of {data.unit.column})"
        raise DataFault(
            f"data.train holds {count} {what}, the recipe declares data.size: {data.size}",
            f"write data.size: {count} if that number may be public (it sets the sampling rate and is in the "
            "certificate); else take as many records as you may declare, with data.train.records",
        )
