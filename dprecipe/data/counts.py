"""Counts taken while a source is read: values that were missing, clamped, or not among those declared.

They are counts of private records: they go to `private/data-check.json` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from dprecipe.data.facts import Role
from dprecipe.data.problems import Problems

MIN_RECORDS = 20
"""A column of the same value throughout is a problem only if there are at least this many records."""


@final
@dataclass(slots=True)
class ColumnCounts:
    """Counts of the values of one column or label."""

    kind: str
    missing: int = 0
    below: int = 0
    above: int = 0
    lowest: int = 0
    """Values at the lower end of the range or below it; `highest` likewise for the upper end."""
    highest: int = 0
    other: int = 0

    def is_constant(self, records: int) -> bool:
        """Returns True if every number is one end of the range: the column then carries nothing."""
        return records > 0 and not self.below + self.above and records in (self.lowest, self.highest)

    def numbers(self, low: int, high: int, at_low: int, at_high: int) -> None:
        """Adds counts of values: below and above the range, and at or beyond its ends."""
        self.below += low
        self.above += high
        self.lowest += at_low
        self.highest += at_high


@final
@dataclass(slots=True)
class SequenceCounts:
    """Counts of sequences of tokens, each of `length` places; 0: there are none."""

    length: int = 0
    records: int = 0
    truncated: int = 0
    """Records whose text is longer than `length` tokens: the rest is not read."""
    tokens: int = 0
    """All that are not padding; of them `learned` ones have a label and a token before them."""
    learned: int = 0

    def add(self, tokens: int, learned: int, truncated: bool) -> None:
        """Adds a record."""
        self.records += 1
        self.tokens += tokens
        self.learned += learned
        self.truncated += truncated

    def describe(self) -> str:
        """Describes the counts in words."""
        shares = self.as_json()["shares"]
        return (
            f"{self.truncated:,} texts longer than {self.length:,} tokens, and cut ({shares['truncated']:.2%}); "
            f"{self.tokens:,} tokens, of them {self.learned:,} learned; {shares['padding']:.2%} of places are padding"
        )

    def as_json(self) -> dict[str, Any]:
        """Returns counts, and their shares of the records and of the places."""
        places = self.length * self.records
        shares = {
            "truncated": round(self.truncated / self.records, 6) if self.records else 0.0,
            "padding": round(1 - self.tokens / places, 6) if places else 0.0,
        }
        return {"truncated": self.truncated, "tokens": self.tokens, "learned": self.learned, "shares": shares}


@final
@dataclass(slots=True)
class SourceCounts:
    """Counts of one source."""

    records: int = 0
    columns: dict[str, ColumnCounts] = field(default_factory=dict)
    not_finite: int = 0
    """Records with a value that is not finite: they contribute nothing."""
    sequences: SequenceCounts = field(default_factory=SequenceCounts)

    def column(self, name: str, kind: str) -> ColumnCounts:
        """Returns the counts of a column, created on first use."""
        return self.columns.setdefault(name, ColumnCounts(kind))

    def check(self, subject: str, problems: Problems) -> None:
        """Adds a problem for each column that does not fit what is declared of it: every value is missing, or not among
        those declared, or at one end of the range or beyond it, and one of them beyond.

        The messages contain no counts. That a recipe does not fit its file is reported before a run, like a wrong size.
        """
        if self.records < MIN_RECORDS:
            return
        for name, column in self.columns.items():
            place = f"{subject}, column {name!r}"
            if column.kind == "category" and column.other == self.records:
                problems.add(
                    place,
                    "no field has one of the declared `values`: all of them would become `other`",
                    "declare the values as the file spells them (capitals count), or remove the column",
                )
            if column.kind != "category" and column.missing == self.records:
                problems.add(place, "every field is missing", "remove the column, or mend the file")
            present = self.records - column.missing
            if column.below + column.above and present >= MIN_RECORDS and present in (column.lowest, column.highest):
                problems.add(
                    place,
                    "every number is at one end of the declared range or beyond it: all of them would become equal",
                    "declare the range in the units of the file, from domain knowledge",
                )
        if self.not_finite == self.records:
            problems.add(subject, "every record has a value that is not finite: none would contribute", "mend the file")

    def as_json(self) -> dict[str, Any]:
        """Returns counts, and their shares of the records."""

        def shares(column: ColumnCounts) -> dict[str, Any]:
            shown = {"missing": column.missing, "clamped": column.below + column.above}
            if column.kind == "category":
                shown = {"other": column.other}
            if column.kind == "label":
                shown = {"clamped": column.below + column.above}
            share = {name: round(count / self.records, 6) if self.records else 0.0 for name, count in shown.items()}
            return {"kind": column.kind, **shown, "shares": share}

        result: dict[str, Any] = {"records": self.records}
        if self.columns:
            result["columns"] = {name: shares(counts) for name, counts in self.columns.items()}
        if self.sequences.length:
            result["sequences"] = self.sequences.as_json()
        return {**result, "records_not_finite": self.not_finite}


def as_text(by_role: Mapping[Role, SourceCounts]) -> str:
    """Returns the counts as text, source by source."""
    lines = ["Values that were missing, clamped or undeclared. Private: these are counts of private records.", ""]
    for role, counts in by_role.items():
        lines.append(f"data.{role}: {counts.records:,} records")
        if counts.not_finite:
            lines.append(f"  {counts.not_finite:,} with a value that is not finite: they contribute nothing")
        if counts.sequences.length:
            lines.append(f"  {counts.sequences.describe()}")
        for name, column in counts.as_json().get("columns", {}).items():
            shares = ", ".join(
                f"{column[subject]:,} {subject} ({share:.2%})" for subject, share in column["shares"].items()
            )
            lines.append(f"  {name} ({column['kind']}): {shares}")
        lines.append("")
    return "\n".join(lines)
