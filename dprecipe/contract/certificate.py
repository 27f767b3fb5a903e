"""A room's part of a certificate: everything in it that depends on the mechanism.

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
from dprecipe.privacy import rounding
from dprecipe.privacy.events import Charge, Event, count_events

F = TypeVar("F", bound=MechanismFacts)
"""The room's block of a certificate."""
N = TypeVar("N")
"""What accountants compute for the room's own statement; None where there is none."""
P = TypeVar("P", bound=Published | None)
"""What a run publishes about itself; None where it is nothing."""

NOISE_SCALE = {"noise_scale": "noise drawn by the gate has the planned distribution, scale and symmetry"}
"""The check of every mechanism whose noise the gate draws."""
STAGE_NOISE = {"stage_noise": "noise of the paid steps of preprocessing has the planned distribution and scale"}
"""The check of every run with paid steps of preprocessing, beside those of its mechanism."""
HIDDEN = (
    "the model before its last step: the claim holds against those who never see it, so private/ must stay private "
    "during the run and after it",
    "whether and when an attempt was interrupted: an attempt that continues or starts over is not charged again, which "
    "is sound only if crashes, and the decision to restart, do not depend on the records",
)
"""What no claim of the last iterate alone covers."""
LAST_DIGIT = 1.1e-5
"""One unit of the sixth significant digit, relative, at its largest."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report: rows of a table, a few large numbers with what each is, and a paragraph. Plain text."""

    title: str
    rows: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, str], ...] = ()
    text: str = ""


class CertificatePart(Protocol[F, N, P]):
    """A room's part of the certificate. Pure functions of their arguments, without torch.

    The default methods fit a mechanism whose events are charged as planned and which states nothing beyond the claim.
    A room that does more overrides them:

    - it computes numbers beyond the claim: `compute_numbers`, `read_numbers`, `check_numbers`, and `read_published`
      where they depend on what a run recorded about itself;
    - released results decide when the run ends, so its charges differ from the plan's: `is_adaptive`, `may_charge` and
      `check_charges`;
    - it releases further files: `list_companions`, `check_companion`.
    """

    facts: type[F]
    """The block `mechanism` of a certificate; its `kind` is the mechanism's."""
    progress: tuple[str, str] = ("step", "steps")
    """What a run counts, singular and plural."""
    hides_iterates: bool = False
    """Whether the claim covers the last iterate only, so that no earlier iterate may be released."""
    bounds: Mapping[str, str] = {}
    """The kind of bound that each of the mechanism's own accountants gives, by the accountant's name."""

    audit_tests: frozenset[str] = frozenset()
    """The tests that an audit of depth `program` always has."""

    # What the certificate states

    def describe_mechanism(self, plan: Plan, charges: Sequence[Charge], numbers: N | None) -> F:
        """The block `mechanism`: what the room's plan says under the same names. A room with numbers of its own takes
        them from `numbers`, without arithmetic on them: `verify` passes the stated ones."""
        return self.facts(**{name: getattr(plan.mechanism_plan, name) for name in self.facts.model_fields})

    @abstractmethod
    def describe_unit(self, plan: Plan) -> PrivacyUnit:
        """Who is protected, and what enforces it."""

    @abstractmethod
    def list_checks(self, plan: Plan) -> Mapping[str, str]:
        """Exactly the checks that a certificate of the plan lists, and what each shows."""

    def list_unprotected(self, plan: Plan) -> Sequence[str]:
        """What this mechanism's claim does not cover, beyond what no claim covers."""
        return HIDDEN if self.hides_iterates else ()

    def qualify_claim(self, plan: Plan, numbers: N | None) -> str:
        """A qualification appended to the claim's sentence; empty, or starting with a space."""
        return ""

    def describe_training(self, plan: Plan) -> str:
        """How the training records were used."""
        return "every use of the training records is one of the events"

    def describe_public_data(self, plan: Plan) -> Access | None:
        """How public records were used; `None`: nothing is learned from them."""
        return None

    # Numbers beyond the claim

    def compute_numbers(self, plan: Plan, charges: Sequence[Charge], epsilon: float, published: P | None) -> N | None:
        """The room's own numbers, all rounded up. `epsilon` is the claimed one, `published` is what the run published.

        Raises:
            RunFailed: what was published was not charged, or the plan publishes nothing of the kind.
        """
        return None

    def read_numbers(self, facts: F) -> N | None:
        """The room's own numbers as a certificate states them."""
        return None

    def read_published(self, facts: F) -> P | None:
        """What the run published about itself, as a certificate states it."""
        return None

    def check_numbers(self, facts: F, plan: Plan, charges: Sequence[Charge], epsilon: float) -> list[str]:
        """Stated numbers that the events do not support; each line starts with the field's path."""
        return []

    # Charges and endings

    def count_steps(self, event: Event) -> int:
        """Noisy steps that an event takes; 0: it is charged in addition to them."""
        return min(1, event.steps)

    def count_steps_charged(self, charges: Sequence[Charge]) -> int:
        """Steps that these charges pay for."""
        return sum(charge.count * self.count_steps(charge.event) for charge in charges)

    def count_reservable(self, plan: Plan) -> int:
        """Events (or steps) of the run; the gate reserves at most a fiftieth of them at once."""
        return count_events(plan.mechanism_plan.events)

    def is_adaptive(self, plan: Plan) -> bool:
        """Whether released results decide when the run ends, so that the run is charged a limit fixed in advance."""
        return False

    def may_charge(self, plan: Plan, event: Event) -> bool:
        """Whether a run of the plan can charge this event."""
        return any(event == charge.event for charge in plan.events)

    def check_charges(self, plan: Plan, charges: Sequence[Charge], budget: BudgetFacts) -> list[str]:
        """Contradictions between the charges of an adaptive run and the ending that it states."""
        return []

    def check_run(self, plan: Plan, facts: F, budget: BudgetFacts) -> list[str]:
        """Contradictions between the facts and any run of the plan."""
        return []

    def may_end_early(self, facts: F) -> bool:
        """Whether the run completed before its last planned step."""
        return False

    # Further files

    def list_companions(self, plan: Plan) -> frozenset[str]:
        """The names of the files that a run releases beside the model's."""
        return frozenset()

    def check_companion(self, name: str, content: bytes, plan: Plan, facts: F, from_python: bool) -> list[str]:
        """Why a file does not belong to this run. `content` is untrusted; `from_python`: records came from Python."""
        return []

    # Words for people

    @abstractmethod
    def describe_noise(self, facts: F) -> str:
        """The noise in a few words: its family and how much of it."""

    def format_steps(self, facts: F, steps: int) -> str:
        """A number of steps, formatted for people."""
        return f"{steps:,}"

    def describe_run(self, plan: Plan, facts: F) -> str:
        """How the model was trained, in Markdown; follows the model's name."""
        steps = f"{self.format_steps(facts, plan.length.steps)} {self.progress[1]}"
        return f", trained by `{facts.kind}` for {steps}, with\n{self.describe_noise(facts)}."

    def list_headlines(self, facts: F) -> Sequence[tuple[str, str]]:
        """Numbers beside the claim's, each with its label."""
        return ()

    def list_statements(self, facts: F) -> Sequence[tuple[str, str]]:
        """What the room states beside the claim: a label and a text each."""
        return ()

    def list_sections(self, facts: F) -> Sequence[Section]:
        """The room's parts of a report."""
        return ()

    def list_figures(
        self, plan: Plan, facts: F, charges: Sequence[Charge], epsilon: float, profile: Sequence[float]
    ) -> Sequence[Figure]:
        """The room's figures of a report; `epsilon` is the claimed one, `profile` holds the ε at which δ is given."""
        return ()

    def list_checked(self, plan: Plan) -> Sequence[str]:
        """What `verify` compared the charges with, beyond the events themselves."""
        return ()

    def list_notes(self, facts: F) -> Sequence[str]:
        """What `verify` takes as stated."""
        return ()

    def list_companion_notes(self, names: frozenset[str]) -> Sequence[str]:
        """What `verify` takes as stated of the further files."""
        return ()


def unit_of(plan: Plan, enforced_by: str) -> PrivacyUnit:
    """The unit of the plan's recipe, and what enforces its protection."""
    unit, name = plan.data.unit, plan.guarantee.unit
    if unit == "record":
        return PrivacyUnit(name=name, max_records=1, enforced_by=enforced_by)
    return PrivacyUnit(name=name, column=unit.column, max_records=unit.max_records, enforced_by=enforced_by)


def compare_number(path: str, stated: float, recomputed: float) -> list[str]:
    """Why a stated cost contradicts the recomputed one, starting with its path; empty if it does not.

    The recomputed cost must not exceed the stated one: there is no tolerance on the unsafe side. On the other side the
    tolerance is one unit of the last printed digit, so that no certificate can state a number this version would not
    print.
    """
    if not recomputed <= stated:  # written so that NaN fails
        return [f"{path}: the events cost {recomputed!r}, more than the {stated!r} stated"]
    if not stated <= rounding.round_up(recomputed) * (1 + LAST_DIGIT):
        return [f"{path}: {stated!r} stated, the events cost {recomputed!r}"]
    return []
