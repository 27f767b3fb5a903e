"""A source and the recipe's declarations to records in memory, checked against one another.

Nothing is derived from the data: shape, classes, size and ranges are what the recipe declares, and a file
that is otherwise is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dprecipe.data.facts import DataFacts, Role, describe_data
from dprecipe.data.files import data_root
from dprecipe.data.raw import Raw, Reading, wrong_size
from dprecipe.data.records import Records
from dprecipe.data.schema import AnySource, Data
from dprecipe.data.tally import Tally
from dprecipe.data.units import Identities, bound_units
from dprecipe.faults import DataFault

__all__ = ["DataFacts", "Records", "data_root", "describe_data", "load"]


def load(source: AnySource, data: Data, root: Path, role: Role, identity: str | None = None) -> Records:
    """The records of a source, ready for `Records.batch`.

    As `train`, each unit is cut to its first `max_records` records and the number of units (of records, where
    `unit` is `record`) has to be `data.size`. `Records.identities` name the records for good: by the column
    `identity`, else by the unit's column, else by their numbers in the source, counted before `records` selects.

    As `test` or `public` there are neither units nor a declared size nor identities. As `public` no label is read,
    whatever the recipe names and the file holds: they are zeros.

    Raises:
        RecipeError: `data` contradicts itself.
        DataFault: a file is missing, or is not what the recipe declares; a training record has no name.
    """
    return read(source, data, root, role, identity)[0].prepared()


def read(source: AnySource, data: Data, root: Path, role: Role, identity: str | None = None) -> tuple[Records, Tally]:
    """As `load`, before any step of preprocessing is taken, and what became of the values on their way in.

    Raises:
        RecipeError, DataFault: as `load`; everything that is wrong with the source is told at once.
    """
    describe_data(data, role)
    reading = Reading.of(source, data, role, _name_column(source, data, identity) if role == "train" else None)
    try:
        raw = source.read(root, reading)
    except MemoryError:
        raise reading.problems.stop(
            DataFault(
                f"data.{role}: its values take more memory than there is",
                "shorten the values or leave out columns (of Parquet: write smaller row groups), or use a machine with "
                "more memory",
            )
        ) from None
    reading.tally.check(f"data.{role}", reading.problems)
    identities = _identities(raw, source) if role == "train" else None
    records = Records(raw.features, raw.labels, None, data.preprocess, identities)
    if identities is not None and data.unit != "record":
        kept = bound_units(identities.of_record, data.unit.max_records)
        of_record = identities.of_record[kept]
        records = Records(
            raw.features[kept], raw.labels[kept], of_record, data.preprocess, replace(identities, of_record=of_record)
        )
    if role == "train" and records.unit_count != data.size:
        raise reading.problems.stop(wrong_size(data, records.unit_count))
    reading.problems.check()
    return records, reading.tally


def _identities(raw: Raw, source: AnySource) -> Identities:
    if raw.names is None:
        return Identities.numbered(len(raw.labels), 0 if source.records is None else source.records[0])
    return Identities.named(raw.names)


def _name_column(source: AnySource, data: Data, identity: str | None) -> str | None:
    """The column that names training records; None where their numbers do."""
    column = identity if data.unit == "record" else data.unit.column
    if identity not in (None, column):
        raise DataFault(
            f"records are named by {identity!r}, and those of one {column!r} have to stay together",
            f"name {column!r}, or no column",
        )
    if column is not None and not source.has_names:
        raise DataFault(f"source {source.source} has no column {column!r}", "use a csv, parquet or npz source")
    return column
