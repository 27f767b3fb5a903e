"""Findings as text, as GitHub annotations, as SARIF 2.1.0, and as the document of `dprecipe validate --format json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote

from pydantic import ConfigDict, Field

from dprecipe import __version__
from dprecipe.contract.document import Document, Part
from dprecipe.faults import CODES, Finding, Place, Severity
from dprecipe.language.base import NonNegativeInt, PositiveInt
from dprecipe.screen import make_printable
from dprecipe.text.load import split_lines

NOWHERE = Place("", 1, 1)
"""The place of findings that have none."""
WINDOW = 120
SECRET = frozenset({"R113"})
"""Findings whose line is not shown, by whatever finding: it has a secret, and the output may be kept in a log."""


def as_lines(findings: Sequence[Finding], texts: Mapping[str, str]) -> list[str]:
    """Renders findings as `file:line:column: error[code] path: message`, the line with a caret, and the remedy; the
    blanks of a file as one table."""
    lines = {file: list(split_lines(text)) for file, text in texts.items()}
    for finding in findings:
        place = finding.place
        if finding.code in SECRET and place and 0 < place.line <= len(lines.get(place.file, ())):
            lines[place.file][place.line - 1] = ""
    tables = _list_tables(findings, {file: "\n".join(rows) for file, rows in lines.items()})
    return [
        make_printable(line)
        for index, finding in enumerate(findings)
        for line in (tables[index] if index in tables else _block(finding, lines))
    ]


def _list_tables(findings: Sequence[Finding], texts: Mapping[str, str]) -> dict[int, list[str]]:
    if not any(finding.code == "R103" for finding in findings):
        return {}
    from dprecipe.cli.blanks import render_blanks

    return render_blanks(findings, texts)


def _block(finding: Finding, lines: Mapping[str, Sequence[str]]) -> list[str]:
    place = finding.place
    where = f"{place.file}:{place.line}:{place.column}: " if place else ""
    path = f" {finding.path}" if finding.path else ""
    word = "accepted" if finding.accepted else finding.severity
    rows = [f"{where}{word}[{finding.code}]{path}: {finding.message}"]
    source = lines.get(place.file, ()) if place else ()
    if place and 0 < place.line <= len(source) and source[place.line - 1].strip():
        number = f"{place.line}"
        excerpt, column = _window(source[place.line - 1], place.column)
        end = min(column - 1 + place.width, max(column, len(excerpt)))
        width = max(1, len(make_printable(excerpt[column - 1 : end])))
        # Tabs stay tabs and escapes keep their width, so that the caret is below its target.
        prefix = make_printable(excerpt[: column - 1].ljust(column - 1))
        padding = "".join(c if c == "\t" else " " for c in prefix)
        rows += [f"  {number} | {excerpt}", f"  {' ' * len(number)} | {padding}{'^' * width}"]
    if finding.accepted:
        rows.append(f"  = because: {finding.accepted}")
    elif finding.remedy:
        rows.append(f"  = {finding.remedy}")
    return rows


def _window(line: str, column: int) -> tuple[str, int]:
    """Returns a long line cut around a column, and the column in the excerpt."""
    if len(line) <= WINDOW:
        return line, column
    start = max(0, min(column - 1 - WINDOW // 2, len(line) - WINDOW))
    return line[start : start + WINDOW], column - start


def hint_at_pages(findings: Sequence[Finding], watched: bool) -> list[str]:
    """Names the pages to read, once for all findings, and to people alone: in a terminal that is `watched`."""
    codes = dict.fromkeys(finding.code for finding in findings if not finding.accepted)
    if not codes or not watched:
        return []
    first, *others = codes
    more = f" (or {', '.join(others[:3])}{', …' if len(others) > 3 else ''})" if others else ""
    return [f"  more: dprecipe explain {first}{more}"]


def render_summary(findings: Sequence[Finding], recipes: int) -> str:
    """Returns a summary such as `3 recipes: 2 errors, 1 warning`."""
    errors = sum(finding.is_error for finding in findings)
    accepted = sum(bool(finding.accepted) for finding in findings)
    counts = ((errors, "error"), (len(findings) - errors - accepted, "warning"), (accepted, "accepted warning"))
    parts = [_count(number, noun) for number, noun in counts if number]
    return f"{_count(recipes, 'recipe')}: {', '.join(parts) or 'no findings'}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def as_github(findings: Sequence[Finding], recipes: int) -> str:
    """Renders workflow commands, errors first: GitHub shows only the first ten of a step. The last line is the
    summary."""
    rows = [
        _annotation(finding)
        for finding in sorted(findings, key=lambda finding: (not finding.is_error, bool(finding.accepted)))
    ]
    return "\n".join([*rows, render_summary(findings, recipes)]) + "\n"


def _annotation(finding: Finding) -> str:
    place = finding.place or NOWHERE
    properties = {
        "file": place.file,
        "line": place.line,
        "col": place.column,
        "title": f"{finding.code} {finding.path}".strip(),
    }
    listed = ",".join(f"{name}={_escape(str(value), ':,')}" for name, value in properties.items())
    note = f"accepted because: {finding.accepted}" if finding.accepted else finding.remedy
    message = f"{finding.message}\n{note}".strip()
    return f"::{'notice' if finding.accepted else finding.severity} {listed}::{_escape(message)}"


def _escape(text: str, extra: str = "") -> str:
    for character in "%\r\n" + extra:  # the percent sign first
        text = text.replace(character, f"%{ord(character):02X}")
    return text.replace("##[", "# #[")  # an older form of command, which runners read anywhere in a line


class FindingEntry(Part):
    """One thing that is wrong or doubtful in a recipe."""

    model_config = ConfigDict(extra="forbid")

    code: Annotated[str, Field(pattern="^[YRPQT][0-9]{3}$", examples=sorted(CODES))]
    severity: Severity
    file: str
    line: PositiveInt
    column: PositiveInt
    path: str = Field(description="dotted path in the recipe; empty for findings about the text")
    message: str
    remedy: str
    accepted: str = Field(description="the reason, where the recipe accepts the warning; else empty")

    @classmethod
    def of(cls, finding: Finding) -> Self:
        """Returns a finding as the document has it."""
        place = finding.place or NOWHERE
        return cls(
            code=finding.code,
            severity=finding.severity,
            file=place.file,
            line=place.line,
            column=place.column,
            path=finding.path,
            message=finding.message,
            remedy=finding.remedy,
            accepted=finding.accepted,
        )


class Findings(Document):
    """All findings in some recipes."""

    model_config = ConfigDict(title="dprecipe findings", extra="forbid")

    schema_: Literal["dprecipe.findings/v1"] = Field("dprecipe.findings/v1", alias="schema")
    recipes: NonNegativeInt
    findings: tuple[FindingEntry, ...]

    def to_text(self) -> str:
        """Returns the document in ASCII: no terminal or pipe can garble it."""
        return json.dumps(self.to_json(), indent=2) + "\n"


SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(findings: Sequence[Finding]) -> str:
    """Returns a SARIF log of one run, with a rule for each code that occurs."""
    codes = sorted({finding.code for finding in findings})
    content = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "dprecipe",
                        "version": __version__,
                        "rules": [_rule(code) for code in codes],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, codes.index(finding.code)) for finding in findings],
            }
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def _rule(code: str) -> dict[str, Any]:
    from dprecipe.policy.rules import POLICY_CODES  # slow to import, and for this form alone

    others = {"P": "a rule of privacy accounting", "Q": POLICY_CODES.get(code, "a rule of a policy")}
    title = CODES.get(code, others.get(code[:1], "a rule of the recipe"))
    return {"id": code, "shortDescription": {"text": title}, "help": {"text": f"docs/reference/findings/{code}.md"}}


def _result(finding: Finding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": finding.severity.value,
        "message": {
            "text": ": ".join(part for part in (finding.path, finding.message) if part) + f". {finding.remedy}"
        },
    }
    if finding.accepted:
        result["suppressions"] = [{"kind": "inSource", "justification": finding.accepted}]
    if finding.place is not None:
        place = finding.place
        region = {
            "startLine": place.line,
            "startColumn": place.column,
            "endColumn": place.column + place.width,
        }
        uri = {"uri": quote(place.file, safe="/._-~")}
        result["locations"] = [{"physicalLocation": {"artifactLocation": uri, "region": region}}]
    return result
