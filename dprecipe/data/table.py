"""Rows of a table to feature vectors, by constants of the recipe alone.

The readers of `csv` and `parquet` pass chunks of rows, as columns of text, numbers and None. A fault names row and
column, never the value: data are private, and messages and logs are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.collector import RecordCollector
from dprecipe.data.counts import SourceCounts
from dprecipe.data.encoders import ColumnReport, encode_column
from dprecipe.data.facts import column_facts, hash_steps, item_steps, sequences_step, tokenize_step
from dprecipe.data.omitted import encode_present, find_missing
from dprecipe.data.problems import Place, Problems
from dprecipe.data.raw import (
    NO_COUNT,
    Labels,
    Raw,
    Reading,
    TextValues,
    count_clamped,
    drop_labels,
    is_count,
    limit_counts,
    map_labels,
)
from dprecipe.data.schema import Columns, Hash, Label, Step
from dprecipe.data.sequences import SequenceEncoder
from dprecipe.data.several import encode_several
from dprecipe.data.targets import CountTarget, NumberTarget, SeveralTarget
from dprecipe.data.tokens import HashedWords, SequenceTokens, Tokens
from dprecipe.data.values import (
    WORD,
    Values,
    as_list,
    hash_bucket,
    number_texts,
    parse_integers,
    parse_numbers,
    select_rows,
    text_of,
    texts_of,
    value_at,
    whole_numbers,
)
from dprecipe.data.words import describe_writing


@final
class TableEncoder:
    """The columns of a table to features (N, D) float32, a chunk at a time."""

    def __init__(
        self,
        columns: Columns,
        steps: Sequence[Step],
        problems: Problems,
        counts: SourceCounts,
        tokens: Tokens | None = None,
    ) -> None:
        """`tokens`: what makes those of a `tokenize` step that names a tokeniser."""
        self._columns = columns
        self._problems = problems
        self._counts = counts
        self._facts = column_facts(columns, steps)
        self._hashes = hash_steps(steps)
        step = tokenize_step(steps)
        self._tokens = HashedWords(step) if tokens is None and step is not None and step.buckets else tokens
        starts = {column.name: column.start for column in self._facts}
        self.text_starts = {name: starts[name] for name in columns if name in item_steps(steps)}
        """Start of the features of each column whose items a paid step releases; they are 0 until then."""
        self.texts: dict[str, Sequence[str]] = {}
        """Values of these columns in the last chunk."""
        self.width = sum(column.width for column in self._facts)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are features, in order."""
        return tuple(self._columns)

    @property
    def numeric(self) -> tuple[str, ...]:
        """Names of the columns that a reader may parse as numbers."""
        return tuple(name for name, column in self._columns.items() if column.is_plain_number)

    def text_values(self) -> dict[str, TextValues]:
        """Returns `texts`, with the places of their features."""
        return {name: TextValues(start, tuple(self.texts.get(name, ()))) for name, start in self.text_starts.items()}

    def encode(self, chunk: Mapping[str, Values], rows: int, place: Place) -> NDArray[np.float32]:
        """Returns the features of a chunk of rows, (rows, D).

        A column becomes features as its kind says (`encoders`); text becomes counts of its hash buckets, or the tokens
        of its first words. A field that is none of what its column declares is added to the problems.
        """
        self._counts.records += rows
        features = np.zeros((rows, self.width), dtype=np.float32)
        for facts, column in zip(self._facts, self._columns.values(), strict=True):
            values = chunk[facts.name]
            part = features[:, facts.start : facts.start + facts.width]
            report = ColumnReport(facts.name, place, self._problems)
            counts = self._counts.column(facts.name, column.kind)
            if column.step != "hash":
                encode_column(values, column, part, report, counts)
                continue
            texts = texts_of(values)
            counts.missing += texts.count("")
            if facts.name in self.text_starts:
                self.texts[facts.name] = texts
            elif self._tokens is not None:
                self._tokens.write(texts, part)
            else:
                _hashed(texts, self._hashes[facts.name], part)
        return features


@final
class Collector:
    """The chunks of one table. Without a label, labels are zeros and no column is read for them.

    Rows on the other side of a split, and those of a unit after its first `max_records`, are skipped before anything
    else of them is looked at.
    """

    def __init__(self, columns: Columns, steps: Sequence[Step], label: Label | None, reading: Reading) -> None:
        self._reading = reading
        self._encoder = _open_encoder(columns, steps, reading)
        self._label = label
        self._records = RecordCollector(reading)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read, each once."""
        label = () if self._label is None else self._label.read_columns
        return tuple(dict.fromkeys((*self._encoder.names, *label, *self._reading.naming_columns)))

    @property
    def chats(self) -> frozenset[str]:
        """The columns that are lists of messages, which are passed as texts in JSON."""
        return self._encoder.chats if isinstance(self._encoder, SequenceEncoder) else frozenset()

    @property
    def numeric(self) -> frozenset[str]:
        """The columns that may be read as numbers. One that names units, records or sides is not: of a
        long name a double keeps 16 digits, and whether a text becomes one must not depend on its neighbours."""
        label = self._label
        target: tuple[str, ...] = ()
        if label is not None and isinstance(label.target, NumberTarget | CountTarget) and label.writing is None:
            target = label.read_columns
        return frozenset((*self._encoder.numeric, *target)).difference(self._reading.naming_columns)

    def add(self, columns: Mapping[str, Values], rows: int, place: Place) -> None:
        """Encodes a chunk of rows and appends it.

        Raises:
            DataFault: there are more units than declared; the disk refuses.
        """
        label, reading = self._label, self._reading
        chosen = self._records.choose(read_names(columns, place, reading), rows, place)
        if chosen is not None:
            kept = chosen.tolist()
            columns = {name: select_rows(values, kept) for name, values in columns.items()}
            rows, place = len(kept), select_places(place, kept)
        if isinstance(self._encoder, SequenceEncoder):
            sequences, counts = self._encoder.encode(columns, rows, place)
            self._records.append(sequences, drop_labels(rows) if reading.role == "public" else counts)
            return
        features = self._encoder.encode(columns, rows, place)
        labels: Labels = drop_labels(rows)
        if label is not None:
            labels = encode_labels(columns, label, place, reading.problems, reading.counts)
        self._records.append(features, labels)
        for name, values in self._encoder.texts.items():
            self._records.append_texts(name, values)

    def raw(self) -> Raw:
        """Returns all records so far.

        Raises:
            DataFault: the disk refuses.
        """
        if isinstance(self._encoder, SequenceEncoder):
            return self._records.raw(self._encoder.empty)
        return self._records.raw(np.empty((0, self._encoder.width), np.float32), self._encoder.text_starts)


def _open_encoder(columns: Columns, steps: Sequence[Step], reading: Reading) -> TableEncoder | SequenceEncoder:
    step, tokens = sequences_step(steps), reading.tokens
    if step is not None and isinstance(tokens, SequenceTokens):
        return SequenceEncoder(columns, step, reading.problems, reading.counts, tokens)
    own = None if isinstance(tokens, SequenceTokens) else tokens
    return TableEncoder(columns, steps, reading.problems, reading.counts, own)


def encode_labels(
    columns: Mapping[str, Values], label: Label, place: Place, problems: Problems, counts: SourceCounts | None = None
) -> Labels:
    """Class numbers of label values: the position in `values`, or the integer itself. Numbers to be predicted are
    clipped to their range and mapped to [-1, 1], counts are clipped to the largest one; several answers become one
    number (`several`). A label that is none of what is declared is added to the problems; one that is missing is
    marked where the recipe omits it (`omitted`).
    """
    target = label.target
    if isinstance(target, SeveralTarget):
        return encode_several(columns, label, target, lambda name: ColumnReport(name, place, problems))
    (column,) = label.read_columns
    values, report = columns[column], ColumnReport(column, place, problems)
    if label.missing is not None and (missing := find_missing(values, label.values or ())).any():

        def encode(present: Values, rows: Sequence[int]) -> Labels:
            return encode_labels({column: present}, label, select_places(place, rows), problems, counts)

        if counts is not None:
            counts.column(column, "label").missing += int(missing.sum())
        return encode_present(values, missing, encode)
    if isinstance(target, NumberTarget | CountTarget):
        numbers = _numbers(values, label, report)
        limits = target.range if isinstance(target, NumberTarget) else (0.0, float(target.max))
        if counts is not None:
            count_clamped(counts.column(column, "label"), numbers, limits)
        return _counts(numbers, target, report) if isinstance(target, CountTarget) else map_labels(numbers, limits)
    if label.values is not None:
        return _classes_by_name(values, label.values, report)
    result, classes = np.zeros(len(values), dtype=np.int64), target.classes
    numbers_in_range = whole_numbers(values, classes)
    if numbers_in_range is not None:
        return numbers_in_range
    for row, number in enumerate(parse_integers(values)):
        if number is not None and 0 <= number < classes:
            result[row] = number
        elif not _no_label(text_of(value_at(values, row)), row, report):
            report.add(
                row,
                f"a label is not an integer in 0 … {classes - 1}",
                "declare label.classes as the number of classes that can occur, counted from 0; name the classes in "
                "label.values; or correct the row",
            )
    return result


def _counts(numbers: NDArray[np.float64], target: CountTarget, report: ColumnReport) -> NDArray[np.float32]:
    for row in np.flatnonzero(~is_count(numbers)).tolist():
        report.add(row, NO_COUNT, "correct the row, or declare label.range for a number that is no count")
    return limit_counts(numbers, target.max)


def _classes_by_name(values: Values, names: Sequence[str], report: ColumnReport) -> NDArray[np.int64]:
    numbers = {value: number for number, value in enumerate(names)}
    case_folded = {name.casefold() for name in numbers}
    result = number_texts(values, numbers, -1)
    for row in np.flatnonzero(result < 0).tolist():
        value = value_at(values, row)
        text = text_of(value)
        result[row] = 0
        if isinstance(value, bool):
            report.add(
                row,
                "the labels are truth values (true and false)",
                'write label.values: ["False", "True"], with the quotes',
            )
        elif text.casefold() in case_folded:
            report.add(
                row,
                "a label differs from a declared value in its capitals only",
                "declare label.values as the file spells them, or correct the row",
            )
        elif not _no_label(text, row, report):
            report.add(
                row,
                f"a label is not among the {len(numbers)} declared values",
                "declare in label.values every class that can occur (from domain knowledge), or correct the row",
            )
    return result


def _no_label(text: str, row: int, report: ColumnReport) -> bool:
    empty = text == ""
    if empty:
        report.add(
            row, "a label is empty", "write label.missing: omit, remove the row from the file, or give it a label"
        )
    return empty


def select_places(place: Place, chosen: Sequence[int]) -> Place:
    """Returns the places of the chosen rows."""
    return lambda row: place(chosen[row])


def read_names(columns: Mapping[str, Values], place: Place, reading: Reading) -> dict[str, list[str]]:
    """Returns the texts of the reading's naming columns in a chunk; see `name_texts`."""
    return {name: name_texts(columns[name], name, place, reading.problems) for name in reading.naming_columns}


def name_texts(values: Values, column: str, place: Place, problems: Problems) -> list[str]:
    """Returns the unit of each row, or the name of each record or of its side, as text. A row without one could be
    anybody's: it is added to the problems.
    """
    texts = texts_of(["" if value != value else value for value in as_list(values)])  # NaN names no unit
    if "" in texts:
        for row in [row for row, text in enumerate(texts) if text == ""]:
            ColumnReport(column, place, problems).add(
                row, "a field is empty that names the unit or the record", "fill it in each row, or remove the row"
            )
    return texts


def _numbers(values: Values, label: Label, report: ColumnReport) -> NDArray[np.float64]:
    numbers = parse_numbers(values, label.writing)
    for row in np.flatnonzero(np.isnan(numbers)).tolist():
        numbers[row] = 0.0
        text = text_of(value_at(values, row))
        if _no_label(text, row, report):
            continue
        described = describe_writing(text, label.writing)
        if described is None:
            remedy = "correct the row or omit it, or declare the classes in label.values"
            report.add(row, "a label is not a finite number", remedy)
        else:
            problem, keys, note = described
            report.add(row, f"a label is {problem}", f"declare how it is written, beside label.column: {keys}{note}")
    return numbers


def _hashed(texts: Sequence[str], step: Hash, part: NDArray[np.float32]) -> None:
    if step.tokens == "value":
        part[np.arange(len(texts)), [hash_bucket(text, step.buckets) for text in texts]] = 1.0
        return
    for row, text in enumerate(texts):
        for token in WORD.findall(text.lower()):
            part[row, hash_bucket(token, step.buckets)] += 1.0
