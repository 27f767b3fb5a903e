"""The plan: everything the runtime obeys, frozen, with every free variable solved.

After `plan`, no code reads the recipe's privacy fields. The digest covers all that can change what is learned or
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

from dprecipe.contract.stages import CostAlone, PaidStage, list_charges
from dprecipe.data.schema import Data
from dprecipe.faults import Finding
from dprecipe.language.audit import AuditBlock
from dprecipe.language.blocks import Release, Runtime
from dprecipe.language.training import Training
from dprecipe.language.tuning import Tuning, Value
from dprecipe.models.schema import Model, NoModel
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
    """The cap, and how costs are counted against it."""

    epsilon: float
    delta: float
    neighbouring: Neighbouring
    accountant: str
    account: str | None = None
    """The run's account, as the recipe names it."""
    held: Callable[[Sequence[Charge]], bool] | None = field(default=None, compare=False, repr=False)
    """Returns True if the run's reservation in that account covers these charges; None if nothing was reserved."""

    def holds(self, charges: Sequence[Charge]) -> bool:
        """Returns True if these charges together cost at most ε at δ and the account's reservation covers them."""
        from dprecipe.privacy import accountants

        terms = (self.delta, self.neighbouring, self.accountant)
        return self.is_reserved(charges) and accountants.epsilon(charges, *terms) <= self.epsilon

    def is_reserved(self, charges: Sequence[Charge]) -> bool:
        """Returns True if the reservation in the account covers these charges, or there is none. An amount that an
        earlier attempt gave back is planned, but no longer reserved."""
        return self.held is None or self.held(charges)


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a run, in integers: `steps` noisy updates, or queries; one nominal epoch is `steps_per_epoch`."""

    steps: int
    steps_per_epoch: int


def _reference(charge: Charge, info: SerializationInfo) -> dict[str, int]:
    """Returns a charge as JSON, with its event's place in the list of the plan's events, which holds the constants."""
    if not isinstance(info.context, dict):
        raise TypeError("charges are written with the list of the plan's events")
    return {"count": charge.count, "event": info.context[charge.event]}


class _ByPlace:
    """The pydantic serializer of charges, and their JSON Schema; pydantic need not know the event types."""

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
"""A charge as a field of a mechanism's plan. The plan's JSON holds each event once, in `events`."""


class UsualPlan:
    """The answers that most plans share: a base class. A plan overrides those that are not its own."""

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
    def has_one_norm(self) -> bool:
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
    """Returns the adapter that writes a mechanism's plans as JSON, and their JSON Schema, by their type's fields."""
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
    """(name, text): the accounting's view of other files that the recipe names, such as a codebook."""

    @property
    def digest(self) -> str:
        pairs = (*self.parents, *self.attachments)
        return digest_of([self.text, *self.overrides, *(part for pair in pairs for part in pair)])


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy that a recipe was checked against: its name, and the SHA-256 of its text (`sha256:…`)."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True)
class PlannedTuning:
    """The best of several runs: the one event that is charged, and what one run costs."""

    block: Tuning
    """The recipe's block `tuning`."""
    charge: Charge
    epsilon: float
    """Cost of one run, at the budget's δ, rounded up."""
    digest: str | None = None
    """Digest of the plan that the runs followed; None: of this plan, before any run."""
    resolved: Mapping[str, Any] | None = None
    """The resolved recipe of that plan; None: of this plan."""
    chosen: Mapping[str, Value] | None = None
    """The values of the released run; None until there is one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The work, the costs and the releases of a run."""

    name: str
    description: str
    source: RecipeSource
    resolved: Mapping[str, Any]
    """The recipe with every default filled in and `auto` as written, JSON types only."""
    mechanism_plan: MechanismPlan
    """The mechanism's own plan, in a type of its own."""
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
    """The paid steps of preprocessing, in order: they come before the mechanism's releases."""
    spending: tuple[CostAlone, ...] = ()
    """The cost that each stage, and the mechanism by itself, would have alone; empty where there is no stage."""
    tuning: PlannedTuning | None = None
    """The tuning, if the run is the best of several; `mechanism_plan` is then the plan of each of them."""
    audit: AuditBlock | None = None
    """The attack on the claim before the first private record; None: there is none."""
    policies: tuple[PolicyRecord, ...] = ()
    """The policies that the recipe keeps to. They change nothing in the run, so the digest leaves them out."""

    @property
    def mechanism(self) -> str:
        """The mechanism's kind."""
        return self.mechanism_plan.kind

    def as_plan_of(self, kind: type[P]) -> P:
        """Returns the mechanism's plan, in the type that its own modules read.

        Raises:
            TypeError: it is a plan of another mechanism.
        """
        if not isinstance(self.mechanism_plan, kind):
            raise TypeError(f"a plan of {self.mechanism} is not a {kind.__name__}")
        return self.mechanism_plan

    @property
    def events(self) -> tuple[Charge, ...]:
        """The charges of the run, in order: all that an accountant sees of it."""
        own = self.mechanism_plan.events if self.tuning is None else (self.tuning.charge,)
        return run_lengths((*self.stage_charges, *own)) if self.stages else own

    @property
    def stage_charges(self) -> tuple[Charge, ...]:
        """The charges of its stages, in order: before the mechanism's own, or once before the first of several runs."""
        return list_charges(self.stages)

    @property
    def indivisible(self) -> tuple[Charge, ...]:
        """The charges that a run pays after its stages once it begins, however it ends."""
        return self.mechanism_plan.indivisible if self.tuning is None else (self.tuning.charge,)

    @property
    def length(self) -> Length:
        """The length of the run."""
        return self.mechanism_plan.length

    @property
    def released(self) -> tuple[str, ...]:
        """The results that the run publishes."""
        own = self.mechanism_plan.released[0 if self.has_model else 1 :]
        stages = ("constants of preprocessing",) if self.stages else ()
        return (*own, *stages, *(("chosen hyper-parameters",) if self.tuning is not None else ()))

    @property
    def has_model(self) -> bool:
        """True if a model is released, and not labels alone."""
        return not isinstance(self.model, NoModel)

    @property
    def publishes_scores(self) -> bool:
        """True if held-out records are declared public: anything measured on them may be shown to anyone."""
        return self.data.test is not None and self.data.test.access == "public"

    @property
    def hides_duration(self) -> bool:
        """True if the run's duration reveals a secret number of runs, units or steps: no release or log states it."""
        return self.tuning is not None or self.data.hides_training_units or self.mechanism_plan.hides_duration

    @property
    def digest(self) -> str:
        """SHA-256 over all that decides what is learned and spent: the resolved recipe without its runtime, what it
        takes from other files, the solved values, the budget and the events. It has no sentence and nothing that
        follows from these, so every version computes the same. It leaves out the choice among several runs: the ledger
        names the plan before there is a choice."""
        if self.tuning is not None and self.tuning.digest is not None:
            return self.tuning.digest
        return digest_of(
            {
                "resolved": {key: value for key, value in self.resolved.items() if key != "runtime"},
                "attachments": dict(self.source.attachments),
                "solved": dict(self.solved),
                "budget": {"epsilon": self.budget.epsilon, "delta": self.budget.delta},
                "events": [charge.to_json() for charge in self.events],
            }
        )

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
        """Returns the fields of the mechanism's own plan."""
        places = _places(self.events if self.tuning is None else self.mechanism_plan.events)
        own = self.mechanism_plan
        return plan_adapter(type(own)).dump_python(own, mode="json", by_alias=True, context=places)

    def __repr__(self) -> str:
        return f"Plan({self.name}: {self.mechanism}, ε = {self.guarantee.epsilon:g} at δ = {self.budget.delta:g})"

    def _repr_html_(self) -> str:
        from dprecipe.contract.show import show_plan

        return show_plan(self)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as `dprecipe plan --format json` prints it (schema `dprecipe.plan/v1`)."""
        return {
            "schema": "dprecipe.plan/v1",
            "recipe": {"name": self.name, "digest": self.source.digest},
            "digest": self.digest,
            **self._content(),
            **({"policies": [asdict(policy) for policy in self.policies]} if self.policies else {}),
        }


def _places(charges: Iterable[Charge]) -> dict[Event, int]:
    """Returns the place of each event in a list of charges."""
    return {charge.event: place for place, charge in reversed([*enumerate(charges)])}  # the first one counts


def canonical_json(content: Any) -> str:
    """Writes one text for one value: sorted keys, no spaces, shortest floats, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest_of(content: Any) -> str:
    """Returns `sha256:…` of the canonical JSON."""
    return "sha256:" + hashlib.sha256(canonical_json(content).encode()).hexdigest()
