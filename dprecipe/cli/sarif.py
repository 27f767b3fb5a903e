"""Findings as SARIF 2.1.0, the format that code-scanning services read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dprecipe import __version__
from dprecipe.faults import Finding
from dprecipe.policy.rules import POLICY_CODES
from dprecipe.text.codes import CODES

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
