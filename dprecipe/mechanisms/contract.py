"""What a room fulfils: a schema, an account and a trainer.

- `schema.py`: a frozen model tagged by `kind`; structure only.
- `account.py`: `check` and `plan`, pure arithmetic: the events that a run will cause, every free variable solved.
- `train/run.py`, behind the wall: a `RUNNER` that runs exactly those events, through a gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from dprecipe.data.facts import facts as data_facts
from dprecipe.data.names import quoted
from dprecipe.data.schema import Data
from dprecipe.faults import Finding
from dprecipe.language.base import Block
from dprecipe.language.blocks import Budget
from dprecipe.language.training import Training
from dprecipe.libraries import importing
from dprecipe.mechanisms.plan import Assumption, Length
from dprecipe.models.schema import Model
from dprecipe.models.size import layer_sizes
from dprecipe.privacy.events import Charge
from dprecipe.privacy.rounding import down

if TYPE_CHECKING:
    from dprecipe.recipe.root import Recipe


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


@dataclass(frozen=True, slots=True)
class Mechanism:
    """What the trunk knows of a mechanism: its block of a recipe, and where its other parts are.

    Parts are imported when they are asked for, so that help and validation cost nothing, and torch stays behind the
    wall.
    """

    kind: str
    package: str
    block: type[Block]
    summary: str
    """What it does, in a line."""
    reads_files: bool = False
    """Whether `<package>.files` summarises files that the recipe names."""
    student: bool = False
    """Whether the model learns from public records and released labels, and not by noisy steps on private records."""
    hidden: bool = False
    """Whether it takes plain steps of its own on a convex loss and shows the last iterate alone: no optimiser."""
    several: bool = False
    """Whether several processes can run it together, compiled or in bf16: what `runtime` has for one mechanism."""
    relations: tuple[str, ...] = ("add_or_remove_one", "replace_one", "zero_out_one")
    """Which two data sets its guarantee can compare (`privacy.adjacency.Neighbouring`)."""

    @property
    def account(self) -> Account:
        """Its accounting."""
        return cast(Account, import_module(f"{self.package}.account"))

    def import_runner(self) -> object:
        """What carries its plans out, `RUNNER` of `<package>.train.run`: see `dprecipe.training.runner`. Imports torch.

        Raises:
            RunFailed: a library that it needs can't be imported.
        """
        with importing():
            runner: object = import_module(f"{self.package}.train.run").RUNNER
        return runner

    def read_attachments(self, recipe: Recipe, folder: Path) -> tuple[Mapping[str, str], list[Finding]]:
        """What the files that the recipe names say, as text, and what is wrong with them; most name none."""
        if not self.reads_files:
            return {}, []
        files = import_module(f"{self.package}.files")
        return cast("tuple[Mapping[str, str], list[Finding]]", files.attachments(recipe, folder))
