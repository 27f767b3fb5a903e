"""Findings in a recipe and their codes, and the faults that end a command.

A `Finding` is data: checks return findings, and only the command line prints them. A `Fault` is an exception that the
user caused or can fix. It has a message, a remedy and an exit code of `docs/reference/contract.md`, and never reaches
the user as a traceback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dprecipe import notebook
from dprecipe.page import render_bullets
from dprecipe.screen import make_printable


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a text: 1-based line and column, and the width of the caret."""

    file: str
    line: int
    column: int
    width: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong or doubtful in a recipe.

    `code` is stable and has a page in `docs/reference/findings/`; `path` is the dotted path of the recipe
    (`mechanism.noise.multiplier`); `remedy` says what to change, in the imperative.
    """

    code: str
    message: str
    remedy: str
    path: str = ""
    place: Place | None = None
    severity: Severity = Severity.ERROR
    accepted: str = ""
    """Why the recipe's author accepts the warning; empty where it is not accepted."""

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    @property
    def headline(self) -> str:
        """Names the finding and its place: `error[P111] budget.delta (recipe.yaml:8:5)`."""
        place = f" ({self.place.file}:{self.place.line}:{self.place.column})" if self.place else ""
        word = "accepted" if self.accepted else self.severity
        return f"{word}[{self.code}]{f' {self.path}' if self.path else ''}{place}"

    def _repr_html_(self) -> str:
        return notebook.render_card("Finding", _show_finding(self))


def _show_finding(finding: Finding) -> str:
    kind = "good" if finding.accepted else finding.severity.value
    more = f"because: {finding.accepted}" if finding.accepted else finding.remedy
    return notebook.render_finding(kind, finding.headline, finding.message, more)


def show_findings(findings: Sequence[Finding]) -> str:
    """Findings as HTML for a card of a notebook."""
    return "".join(map(_show_finding, findings))


def _tell_findings(findings: Sequence[Finding]) -> list[str]:
    """Findings as lines for a notebook that shows no HTML."""
    return [
        make_printable(line)
        for finding in findings
        for line in (f"{finding.headline}: {finding.message}", f"  = {finding.accepted or finding.remedy}")
    ]


def _add_notes(fault: Exception, findings: Sequence[Finding]) -> None:
    """Lets Python's traceback end with the place and the remedy of each finding."""
    for finding in findings:
        fault.add_note(make_printable(finding.headline))
        fault.add_note(make_printable(f"  = {finding.accepted or finding.remedy}"))


class Fault(Exception):
    """A refusal with a message, a remedy and an exit code.

    `message` and `remedy` may appear in any log. `private` says more (places and counts in a private file, what a
    module says of a record) and is shown in a terminal only, never in a log.
    """

    exit_code = 4

    def __init__(self, message: str, remedy: str = "", private: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.private = private
        if remedy:
            self.add_note(make_printable(f"  = {remedy}"))  # Python's traceback ends with it

    def _list_lines(self) -> list[str]:
        """Lists what a notebook shows instead of a traceback."""
        return [make_printable(line) for line in (self.message, f"  = {self.remedy}" if self.remedy else "") if line]

    def _render_traceback_(self) -> list[str]:
        """Returns lines for IPython: the user can mend it, and the place in our code that raised it does not help."""
        return [f"{type(self).__name__}:", *self._list_lines()]

    def _repr_html_(self) -> str:
        return notebook.render_card(
            type(self).__name__, notebook.render_finding("error", self.message, self.remedy, "")
        )


class RecipeError(Fault):
    """The recipe's text or structure is wrong. Exit code 1."""

    exit_code = 1

    def __init__(self, findings: Sequence[Finding], texts: Mapping[str, str] | None = None) -> None:
        self.findings = tuple(findings)
        self.texts = dict(texts or {})
        """The texts that the places point into, by `Place.file`; to show the lines."""
        super().__init__("\n".join(f"{f.code} {f.path}: {f.message}" for f in self.findings))
        _add_notes(self, self.findings)

    def _list_lines(self) -> list[str]:
        return _tell_findings(self.findings)

    def _repr_html_(self) -> str:
        return notebook.render_card("The recipe is not right", show_findings(self.findings))


class UsageFault(Fault):
    """The command was called wrongly. Exit code 2."""

    exit_code = 2


class PlanRefused(Fault):
    """The budget can't hold the plan, or the mathematics does not cover it. Exit code 3."""

    exit_code = 3

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("\n".join(f"{f.code} {f.path}: {f.message}" for f in self.findings))
        _add_notes(self, self.findings)

    def _list_lines(self) -> list[str]:
        return _tell_findings(self.findings)

    def _repr_html_(self) -> str:
        return notebook.render_card("The recipe has no plan", show_findings(self.findings))


class BudgetSpent(Fault):
    """The budget that the ledger leaves can't hold the next event. Exit code 3."""

    exit_code = 3


class CertificateInvalid(Fault):
    """A certificate does not verify; `failures` names each thing that does not hold. Exit code 3."""

    exit_code = 3

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = tuple(failures)
        super().__init__("the certificate does not verify:\n" + "\n".join(f"- {f}" for f in self.failures))

    def _list_lines(self) -> list[str]:
        return ["the certificate does not verify:", *(f"- {make_printable(line)}" for line in self.failures)]

    def _repr_html_(self) -> str:
        return notebook.render_card("The certificate does not verify", render_bullets(self.failures))


class DataFault(Fault):
    """A data file is missing or is not what the recipe declares. Exit code 4."""


class RunFailed(Fault):
    """The run could not continue; the ledger is kept. Exit code 4."""


class InternalFault(RunFailed):
    """The program is in a state that it must never be in: a bug of ours. Exit code 4."""

    def __init__(self, message: str) -> None:
        super().__init__(f"internal fault: {message}", "please report this")


class NothingLearned(RunFailed):
    """No model can be made of what a run has released. If that ends the run, its release has none. Exit code 4."""


class Interrupted(Fault):
    """The user stopped the run; it can be resumed. Exit code 130."""

    exit_code = 130


CODES: dict[str, str] = {
    "Y101": "the file can't be read",
    "Y102": "the file is too large",
    "Y103": "the file is not plain text",
    "Y104": "the YAML can't be read",
    "Y105": "a tab where YAML needs spaces",
    "Y106": "a key stands twice in one block",
    "Y107": "anchors and aliases are not part of the language",
    "Y108": "merge keys are not part of the language",
    "Y109": "tags and directives are not part of the language",
    "Y110": "more than one document in a file",
    "Y111": "a key that is not plain text",
    "Y112": "nested too deep",
    "Y113": "too many values",
    "Y114": "a number that is not finite",
    "Y115": "the document is not a block of keys",
    "Y116": "a text that holds a forbidden character",
    "Y117": "a no-break space where a space is needed",
    "Y118": "a colon without a space after it",
    "Y119": "a comma inside of a number",
    "Y120": "`extends` names no recipe that can be read",
    "Y121": "recipes that extend each other in a circle",
    "Y122": "a chain of `extends` that is too long",
    "Y130": "an override that can't be read",
    "Y131": "two overrides of one value",
    "Y132": "an override of something that is not there",
    "R101": "an unknown key",
    "R102": "a missing key",
    "R103": "a value of the wrong type",
    "R104": "an unknown kind",
    "R105": "a block that does not say its kind",
    "R106": "a word that is not one of the known ones",
    "R107": "a number out of range",
    "R108": "too few or too many items",
    "R109": "a text of the wrong form",
    "R111": "an unknown version of the language",
    "R112": "the name another tool uses",
    "R113": "a secret in a recipe",
    "R120": "a declared data file is absent",
    "R121": "a variable in a path",
    "R122": "a file of another kind than its source",
    "R123": "an acceptance of what is no warning",
    "R124": "an acceptance of what did not occur",
    "R199": "a value or a recipe that can't be checked",
    "R309": "a block or a command that needs a guarantee, of a recipe without one",
    "P110": "preprocessing that would be fitted to private data",
}
"""Codes of the language: `Y…` for YAML, `R…` for structure. A code, once given, keeps its meaning.

Each has a page `docs/reference/findings/<code>.md`. The privacy rules (`P…`) are in `dprecipe.planning.rules`; only
`P110` is here, because the language meets the data-dependent word before there is a recipe to check.
"""
