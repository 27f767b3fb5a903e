"""The request for a mechanism's audit and its answer: evidence, which no one has judged yet. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dprecipe.privacy.audit.results import AttackTrials, Depth, TestEvidence

if TYPE_CHECKING:
    from dprecipe.training.run.runner import PythonInputs


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """Choice of what is to be tried, and how hard."""

    depths: tuple[Depth, ...]
    steps: int
    """Number of steps of depth `steps`, with the canary and without it together."""
    releases: int
    """Number of whole runs of depth `releases`, with the canary and without it together."""
    confidence: float
    """Confidence of every lower bound."""
    show: Callable[[str, int, int], None] = lambda what, done, total: None
    """Called between parts of the work, often enough for Ctrl-C to be heard: what is being tried, and how much of it is
    done."""
    inputs: PythonInputs | None = None
    """Objects from Python that replace what the recipe names: of records only their form is read."""

    def asks(self, depth: Depth) -> bool:
        """Returns True if this depth is wanted."""
        return depth in self.depths


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Evidence of one test. Its level is decided when it is known how many tests share the error probability."""

    depth: Depth
    id: str
    text: str
    """Text of what is expected of a sound program."""
    evidence: TestEvidence
    choices: int = 1
    """Number of cases of which the evidence is the worst."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Counts of an attack that was fixed before its trials, and what the claim says of it."""

    depth: Depth
    id: str
    text: str
    trials: AttackTrials
    claimed: float | None = None
    """The largest μ or ε, by the claim; None of a rate."""
    delta: float | None = None
    """δ of a bound of ε."""
    curve: tuple[tuple[float, float], ...] | None = None
    """Points (ε, δ) of the claimed profile, for a bound of a rate."""
    of_step: bool = False
    """True: the bound is the μ of one step of a run of equal steps; what it implies of the run is stated, too."""


@dataclass(frozen=True, slots=True)
class AuditEvidence:
    """Findings of an audit of a program: nothing of them is judged."""

    tests: tuple[AuditFinding, ...] = ()
    attacks: tuple[Attack, ...] = ()
    remarks: tuple[str, ...] = ()
    """Parts that were left out, and why, in words."""

    @staticmethod
    def joined(parts: Iterable[AuditEvidence]) -> AuditEvidence:
        """Returns all of them, in order."""
        every = tuple(parts)
        return AuditEvidence(
            tuple(test for part in every for test in part.tests),
            tuple(attack for part in every for attack in part.attacks),
            tuple(dict.fromkeys(remark for part in every for remark in part.remarks)),
        )
