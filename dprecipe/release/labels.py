"""`labels.csv`: the answers of a vote, one row each: the number of a public record in its source, and its label."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable
from pathlib import Path

from dprecipe.data.facts import class_names, facts
from dprecipe.mechanisms.plan import Plan
from dprecipe.release.schema import Predicate
from dprecipe.release.untrusted import ContentError, read_bytes

LABELS = "labels.csv"
HEADER = ("record", "label")
MAX_DIGITS = 18


def text(rows: Iterable[tuple[int, int | str]]) -> str:
    """The content of the file."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows)
    return file.getvalue()


def names(plan: Plan) -> tuple[str, ...]:
    """What a label is called, class by class."""
    return class_names(plan.data.train) or tuple(str(number) for number in range(facts(plan.data).classes))


def first_record(plan: Plan, from_python: bool) -> int:
    """The number in their source of the first public record; 0 of records from Python, which have none."""
    source = plan.data.public
    return 0 if from_python or source is None or source.records is None else source.records[0]


def differences(stated: Predicate, plan: Plan, path: Path) -> list[str]:
    """What keeps a file from holding answers of this run: no more than were charged, of public records that were
    declared, with labels that are classes, and not one character else."""
    try:
        content = read_bytes(path).decode()
        rows = [tuple(row) for row in csv.reader(io.StringIO(content, newline=""))]
    except ContentError as error:
        return list(error.failures)
    except (UnicodeDecodeError, csv.Error):
        return [f"{LABELS}: is no CSV file in UTF-8"]
    if rows[:1] != [HEADER] or any(len(row) != 2 or not _number(row[0]) for row in rows[1:]):
        return [f"{LABELS}: expected the columns record and label, and a number and a label in each row"]
    answers, records = stated.mechanism.voting, [int(row[0]) for row in rows[1:]]
    found = []
    if text((int(row[0]), row[1]) for row in rows[1:]) != content:
        found.append(f"{LABELS}: is not written as a run writes it")
    if answers is None or len(records) > answers.answers_charged:
        found.append(f"{LABELS}: more rows than answers that were charged")
    if any(later <= earlier for earlier, later in itertools.pairwise(records)):
        found.append(f"{LABELS}: the numbers of its records do not rise")
    source = plan.data.public
    if stated.provenance.data == "recipe" and source is not None and source.records is not None and records:
        first, end = source.records
        if not first <= min(records) <= max(records) < end:
            found.append(f"{LABELS}: names records that are none of those asked about, {first:,} to {end - 1:,}")
    if not {row[1] for row in rows[1:]} <= set(names(plan)):
        found.append(f"{LABELS}: a label is none of the declared classes")
    return found


def _number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS
