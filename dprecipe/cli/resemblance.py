"""Synthetic records beside real *public* ones: how near they are, and what a classifier learns from them.

Both are looked at on public records alone. The records of training are never compared with: the answer would be about
them, outside of the budget. That a synthetic record is near a public one says nothing of them, either: it shows what
synthetic records look like, and whether they repeat one another.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from dprecipe.faults import DataFault
from dprecipe.libraries import importing_libraries
from dprecipe.screen import write_note

Record = Mapping[str, str]
MAX_RECORDS = 20_000
"""Largest number of records that are compared; of a longer file, its first ones."""
NEAR = 0.9
FOLDS = 5
MAX_FIELD = 1 << 20


@dataclass(frozen=True, slots=True)
class Resemblance:
    """Comparison of synthetic records with public ones; each value is a share, or a cosine of 0 to 1."""

    records: int
    public: int
    repeated: float
    """The share of synthetic records that an earlier one equals."""
    equal: float
    """The share that equals a public record."""
    near: float
    """The share whose nearest public record has a cosine above `NEAR`."""
    usual_near: float
    """The same of public records, and the nearest other public record."""
    nearest: float
    """The median cosine to the nearest public record."""
    usual_nearest: float
    """The same of public records, and the nearest other public record."""


@dataclass(frozen=True, slots=True)
class Utility:
    """A classifier of the first column, trained on the others: its accuracy on public records."""

    synthetic: float
    """Trained on the synthetic records."""
    public: float
    """Trained on public records, tested on others of them: the mean of five folds."""
    most_frequent: float
    """The share of the most frequent public value."""


def read_records(path: Path, names: Sequence[str]) -> list[Record]:
    """Returns the first `MAX_RECORDS` records of a CSV, JSON lines or Parquet file: these columns, as text.

    Raises:
        DataFault: the file can't be read, or lacks a column.
    """
    try:
        rows = _read_rows(path)
        missing = [name for name in names if rows and name not in rows[0]]
        if missing or not rows:
            raise DataFault(f"{path.name}: has no {'column ' + missing[0] if missing else 'record'}", "name another")
        return [{name: str(row.get(name)) for name in names} for row in rows]
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise DataFault(f"{path.name}: can't be read ({type(error).__name__})", "name a file of records") from None


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        with importing_libraries("a .parquet file"):
            import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.read_table(path).slice(0, MAX_RECORDS).to_pylist()
        return rows
    with path.open(encoding="utf-8", newline="") as stream:
        if path.suffix == ".jsonl":
            parsed = [json.loads(line) for line, _ in zip(stream, range(MAX_RECORDS), strict=False)]
            if not all(isinstance(row, dict) for row in parsed):
                raise ValueError("a line is no object")
            return parsed
        usual = csv.field_size_limit(MAX_FIELD)
        try:
            return [row for row, _ in zip(csv.DictReader(stream), range(MAX_RECORDS), strict=False)]
        finally:
            csv.field_size_limit(usual)  # of the whole process, and other readers refuse longer fields


def measure_resemblance(synthetic: Sequence[Record], public: Sequence[Record]) -> Resemblance:
    """Compares whole records by their groups of letters (3 to 5), weighted by how rare they are among public ones.

    Raises:
        DataFault: there are fewer than two public records.
    """
    if len(public) < 2:
        raise DataFault("fewer than two public records", "name a larger file")
    ours, theirs = [_as_line(row) for row in synthetic], [_as_line(row) for row in public]
    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), min_df=1)
    known = vectorizer.fit_transform(theirs)
    near = _nearest(vectorizer.transform(ours), known)
    usual = _nearest(known, known, leave_out=True)
    return Resemblance(
        len(ours),
        len(theirs),
        1 - len(set(ours)) / len(ours),
        float(np.mean([line in set_ for line in ours])) if (set_ := set(theirs)) else 0.0,
        float(np.mean(near > NEAR)),
        float(np.mean(usual > NEAR)),
        float(np.median(near)),
        float(np.median(usual)),
    )


def measure_utility(synthetic: Sequence[Record], public: Sequence[Record], label: str) -> Utility:
    """Trains a logistic regression on words of the other columns to tell `label`; on synthetic records, and on public
    ones.

    Raises:
        DataFault: the synthetic or the public records have one value alone, or too few of one for `FOLDS` folds.
    """

    def split(rows: Sequence[Record]) -> tuple[list[str], list[str]]:
        rest = [{name: text for name, text in row.items() if name != label} for row in rows]
        return [_as_line(row) for row in rest], [row[label] for row in rows]

    (lines, labels), (public_lines, public_labels) = split(synthetic), split(public)
    values, counts = np.unique(public_labels, return_counts=True)
    if len(set(labels)) < 2 or len(values) < 2 or counts.min() < FOLDS:
        raise DataFault(
            f"a classifier of {label} needs two values among the synthetic records, and {FOLDS} public records of each",
            "write more records, or name a larger file with --compare",
        )

    def make() -> Any:
        return make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10.0, max_iter=1000))

    learned = make().fit(lines, labels)
    return Utility(
        float(learned.score(public_lines, public_labels)),
        float(np.mean(cross_val_score(make(), public_lines, public_labels, cv=FOLDS))),
        float(counts.max() / counts.sum()),
    )


def report_resemblance(out: Path, public: Path, names: Sequence[str], has_values: bool) -> None:
    """Prints how the records of `out` compare with public ones. `has_values`: the first column has declared values, and
    there are others that tell of it.

    Raises:
        DataFault: a file can't be read, or there are too few records.
    """
    ours, theirs = read_records(out, names), read_records(public, names)
    found = measure_resemblance(ours, theirs)
    lines = [
        f"beside {found.public:,} public records of {public.name} (the records of training are compared with nothing):",
        f"  equal to a public record: {found.equal:.1%}; to an earlier synthetic one: {found.repeated:.1%}",
        f"  nearest public record, cosine of letter groups: {found.nearest:.2f} in the middle "
        f"(public records among themselves: {found.usual_nearest:.2f}), above {NEAR} for {found.near:.1%} "
        f"({found.usual_near:.1%})",
    ]
    if has_values and len(names) > 1:
        gained = measure_utility(ours, theirs, names[0])
        lines.append(
            f"  a classifier of {names[0]} trained on the synthetic records is right on {gained.synthetic:.1%} of the "
            f"public ones; trained on public ones {gained.public:.1%}; the most frequent value is "
            f"{gained.most_frequent:.1%}"
        )
    write_note(*lines)


def _as_line(row: Record) -> str:
    return "\n".join(row.values())


def _nearest(rows: Any, known: Any, leave_out: bool = False) -> NDArray[np.float64]:
    """Returns each row's largest cosine to a known one; `leave_out`: to another than itself."""
    results = []
    for first in range(0, rows.shape[0], 256):
        cosines = (rows[first : first + 256] @ known.T).toarray()
        if leave_out:
            cosines[np.arange(len(cosines)), first + np.arange(len(cosines))] = -1.0
        results.append(cosines.max(axis=1))
    return np.concatenate(results)
