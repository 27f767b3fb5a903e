"""`labels.csv`, the answers of a vote. Each row has the number of a public record in its source, and its label."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.mechanisms.pate.plan import PatePlan

LABELS = "labels.csv"
HEADER = ("record", "label")
MAX_DIGITS = 18


def label_lines(rows: Iterable[tuple[int, int | str]]) -> str:
    """Returns the content of the file."""
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(rows)
    return file.getvalue()


def label_names(plan: Plan) -> tuple[str, ...]:
    """Returns the name of each class, in order."""
    return plan.data.train.class_names or tuple(str(number) for number in range(describe_data(plan.data).outputs))


def first_record(plan: Plan, from_python: bool) -> int:
    """Returns the number of the first public record in its source, or without any of the first row of votes; 0 for
    records from Python, which have no numbers."""
    asked = _find_asked(plan)
    return 0 if from_python or asked is None else asked[0]


def _find_asked(plan: Plan) -> tuple[int, int] | None:
    """Returns [first, end) of the records that may have been asked about; None where only a file says how many."""
    if plan.data.is_elsewhere:
        planned = plan.as_plan_of(PatePlan)
        votes = planned.ensemble.votes
        first = 0 if votes is None or votes.records is None else votes.records[0]
        return first, first + planned.queries
    source = plan.data.public
    return None if source is None or source.records is None else (source.records[0], source.records[1])


def find_differences(content: bytes, plan: Plan, answers: int, from_python: bool) -> list[str]:
    """Returns the reasons why a file can't hold the answers of this run.

    A sound file has no more rows than the `answers` that were charged. Its records are declared public ones, its labels
    are classes, and it has not one further character. `content` is untrusted. `from_python`: the records came from
    Python, so their numbers have no declared range.
    """
    try:
        text = content.decode()
        rows = [tuple(row) for row in csv.reader(io.StringIO(text, newline=""))]
    except (UnicodeDecodeError, csv.Error):
        return [f"{LABELS}: is no CSV file in UTF-8"]
    if rows[:1] != [HEADER] or any(len(row) != 2 or not _is_number(row[0]) for row in rows[1:]):
        return [f"{LABELS}: expected the columns record and label, and a number and a label in each row"]
    records = [int(row[0]) for row in rows[1:]]
    lines = []
    if label_lines((int(row[0]), row[1]) for row in rows[1:]) != text:
        lines.append(f"{LABELS}: is not written as a run writes it")
    if len(records) > answers:
        lines.append(f"{LABELS}: more rows than answers that were charged")
    if any(later <= earlier for earlier, later in itertools.pairwise(records)):
        lines.append(f"{LABELS}: the numbers of its records do not rise")
    asked = _find_asked(plan)
    if not from_python and asked is not None and records:
        first, end = asked
        if not first <= min(records) <= max(records) < end:
            lines.append(f"{LABELS}: names records that are none of those asked about, {first:,} to {end - 1:,}")
    if not {row[1] for row in rows[1:]} <= set(label_names(plan)):
        lines.append(f"{LABELS}: a label is none of the declared classes")
    return lines


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= MAX_DIGITS
