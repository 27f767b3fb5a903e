"""A mechanism's part of a certificate: everything in it that depends on the mechanism.

`release/` knows no mechanism. It asks the part of the plan's mechanism and puts the answers into the certificate, the
report and the model card. `verify` plans the certificate's own recipe and asks the same part again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dprecipe.contract.drawing import Figure
from dprecipe.contract.facts import Access, BudgetFacts, MechanismFacts, PrivacyUnit, Published
from dprecipe.contract.plan import Plan
from dprecipe.privacy.events import Charge, Event, count_events

F = TypeVar("F", bound=MechanismFacts)
"""The mechanism's block of a certificate."""
N = TypeVar("N")
"""Result of the accountants for the mechanism's own statement; None where it has none."""
P = TypeVar("P", bound=Published | None)
"""A run's publication about itself; None if there is none."""

NOISE_SCALE = {"noise_scale": "noise drawn by the gate has the planned distribution, scale and symmetry"}
"""The check that every mechanism has whose noise the gate draws."""
STAGE_NOISE = {"stage_noise": "noise of the paid steps of preprocessing has the planned distribution and scale"}
"""The check that every run with paid steps of preprocessing has, beside those of its mechanism."""
HIDDEN = (
    "the model before its last step: the claim holds against those who never see it, so private/ must stay private "
    "during the run and after it",
    "whether and when an attempt was interrupted: an attempt that continues or starts over is not charged again, which "
    "is sound only if crashes, and the decision to restart, do not depend on the records",
)
"""Limits of every claim that covers the last iterate alone."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report: rows of a table, a few large numbers with their labels, and a paragraph. Plain text."""

    title: str
    rows: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, str], ...] = ()
    text: str = ""


class CertificatePart(Protocol[F, N, P]):
    """A mechanism's part of the certificate. Pure functions of their arguments, without torch.

    The default methods fit a mechanism whose events are charged as planned and which states nothing beyond the claim.
    A mechanism that does more overrides them:

    - it computes numbers beyond the claim: `compute_numbers`, `read_numbers`, `check_numbers`, and `read_published`
      where they depend on what a run recorded about itself;
    - released results decide when the run ends, so its charges differ from the plan's: `is_adaptive`, `may_charge` and
      `check_charges`;
    - it releases further files: `list_companions`, `check_companion`.
    """

    facts: type[F]
    """The type of the certificate's block `mechanism`; its `kind` is the mechanism's."""
    progress: tuple[str, str] = ("step", "steps")
    """The unit in which a run counts its progress, singular and plural."""
    hides_iterates: bool = False
    """True if the claim covers the last iterate only, so that no earlier iterate may be released."""
    bounds: Mapping[str, str] = {}
    """The kind of bound that each of the mechanism's own accountants gives, by the accountant's name."""

    audit_tests: frozenset[str] = frozenset()
    """The tests that an audit of depth `program` always has."""

    # What the certificate states

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: N | None) -> F:
        """Returns the block `mechanism`: by default, the values of the mechanism's plan under the same names. A
        mechanism with numbers of its own takes them from `numbers`, without arithmetic on them: `verify` passes the
        stated ones."""
        return self.facts(**{name: getattr(plan.mechanism_plan, name) for name in self.facts.model_fields})

    @abstractmethod
    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        """Describes the protected unit, and how its protection is enforced."""

    @abstractmethod
    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        """Returns exactly the checks that a certificate of the plan lists, each with what it shows."""

    def list_unprotected(self, plan: Plan) -> Sequence[str]:
        """Lists what this mechanism's claim does not cover, beyond what no claim covers."""
        return HIDDEN if self.hides_iterates else ()

    def qualify_claim(self, plan: Plan, numbers: N | None) -> str:
        """Returns a qualification to append to the claim's sentence: empty, or starting with a space."""
        return ""

    def describe_training(self, plan: Plan) -> str:
        """Describes how the training records were used."""
        return "every use of the training records is one of the events"

    def describe_public_data(self, plan: Plan) -> Access | None:
        """Describes how public records were used; `None`: nothing is learned from them."""
        return None

    # Numbers beyond the claim

    def compute_numbers(self, plan: Plan, charges: Sequence[Charge], epsilon: float, published: P | None) -> N | None:
        """Computes the mechanism's own numbers, all rounded up. `epsilon` is the claimed one, `published` is what the
        run published.

        Raises:
            RunFailed: what was published was not charged, or the plan publishes nothing of the kind.
        """
        return None

    def read_numbers(self, facts: F) -> N | None:
        """Reads the mechanism's own numbers from a certificate."""
        return None

    def read_published(self, facts: F) -> P | None:
        """Reads from a certificate what the run published about itself."""
        return None

    def check_numbers(self, facts: F, plan: Plan, charges: Sequence[Charge], epsilon: float) -> list[str]:
        """Finds stated numbers that the events do not support; each line starts with the field's path."""
        return []

    # Charges and endings

    def count_steps(self, event: Event) -> int:
        """Counts the noisy steps that an event takes; 0: it is charged in addition to them."""
        return min(1, event.steps)

    def count_steps_charged(self, charges: Sequence[Charge]) -> int:
        """Counts the steps that these charges pay for."""
        return sum(charge.count * self.count_steps(charge.event) for charge in charges)

    def count_reservable(self, plan: Plan) -> int:
        """Counts the events (or steps) of the run; the gate reserves at most a fiftieth of them at once."""
        return count_events(plan.mechanism_plan.events)

    def is_adaptive(self, plan: Plan) -> bool:
        """Returns True if released results decide when the run ends, so that the run is charged a limit fixed in
        advance."""
        return False

    def may_charge(self, plan: Plan, event: Event) -> bool:
        """Returns True if a run of the plan can charge this event."""
        return any(event == charge.event for charge in plan.events)

    def check_charges(self, plan: Plan, charges: Sequence[Charge], budget: BudgetFacts) -> list[str]:
        """Finds contradictions between the charges of an adaptive run and the ending that it states."""
        return []

    def check_run(self, plan: Plan, facts: F, budget: BudgetFacts) -> list[str]:
        """Finds contradictions between the facts and any run of the plan."""
        return []

    def may_end_early(self, facts: F) -> bool:
        """Returns True if the run completed before its last planned step."""
        return False

    # Further files

    def list_companions(self, plan: Plan) -> frozenset[str]:
        """Returns the names of the files that a run releases beside the model's."""
        return frozenset()

    def check_companion(self, name: str, content: bytes, plan: Plan, facts: F, from_python: bool) -> list[str]:
        """Lists reasons why a file does not belong to this run. `content` is untrusted; `from_python`: records came
        from Python."""
        return []

    # Words for people

    @abstractmethod
    def describe_noise(self, facts: F) -> str:
        """Describes the noise in a few words: its family and its amount."""

    def format_steps(self, facts: F, steps: int) -> str:
        """Formats a number of steps for people."""
        return f"{steps:,}"

    def describe_run(self, plan: Plan, facts: F) -> str:
        """Describes how the model was trained, in Markdown; the text follows the model's name."""
        steps = f"{self.format_steps(facts, plan.length.steps)} {self.progress[1]}"
        return f", trained by `{facts.kind}` for {steps}, with\n{self.describe_noise(facts)}."

    def list_headlines(self, facts: F) -> Sequence[tuple[str, str]]:
        """Lists numbers to show beside the claim's, each with its label."""
        return ()

    def list_statements(self, facts: F) -> Sequence[tuple[str, str]]:
        """Lists the mechanism's statements beside the claim: a label and a text each."""
        return ()

    def list_sections(self, facts: F) -> Sequence[Section]:
        """Lists the mechanism's sections of a report."""
        return ()

    def list_figures(
        self, plan: Plan, facts: F, charges: Sequence[Charge], epsilon: float, profile: Sequence[float]
    ) -> Sequence[Figure]:
        """Lists the mechanism's figures of a report; `epsilon` is the claimed one, `profile` holds the values of ε at
        which δ is given."""
        return ()

    def list_checked(self, plan: Plan) -> Sequence[str]:
        """Lists what `verify` compared the charges with, beyond the events themselves."""
        return ()

    def list_notes(self, facts: F) -> Sequence[str]:
        """Lists the statements that `verify` takes as given."""
        return ()

    def list_companion_notes(self, names: frozenset[str]) -> Sequence[str]:
        """Lists the statements about the further files that `verify` takes as given."""
        return ()


def unit_of(plan: Plan, enforced_by: str) -> PrivacyUnit:
    """Returns the unit of the plan's recipe; `enforced_by` says what enforces its protection."""
    unit = plan.data.unit
    if unit == "record":
        return PrivacyUnit(max_records=1, enforced_by=enforced_by)
    return PrivacyUnit(noun=unit.name, column=unit.column, max_records=unit.max_records, enforced_by=enforced_by)


def compare_number(path: str, stated: float, recomputed: float) -> list[str]:
    """Compares a stated cost with the recomputed one. Returns a line that starts with the path for each contradiction.

    The recomputed cost must not exceed the stated one: there is no tolerance on the unsafe side. A larger stated one is
    a weaker claim: an earlier version, with another accountant, may have found no smaller bound.
    """
    if not recomputed <= stated:  # written so that NaN fails
        return [f"{path}: the events cost {recomputed!r}, more than the {stated!r} stated"]
    return []
