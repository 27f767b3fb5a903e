"""Reads a source and checks it against the recipe's declarations.

Nothing is derived from the data: shape, classes, size and ranges are what the recipe declares. A file that differs is
refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dprecipe.data.copies import Copy, open_copy
from dprecipe.data.counts import SourceCounts
from dprecipe.data.facts import DataFacts, Role, describe_data, sequences_step, tokenize_step, tokenizer_file
from dprecipe.data.files import data_root, locate_file
from dprecipe.data.omitted import is_omitted
from dprecipe.data.paid.schema import DpCategories, DpVocabulary
from dprecipe.data.raw import Raw, Reading, empty_side_fault, size_fault
from dprecipe.data.records import Records
from dprecipe.data.schema import AnySource, Data, Hash, OneHot, Sequences, Step, Tokenize
from dprecipe.data.storage import IN_MEMORY_BYTES, SPILLING, Storage
from dprecipe.data.tokens import SequenceTokens, Tokens, open_sequence_tokens, open_tokens
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault

if TYPE_CHECKING:
    from dprecipe.data.held import HeldRecords

__all__ = ["DataFacts", "Records", "data_root", "describe_data", "load"]

AnyTokens = Tokens | SequenceTokens
_ON_READING = (OneHot, Hash, Tokenize, Sequences, DpCategories, DpVocabulary)
"""Steps that a reader takes part in."""


def load(
    source: AnySource, data: Data, root: Path, role: Role, identity: str | None = None, copies: Path | None = None
) -> Records:
    """Returns the records of a source, ready for `Records.batch`.

    As `train`, each unit is cut to its first `max_records` records, and the number of units (of records, if `unit` is
    `record`) must be `data.size`, or from 1 to its bound. `Records.identities` name the records permanently: by the
    column `identity`, else by the unit's column, else by their numbers in the source, counted before `records` selects.

    As `test` or `public`, records have no units, no declared size and no identities. As `public`, no label is read,
    whatever the recipe names and the file contains: all are zeros. Where a split cuts `test` out of the training
    source, that source is read for both, each time one side; what is declared is the number of units of the whole.

    `copies`: a folder of prepared copies (`dprecipe.data.copies`); the records come from there where they can.

    Raises:
        RecipeError: `data` contradicts itself.
        DataFault: a file is missing or does not match the recipe; a training record has no name; the disk refuses.
    """
    return read(source, data, root, role, identity, copies)[0].prepared()


def read(
    source: AnySource,
    data: Data,
    root: Path,
    role: Role,
    identity: str | None = None,
    copies: Path | None = None,
    held: HeldRecords | None = None,
    tokens: AnyTokens | None = None,
    anew: bool = False,
) -> tuple[Records, SourceCounts]:
    """Loads records before any step of preprocessing, and counts missing, clamped and undeclared values. `held`:
    records in memory, instead of the source's files. `tokens`: of the recipe's steps (`open_all_tokens`), where
    they are opened already. `anew`: the copy in `copies` is of what the files hold now, whatever is remembered of them.

    Raises:
        UsageFault: `held` is of another kind than the source.
        RecipeError, DataFault: as `load`; all problems of the source are reported at once.
    """
    describe_data(data, role)
    name_column = _name_column(source, data, role, identity)
    own = tokenizer_file(data.preprocess)
    tokens = open_all_tokens(data.preprocess, root) if tokens is None else tokens

    def reading_to(storage: Storage) -> Reading:
        return replace(Reading.of(source, data, role, name_column, storage), tokens=tokens)

    if held is not None:
        reading = reading_to(_storage(source, data, role))
        return _read(lambda: held.read(source, reading), source, data, reading)
    files = [] if copies is None else source.all_files(root)
    if copies is None or not files:  # what comes from no file has no digest to find a copy by
        reading = reading_to(_storage(source, data, role))
        return _read(lambda: source.read(root, reading), source, data, reading)
    written = list(source.files.values())
    if own is not None:
        files, written = [*files, locate_file(own.path, root)], [*written, own.path]
    names = [os.path.relpath(file, root) for file in files]  # a folder's name may be a label
    declared = [_declared(source, data), role, name_column, names]
    with open_copy(copies, declared, files, written, anew) as copy:
        reading = reading_to(copy.storage)
        return _read(lambda: source.read(root, reading), source, data, reading, copy)


def open_all_tokens(steps: Sequence[Step], root: Path) -> AnyTokens | None:
    """Opens the tokeniser of a `sequences` or a `tokenize` step; returns None without one. `root`: the data root.

    Raises:
        DataFault, UsageFault: the tokeniser can't be opened, or is not what is declared.
    """
    sequences, words = sequences_step(steps), tokenize_step(steps)
    if sequences is not None:
        return open_sequence_tokens(sequences, root)
    return None if words is None else open_tokens(words, root)


def _declared(source: AnySource, data: Data) -> object:
    """Returns what decides how a source is read; later steps and the declared size are left out."""
    steps = [step for step in data.preprocess if isinstance(step.operation, _ON_READING)]
    unit = data.unit if isinstance(data.unit, str) else data.unit.model_dump(mode="json")
    split = None if data.split is None else data.split.model_dump(mode="json")
    taken = [step.model_dump(mode="json", exclude_none=True) for step in steps]
    return [source.model_dump(mode="json"), unit, split, taken]


def _read(
    open_source: Callable[[], Raw], source: AnySource, data: Data, reading: Reading, copy: Copy | None = None
) -> tuple[Records, SourceCounts]:
    role, kept = reading.role, None if copy is None else copy.load()
    if kept is not None:
        raw, counts = kept
        reading = replace(reading, counts=counts)
    else:
        try:
            raw = open_source()
        except MemoryError:
            raise reading.problems.stop(
                DataFault(
                    f"data.{role}: its values need more memory than there is",
                    "shorten the values or remove columns (for Parquet: write smaller row groups), or use a machine "
                    "with more memory",
                )
            ) from None
    if role != "test" or data.split is None:  # a rare value may be in no record that is held out
        reading.counts.check(f"data.{role}", reading.problems)
    units = None if raw.identities is None or reading.units is None or role != "train" else raw.identities.of_record
    identities = _identities(raw, source) if role == "train" else None
    records = Records(raw.features, raw.labels, units, data.preprocess, identities, texts=raw.texts)
    count = records.unit_count if reading.split is None or raw.units is None else raw.units
    if reading.reads_train and not data.admits(count):
        raise reading.problems.stop(size_fault(data, count))
    reading.problems.check()
    if reading.split is not None and len(records) == 0:
        raise empty_side_fault(data, role)
    if role == "test" and _lacks_labels(data, raw):
        raise reading.problems.stop(
            DataFault("data.test has no record with a label", "name records that have one, or remove data.test")
        )
    if copy is not None and kept is None:
        copy.publish(raw, reading.counts)
    return records, reading.counts


def _lacks_labels(data: Data, raw: Raw) -> bool:
    """Returns True if no public test record has a label. Nothing may stop because private ones have none."""
    public = data.test is not None and data.test.access == "public"
    omits = data.held_out is not None and data.held_out.omits_records
    return public and omits and len(raw.labels) > 0 and bool(is_omitted(np.asarray(raw.labels)).all())


def _storage(source: AnySource, data: Data, role: Role) -> Storage:
    """Returns storage in memory, or in files without a name where the records of the declared number may take more than
    `storage.IN_MEMORY_BYTES`. The actual number decides only where none is declared."""
    if role != "train":
        return SPILLING
    unit = data.unit
    rows = data.max_units * (1 if unit == "record" else unit.max_records)
    if source.records is not None:
        rows = min(rows, source.records[1] - source.records[0])
    bytes_each = 4 * math.prod(describe_data(data, role).source_shape)
    return Storage(0 if rows * bytes_each > IN_MEMORY_BYTES else math.inf, expected=rows)


def _identities(raw: Raw, source: AnySource) -> Identities:
    if raw.identities is not None:
        return raw.identities
    return Identities.numbered(len(raw.labels), 0 if source.records is None else source.records[0])


def _name_column(source: AnySource, data: Data, role: Role, identity: str | None) -> str | None:
    """Returns the column that names training records, and those that are cut out of them; None if their numbers do."""
    if role == "public" or (role == "test" and data.split is None):
        return None
    column = identity if data.unit == "record" else data.unit.column
    if identity not in (None, column):
        raise DataFault(
            f"records are named by {identity!r}, but all records of one {column!r} must stay together",
            f"name {column!r}, or no column",
        )
    if column is not None and not source.has_names:
        raise DataFault(
            f"source {source.source} has no column {column!r}",
            "use a csv, parquet, image_folder, datasets or npz source",
        )
    return column
