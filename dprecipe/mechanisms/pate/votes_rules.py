"""Checks of votes that come from a file, and of runs that release labels alone. No data is read."""

from __future__ import annotations

from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.data.schema import Data
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.pate.schema import InteractiveGnMax, Pate
from dprecipe.models.schema import NoModel


def count_pool(spec: Pate, data: Data) -> int | None:
    """Counts the public records, or without any the rows of votes; None where only the file knows."""
    votes = spec.teachers.votes
    stated = votes if data.public is None else data.public
    records = None if stated is None else stated.records
    return None if records is None else records[1] - records[0]


def check_votes(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """The file is of a known format, and each public record has its row of votes."""
    votes, path = spec.teachers.votes, "mechanism.teachers.votes"
    if votes is None:
        return
    if votes.format is None:
        yield Finding(
            "R242",
            f"{votes.path!r} is no NumPy archive, CSV or Parquet file, by its name",
            "name a file that ends in .npz, .csv, .csv.gz or .parquet",
            f"{path}.path",
        )
    elif votes.format != "npz" and votes.array != "votes":
        yield Finding(
            "R242",
            f"a {votes.format} file has no arrays: all of its columns are votes",
            f"remove {path}.array; or name an .npz file",
            f"{path}.array",
        )
    if votes.records is None:
        return
    first, end = votes.records
    records = None if facts.data.public is None else count_pool(spec, facts.data)
    path += ".records"
    if first >= end:
        yield Finding("R274", f"[{first}, {end}] holds no row of votes", "write [first, end) with first < end", path)
    elif records is not None and end - first != records:
        yield Finding(
            "R274",
            f"{end - first:,} rows of votes for {records:,} public records",
            f"write [{first}, {first + records}], or change data.public.records",
            path,
        )


def check_labels_alone(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Records that are elsewhere have voted already; no student is asked; and δ fits what is known of their number."""
    if facts.data.is_elsewhere and spec.teachers.model is not None:
        yield Finding(
            "R279",
            "the records are elsewhere, so no teacher can be trained on them",
            "name their votes in mechanism.teachers.votes instead of mechanism.teachers.model; or name the records in "
            "data.train",
            "mechanism.teachers.model",
        )
    if isinstance(spec.teachers.model, NoModel):
        yield Finding(
            "R279",
            "teachers without a model can't vote",
            "choose a mechanism.teachers.model.kind; or name votes in mechanism.teachers.votes instead",
            "mechanism.teachers.model.kind",
        )
    if isinstance(facts.model, NoModel) and isinstance(spec.aggregator, InteractiveGnMax):
        yield Finding(
            "R279",
            "interactive_gnmax compares votes with what a student expects, and there is no model",
            "set mechanism.aggregator.kind to confident_gnmax, without `interaction`; or choose a model.kind",
            "mechanism.aggregator.kind",
        )
    count, delta = spec.teachers.count, facts.budget.delta
    if facts.data.size is None and delta * count > 0.1:
        yield Finding(
            "P103",
            f"δ = {delta:g} is large for {count:,} teachers, each with a record or more (δ · teachers = "
            f"{delta * count:.2g} > 0.1)",
            f"set budget.delta to at most {float(f'{0.09 / count:.0e}'):g}",
            "budget.delta",
            severity=Severity.WARNING if delta * count < 1 else Severity.ERROR,
        )
