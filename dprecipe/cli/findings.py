"""The document of `dprecipe validate --format json`."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from dprecipe.cli.render import NOWHERE
from dprecipe.contract.document import Document, Part
from dprecipe.faults import Finding, Severity
from dprecipe.language.base import NonNegativeInt, PositiveInt
from dprecipe.text.codes import CODES


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
