"""Reads a source into memory and checks it against the recipe's declarations.

Nothing is derived from the data: shape, classes, size and ranges are what the recipe declares. A file that differs is
refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dprecipe.data.counts import SourceCounts
from dprecipe.data.facts import DataFacts, Role, describe_data
from dprecipe.data.files import data_root
from dprecipe.data.raw import Raw, Reading, size_fault
from dprecipe.data.records import Records
from dprecipe.data.schema import AnySource, Data
from dprecipe.data.units import Identities, bound_units
from dprecipe.faults import DataFault

__all__ = ["DataFacts", "Records", "data_root", "describe_data", "load"]


def load(source: AnySource, data: Data, root: Path, role: Role, identity: str | None = None) -> Records:
    """The records of a source, ready for `Records.batch`.

    As `train`, each unit is cut to its first `max_records` records, and the number of units (of records, if `unit` is
    `record`) must be `data.size`, or from 1 to its bound. `Records.identities` name the records permanently: by the
    column `identity`, else by the unit's column, else by their numbers in the source, counted before `records` selects.

    As `test` or `public`, records have no units, no declared size and no identities. As `public`, no label is read,
    whatever the recipe names and the file contains: all are zeros.

    Raises:
        RecipeError: `data` contradicts itself.
        DataFault: a file is missing or does not match the recipe; a training record has no name.
    """
    return read(source, data, root, role, identity)[0].prepared()


def read(
    source: AnySource, data: Data, root: Path, role: Role, identity: str | None = None
) -> tuple[Records, SourceCounts]:
    """As `load`, before any step of preprocessing, and the counts of missing, clamped and undeclared values.

    Raises:
        RecipeError, DataFault: as `load`; all problems of the source are reported at once.
    """
    describe_data(data, role)
    reading = Reading.of(source, data, role, _name_column(source, data, identity) if role == "train" else None)
    try:
        raw = source.read(root, reading)
    except MemoryError:
        raise reading.problems.stop(
            DataFault(
                f"data.{role}: its values need more memory than there is",
                "shorten the values or remove columns (for Parquet: write smaller row groups), or use a machine with "
                "more memory",
            )
        ) from None
    reading.counts.check(f"data.{role}", reading.problems)
    identities = _identities(raw, source) if role == "train" else None
    records = Records(raw.features, raw.labels, None, data.preprocess, identities, texts=raw.texts)
    if identities is not None and data.unit != "record":
        chosen = bound_units(identities.of_record, data.unit.max_records)
        of_record = identities.of_record[chosen]
        records = Records(
            raw.features[chosen],
            raw.labels[chosen],
            of_record,
            data.preprocess,
            replace(identities, of_record=of_record),
            texts={name: column.select(chosen.tolist()) for name, column in raw.texts.items()},
        )
    if role == "train" and not data.admits(records.unit_count):
        raise reading.problems.stop(size_fault(data, records.unit_count))
    reading.problems.check()
    return records, reading.counts


def _identities(raw: Raw, source: AnySource) -> Identities:
    if raw.names is None:
        return Identities.numbered(len(raw.labels), 0 if source.records is None else source.records[0])
    return Identities.named(raw.names)


def _name_column(source: AnySource, data: Data, identity: str | None) -> str | None:
    """The column that names training records; None if their numbers do."""
    column = identity if data.unit == "record" else data.unit.column
    if identity not in (None, column):
        raise DataFault(
            f"records are named by {identity!r}, but all records of one {column!r} must stay together",
            f"name {column!r}, or no column",
        )
    if column is not None and not source.has_names:
        raise DataFault(
            f"source {source.source} has no column {column!r}", "use a csv, parquet, image_folder or npz source"
        )
    return column
