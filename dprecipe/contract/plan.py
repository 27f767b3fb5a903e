"""The plan: everything the runtime obeys, frozen, with every free variable solved.

After `plan` nobody reads the recipe's privacy fields. The digest covers all that can change what is learned or
spent; `runtime` is outside it, because speed knobs can't change privacy.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import SerializationInfo, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from dprecipe import notebook
from dprecipe.contract.stages import CostAlone, PaidStage, list_charges
from dprecipe.data.schema import Data
from dprecipe.faults import Finding, show_findings
from dprecipe.language.audit import AuditBlock
from dprecipe.language.blocks import Release, Runtime
from dprecipe.language.training import Training
from dprecipe.language.tuning import Tuning, Value
from dprecipe.models.schema import Model
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, run_lengths
from dprecipe.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from dprecipe.contract.mechanism import MechanismPlan

P = TypeVar("P", bound="MechanismPlan")

CheckedBy = Literal["code", "test", "declaration", "probe and declaration"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something the guarantee rests on, and what checks it."""

    id: str
    text: str
    checked_by: CheckedBy


@dataclass(frozen=True, slots=True)
class PlanBudget:
    """The cap, and how it is counted."""

    epsilon: float
    delta: float
    neighbouring: Neighbouring
    accountant: str
    account: str | None = None
    slots: str | None = None
    """The account that the run is charged to, as the recipe names it, and its group of slots, if the run takes such."""

    held: Callable[[Sequence[Charge]], bool] | None = field(default=None, compare=False, repr=False)
    """Whether the run's reservation in that account covers all these, too; None where nothing was reserved."""

    def holds(self, charges: Sequence[Charge]) -> bool:
        """Whether all these together cost at most ε at δ, and the reservation in the account covers them."""
        from dprecipe.privacy import accountants

        covered = self.is_reserved(charges)
        return covered and accountants.epsilon(charges, self.delta, self.neighbouring, self.accountant) <= self.epsilon

    def is_reserved(self, charges: Sequence[Charge]) -> bool:
        """Whether the reservation in the account covers all these: always, where there is none. What an earlier attempt
        gave back is planned, and no longer reserved."""
        return self.held is None or self.held(charges)


@dataclass(frozen=True, slots=True)
class Length:
    """How long the run is, in integers: `steps` noisy updates, or queries; one nominal epoch is `steps_per_epoch`."""

    steps: int
    steps_per_epoch: int


def _reference(charge: Charge, info: SerializationInfo) -> dict[str, int]:
    """A charge by the place of its event in the list of the plan's events, which holds its constants."""
    if not isinstance(info.context, dict):
        raise TypeError("charges are written with the list of the plan's events")
    return {"count": charge.count, "event": info.context[charge.event]}


class _ByPlace:
    """How pydantic writes a charge, and the JSON Schema of that; pydantic need not know the event types."""

    @staticmethod
    def __get_pydantic_core_schema__(source: object, handler: object) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(_reference, info_arg=True)
        return core_schema.is_instance_schema(Charge, serialization=written)

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: object) -> dict[str, Any]:
        place = {
            "type": "integer",
            "minimum": 0,
            "description": "its place in `events` (of a tuned run, in `base` of its event), from 0",
        }
        return {
            "type": "object",
            "properties": {"count": {"type": "integer", "minimum": 1}, "event": place},
            "required": ["count", "event"],
        }


Recorded = Annotated[Charge, _ByPlace]
"""A charge as a field of a mechanism's plan. The JSON of the plan has each event once, in `events`."""


class UsualPlan:
    """The answers that most plans share: a base class for them. Of one whose batches differ in size, or are sampled
    with a claim of amplification, the plan says so itself."""

    @property
    @abstractmethod
    def expected_batch(self) -> float: ...

    @property
    def largest_expected_batch(self) -> float:
        return self.expected_batch

    @property
    def sampling_rate(self) -> float | None:
        return None

    @property
    def indivisible(self) -> tuple[Charge, ...]:
        return ()

    @property
    def released(self) -> tuple[str, ...]:
        return ("final weights",)

    @property
    def max_batch_size(self) -> int | None:
        return None

    @property
    def hides_duration(self) -> bool:
        return False

    @property
    def copies(self) -> int:
        return 1

    @property
    def attachments(self) -> tuple[str, ...]:
        return ()

    @property
    def reads_training_records(self) -> bool:
        return True

    @property
    def identity(self) -> str | None:
        return None

    @property
    def epsilon_note(self) -> str:
        return ""


@lru_cache
def plan_adapter(kind: type[MechanismPlan]) -> TypeAdapter[MechanismPlan]:
    """What writes the JSON of a mechanism's plans, and its JSON Schema, both from the fields of their type."""
    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True)
class RecipeSource:
    """The texts a recipe came from, so that a stranger can read it again."""

    text: str
    file: str
    overrides: tuple[str, ...] = ()
    parents: tuple[tuple[str, str], ...] = ()
    """(name as written in `extends`, text), nearest first."""
    attachments: tuple[tuple[str, str], ...] = ()
    """(name, text): what the accounting needs to know of other files the recipe names, such as a codebook."""

    @property
    def digest(self) -> str:
        pairs = (*self.parents, *self.attachments)
        parts = [self.text, *self.overrides, *(part for pair in pairs for part in pair)]
        return digest_of(parts)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy that a recipe was held against: its name, and the SHA-256 of its text (`sha256:…`)."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class PlannedTuning:
    """The best of several runs: the one event that is charged, and what one run costs."""

    block: Tuning
    """What the recipe says of it."""
    charge: Charge
    epsilon: float
    """Of one run, at the budget's δ, rounded up."""
    digest: str | None = None
    """Of the plan by which the runs were made; None: of this one, before any run."""
    chosen: Mapping[str, Value] | None = None
    """The values of the run that is released; None before that."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the run will do, spend and release."""

    name: str
    description: str
    source: RecipeSource
    resolved: Mapping[str, Any]
    """The recipe with every default filled in and `auto` as written, JSON types only."""
    mechanism_plan: MechanismPlan
    """What the mechanism will do, in a type of its own."""
    solved: Mapping[str, float | int]
    guarantee: Guarantee
    budget: PlanBudget
    assumptions: tuple[Assumption, ...]
    data: Data
    model: Model
    training: Training
    release: Release
    runtime: Runtime = field(compare=False)
    warnings: tuple[Finding, ...] = ()
    stages: tuple[PaidStage, ...] = ()
    """The paid steps of preprocessing, in order: they come before what the mechanism releases."""
    spending: tuple[CostAlone, ...] = ()
    """What each stage, and the mechanism by itself, would cost alone; empty where there is no stage."""
    tuning: PlannedTuning | None = None
    """Where the run is the best of several; `room` is then what each of them does."""
    audit: AuditBlock | None = None
    """How the claim is attacked before the first private record; None: it is not."""
    policies: tuple[PolicyRecord, ...] = ()
    """The policies that the recipe keeps to. They change nothing of the run, so they are outside of the digest."""

    @property
    def mechanism(self) -> str:
        """Its kind."""
        return self.mechanism_plan.kind

    def as_plan_of(self, kind: type[P]) -> P:
        """What the mechanism will do, in the type that its own modules read.

        Raises:
            TypeError: it is a plan of another mechanism.
        """
        if not isinstance(self.mechanism_plan, kind):
            raise TypeError(f"a plan of {self.mechanism} is not a {kind.__name__}")
        return self.mechanism_plan

    @property
    def events(self) -> tuple[Charge, ...]:
        """What the run releases, in order: all that an accountant sees of it."""
        own = self.mechanism_plan.events if self.tuning is None else (self.tuning.charge,)
        return run_lengths((*self.stage_charges, *own)) if self.stages else own

    @property
    def stage_charges(self) -> tuple[Charge, ...]:
        """What its stages release, in order, once: before the mechanism's own events, or before the first of several
        runs."""
        return list_charges(self.stages)

    @property
    def indivisible(self) -> tuple[Charge, ...]:
        """What the run is charged after its stages whenever it begins, however it ends."""
        return self.mechanism_plan.indivisible if self.tuning is None else (self.tuning.charge,)

    @property
    def length(self) -> Length:
        """The length of the run."""
        return self.mechanism_plan.length

    @property
    def released(self) -> tuple[str, ...]:
        """What it publishes."""
        stages = ("constants of preprocessing",) if self.stages else ()
        chosen = ("chosen hyper-parameters",) if self.tuning is not None else ()
        return (*self.mechanism_plan.released, *stages, *chosen)

    @property
    def publishes_scores(self) -> bool:
        """Held-out records are declared public: what is measured on them may be shown to anyone."""
        return self.data.test is not None and self.data.test.access == "public"

    @property
    def hides_duration(self) -> bool:
        """How long the run takes tells of a number that is secret, of runs, of training units or of steps: no release
        and no log states it."""
        return self.tuning is not None or self.data.hides_training_units or self.mechanism_plan.hides_duration

    @property
    def digest(self) -> str:
        """SHA-256 over everything but the runtime and the texts' layout. What was chosen among several runs is not in
        it: the ledger names the plan before there is a choice."""
        if self.tuning is not None and self.tuning.digest is not None:
            return self.tuning.digest
        content = self._content()
        content["resolved"] = {key: value for key, value in self.resolved.items() if key != "runtime"}
        return digest_of(content)

    def _content(self) -> dict[str, Any]:
        return {
            "mechanism": self.mechanism,
            "solved": dict(self.solved),
            "steps": self.length.steps,
            "sampling_rate": self.mechanism_plan.sampling_rate,
            "events": [charge.to_json() for charge in self.events],
            "guarantee": self.guarantee.to_json(),
            "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
            "released": list(self.released),
            "assumptions": [asdict(assumption) for assumption in self.assumptions],
            **({"stages": [stage.to_json(_places(self.events)) for stage in self.stages]} if self.stages else {}),
            **({"spending": [asdict(part) for part in self.spending]} if self.spending else {}),
            "details": self._details(),
            **({} if self.tuning is None else {"one_run": {"epsilon": self.tuning.epsilon}}),
        }

    def _details(self) -> Any:
        """The fields of the mechanism's own plan."""
        places = _places(self.events if self.tuning is None else self.mechanism_plan.events)
        own = self.mechanism_plan
        return plan_adapter(type(own)).dump_python(own, mode="json", by_alias=True, context=places)

    def __repr__(self) -> str:
        budget = self.budget
        return f"Plan({self.name}: {self.mechanism}, ε = {self.guarantee.epsilon:g} at δ = {budget.delta:g})"

    def _repr_html_(self) -> str:
        return show_plan(self)

    def to_json(self) -> dict[str, Any]:
        """The plan as `dprecipe plan --format json` prints it (schema `dprecipe.plan/v1`)."""
        return {
            "schema": "dprecipe.plan/v1",
            "recipe": {"name": self.name, "digest": self.source.digest},
            "digest": self.digest,
            **self._content(),
            **({"policies": [asdict(policy) for policy in self.policies]} if self.policies else {}),
        }


def show_plan(plan: Plan) -> str:
    """A plan as a card of a notebook."""
    guarantee, budget = plan.guarantee, plan.budget
    protected = guarantee.neighbouring.words.format(unit=guarantee.unit)
    other = f"{guarantee.alternative_accountant} gives {guarantee.alternative_epsilon:g}"
    rows = [
        *((f"solved {path}", f"{value:g}") for path, value in plan.solved.items()),
        *plan.mechanism_plan.describe(),
        ("accountant", f"{guarantee.accountant}; {other}"),
        *((f"{part.name} alone", f"ε = {part.epsilon:g}") for part in plan.spending),
        ("releases", ", ".join(plan.released)),
        ("digest", plan.digest),
    ]
    assumptions = (f"{a.text} ({a.checked_by})" for a in plan.assumptions)
    return notebook.render_card(
        f"Plan of {plan.name}",
        notebook.render_text(plan.description, "soft"),
        notebook.render_numbers(
            [
                (f"ε = {guarantee.epsilon:g}", f"to be spent, of {budget.epsilon:g}{plan.mechanism_plan.epsilon_note}"),
                (f"δ = {budget.delta:g}", f"protects {protected}"),
                (f"{plan.length.steps:,}", f"steps or queries of {plan.mechanism}"),
            ]
        ),
        show_findings(plan.warnings),
        notebook.render_rows(rows),
        notebook.render_details("what the guarantee rests on", assumptions),
    )


def _places(charges: Iterable[Charge]) -> dict[Event, int]:
    """The place of each event in a list of charges."""
    return {charge.event: place for place, charge in reversed([*enumerate(charges)])}  # the first one counts


def canonical_json(content: Any) -> str:
    """One text for one value: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(content: Any) -> str:
    """`sha256:…` of the canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(content).encode()).hexdigest()
