"""How the records fared on their way in: how many values were missing, clamped, or none of those declared.

These are counts of private records: they go to `private/data-check.json` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from dprecipe.data.facts import Role
from dprecipe.data.problems import Problems

FEWEST = 20
"""Of fewer records nothing is concluded from a column that is the same throughout."""


@final
@dataclass(slots=True)
class ColumnTally:
    """Of one column, or of the label, counts of values."""

    kind: str
    missing: int = 0
    below: int = 0
    above: int = 0
    lowest: int = 0
    """At the lower end or below it; `highest` likewise."""
    highest: int = 0
    other: int = 0

    def numbers(self, low: int, high: int, at_low: int, at_high: int) -> None:
        """Add values beyond the ends of their range, and at the ends or beyond."""
        self.below += low
        self.above += high
        self.lowest += at_low
        self.highest += at_high


@final
@dataclass(slots=True)
class Tally:
    """Of one source."""

    records: int = 0
    columns: dict[str, ColumnTally] = field(default_factory=dict)
    not_finite: int = 0
    """Records of an array with a value that is not finite: they contribute nothing."""

    def column(self, name: str, kind: str) -> ColumnTally:
        """The counts of a column, made on first use."""
        return self.columns.setdefault(name, ColumnTally(kind))

    def check(self, what: str, problems: Problems) -> None:
        """Tell of columns of which nothing is left: each value missing, beyond its range, or none of those declared.

        The words carry no number. That a recipe does not fit its file is told before a run, like a wrong size.
        """
        if self.records < FEWEST:
            return
        for name, tally in self.columns.items():
            where = f"{what}, column {name!r}"
            if tally.kind == "category" and tally.other == self.records:
                problems.add(
                    where,
                    "no field holds one of the declared `values`: all of them would be `other`",
                    "declare the values as the file spells them (capitals count), or remove the column",
                )
            if tally.kind != "category" and tally.missing == self.records:
                problems.add(where, "every field is missing", "remove the column, or mend the file")
            elif tally.below + tally.above and self.records in (
                tally.lowest + tally.missing,
                tally.highest + tally.missing,
            ):
                problems.add(
                    where,
                    "every number lies at one end of the declared range or beyond: all of them would be clamped to it",
                    "declare the range in the units of the file, from domain knowledge",
                )
        if self.not_finite == self.records:
            problems.add(what, "every record has a value that is not finite: none would contribute", "mend the file")

    def as_json(self) -> dict[str, Any]:
        """Counts and shares."""

        def shares(tally: ColumnTally) -> dict[str, Any]:
            counts = {"missing": tally.missing, "clamped": tally.below + tally.above}
            if tally.kind == "category":
                counts = {"other": tally.other}
            if tally.kind == "label":
                counts = {"clamped": tally.below + tally.above}
            share = {name: round(count / self.records, 6) if self.records else 0.0 for name, count in counts.items()}
            return {"kind": tally.kind, **counts, "shares": share}

        result: dict[str, Any] = {"records": self.records}
        if self.columns:
            result["columns"] = {name: shares(tally) for name, tally in self.columns.items()}
        return {**result, "records_not_finite": self.not_finite}


def as_text(tallies: Mapping[Role, Tally]) -> str:
    """The counts for a reader, source by source."""
    lines = ["What became of the records while they were read. Private: counts of private records.", ""]
    for role, tally in tallies.items():
        lines.append(f"data.{role}: {tally.records:,} records")
        if tally.not_finite:
            lines.append(f"  {tally.not_finite:,} with a value that is not finite: they contribute nothing")
        for name, column in tally.as_json().get("columns", {}).items():
            shares = ", ".join(f"{column[what]:,} {what} ({share:.2%})" for what, share in column["shares"].items())
            lines.append(f"  {name} ({column['kind']}): {shares}")
        lines.append("")
    return "\n".join(lines)
