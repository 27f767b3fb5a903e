"""What a room fulfils: a schema, an account and a trainer.

- `schema.py`: a frozen model tagged by `kind`; structure only.
- `account.py`: `check` and `plan`, pure arithmetic: the events that a run will cause, every free variable solved.
- `train.py`, behind the wall: a program that runs exactly those events, through a gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dprecipe.data.facts import facts as data_facts
from dprecipe.data.names import quoted
from dprecipe.data.schema import Data
from dprecipe.faults import Finding
from dprecipe.models.schema import Model
from dprecipe.models.size import layer_sizes
from dprecipe.planning.model import Assumption, Length
from dprecipe.privacy.events import Charge
from dprecipe.privacy.rounding import down
from dprecipe.recipe.root import Budget, Recipe
from dprecipe.recipe.training import Training


@dataclass(frozen=True, slots=True)
class Facts:
    """The public constants an account may use: all of them are written in the recipe."""

    size: int
    budget: Budget
    training: Training
    unit: str
    data: Data
    model: Model
    attachments: Mapping[str, str] = field(default_factory=dict)
    """What the recipe's files say, as text: see `planning.model.Source`."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Parameters of each layer of the model."""
        found = data_facts(self.data)
        return layer_sizes(self.model, found.shape, found.classes, found.vocabulary)

    @property
    def cap(self) -> float | None:
        """The budget's ε, `None` for `auto`; rounded down to the digits in which costs are reported, rounded up."""
        epsilon = self.budget.epsilon
        return None if epsilon == "auto" else down(epsilon)

    @staticmethod
    def of(recipe: Recipe, attachments: Iterable[tuple[str, str]] = ()) -> Facts:
        return Facts(
            recipe.data.size,
            recipe.budget,
            recipe.training,
            unit_name(recipe),
            recipe.data,
            recipe.model,
            dict(attachments),
        )


def unit_name(recipe: Recipe) -> str:
    """Who is protected, as the guarantee names it: a column's name in quotes."""
    unit = recipe.data.unit
    return "record" if unit == "record" else quoted(unit.column)


@dataclass(frozen=True, slots=True)
class MechanismPlan:
    """What a mechanism will do, with nothing left to be solved."""

    events: tuple[Charge, ...]
    settings: Mapping[str, Any]
    solved: Mapping[str, float | int]
    length: Length
    sampling_rate: float | None
    released: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Finding, ...] = ()
    """What could be seen only once everything was solved."""


class Account(Protocol):
    """The accounting half of a room."""

    def check(self, spec: Any, facts: Facts) -> list[Finding]:
        """What makes the mechanism impossible or unaccountable; cheap, reads no data."""

    def plan(self, spec: Any, facts: Facts) -> MechanismPlan:
        """Solve the free variable. Raises `PlanRefused` when the budget can't hold the plan."""
