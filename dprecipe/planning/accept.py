"""Warnings that the recipe's author has read and accepts: `accept: {P112: "the reason"}`.

An accepted warning is still shown, with the reason. It becomes a declaration of the plan and so appears in the
certificate. Errors can't be accepted, nor can warnings that did not occur: an old reason must not cover a later
finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dprecipe.contract.plan import Assumption
from dprecipe.faults import CODES, Finding, Severity
from dprecipe.recipe.root import Recipe
from dprecipe.screen import make_printable

WARNINGS: Mapping[str, str] = {
    "P103": "δ is large for the number of records",
    "P104": "hardly any noise is saved where an epoch has few steps",
    "P108": "ε is above 10",
    "P112": "scores on data.test stay private",
    "P114": "sampling and noise are fixed",
    "P117": "the cap of a batch is often reached",
    "P118": "batches have a fixed size, and the noise protects as half of it would",
    "P129": "the accountant is looser than need be",
    "P133": "micro-batches double the sensitivity",
    "P138": "the noise protects no better than Gaussian noise",
    "P139": "the step multiplier is measured over few coordinates",
    "P140": "denoising with an adaptive optimiser",
    "P151": "scored records are among those that the student has seen",
    "P152": "few records for each teacher",
    "P153": "a check that hardly a query passes, or hardly one does not",
    "P156": "sanitising with few teachers",
    "P157": "a budget `auto` that pays for more answers than there may be",
    "P163": "a learning rate beyond the one that contracts most",
    "P173": "hiding the iterates gains nothing",
    "P174": "the set is too wide to contract",
    "P177": "random batches would leave less noise",
    "P179": "a single band is DP-SGD",
    "P226": "many of the units are canaries",
    "R266": "noise drowns the gradients of a linear model",
    "R267": "the learning rate overshoots",
}
"""Every warning about a recipe itself, as a certificate words it."""
PLAN_WARNINGS = frozenset({"P173", "P174", "P177", "P179"})
"""Warnings that may need the solved plan: `validate` does not check that an accepted one occurred."""


def mark_accepted(recipe: Recipe, findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings, accepted warnings with their reason."""
    return [
        finding if finding.is_error else replace(finding, accepted=recipe.accept.get(finding.code, "").strip())
        for finding in findings
    ]


def find_invalid_acceptances(recipe: Recipe) -> Iterator[Finding]:
    """Finds codes that can't be accepted, and empty reasons."""
    for code, reason in recipe.accept.items():
        if code in WARNINGS:
            if not reason.strip():
                yield Finding("R123", f"{code} is accepted without a reason", "write the reason", f"accept.{code}")
            continue
        known = code in CODES or re.fullmatch("[YRPQ][0-9]{3}", code)
        message = (
            f"`{code}` is no warning, and only warnings can be accepted"
            if known
            else f"no finding has the code {code!r}"
        )
        remedy = (
            "remove it, and fix what the finding is about" if known else "remove it, or write the code of a warning"
        )
        yield Finding("R123", message, remedy, f"accept.{code}")


def find_unused_acceptances(recipe: Recipe, findings: Sequence[Finding], among: Iterable[str]) -> Iterator[Finding]:
    """Finds codes among these that are accepted, and did not occur."""
    met = {finding.code for finding in findings}
    for code in recipe.accept:
        if code in among and code not in met:
            yield Finding(
                "R124",
                f"{code} is accepted but did not occur",
                f"remove accept.{code}",
                f"accept.{code}",
                severity=Severity.WARNING,
            )


def open_warnings(findings: Iterable[Finding]) -> list[str]:
    """Returns the warnings that are not accepted, in the words of `WARNINGS`."""
    codes = {f.code for f in findings if not f.is_error and not f.accepted and f.code in WARNINGS}
    return [f"{code}: {WARNINGS[code]}" for code in sorted(codes)]


def list_declarations(recipe: Recipe, findings: Iterable[Finding]) -> tuple[Assumption, ...]:
    """Lists the certificate's declarations of accepted warnings: the code, its subject, and the author's words as
    such."""
    codes = dict.fromkeys(finding.code for finding in findings if finding.accepted)
    return tuple(
        Assumption(
            f"accepted_{code}",
            f"the author accepts warning {code} ({WARNINGS[code]}), for the reason "
            f"{make_printable(json.dumps(recipe.accept[code], ensure_ascii=False))}",
            "declaration",
        )
        for code in codes
    )
