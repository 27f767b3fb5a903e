"""The table of rooms: every mechanism, with its one-line help. A new mechanism is one line here.

`Mechanism` is the union of the rooms' schemas; a room's accounting and training are imported on use, so that
help and validation cost nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from dprecipe.libraries import importing
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.mechanisms.encoded.schema import Encoded
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.mechanisms.pnsgd.schema import Pnsgd

if TYPE_CHECKING:
    from dprecipe.faults import Finding
    from dprecipe.recipe.root import Recipe


@dataclass(frozen=True, slots=True)
class Room:
    """Where a mechanism lives (`<package>.account`, `<package>.train`) and what it does in a line."""

    package: str
    summary: str
    runner: str = "dprecipe.training.stepwise"
    """The module that carries a plan out: `prepare`, `attempt` and `rehearse`."""
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


ROOMS: dict[str, Room] = {
    "dpsgd": Room("dprecipe.mechanisms.dpsgd", "clip each record's gradient, add noise to the sum, step", several=True),
    "encoded": Room(
        "dprecipe.mechanisms.encoded",
        "clip each record's gradient rank by rank, add noise of any family, step by what stands out of it",
        reads_files=True,
    ),
    "pate": Room(
        "dprecipe.mechanisms.pate",
        "teachers on disjoint parts of the records vote; a student learns from their noisy votes on public ones",
        runner="dprecipe.mechanisms.pate.train",
        student=True,
    ),
    "pnsgd": Room(
        "dprecipe.mechanisms.pnsgd",
        "plain noisy steps on a convex loss, projected; nobody sees an iterate but the last",
        runner="dprecipe.mechanisms.pnsgd.train",
        hidden=True,
        relations=("replace_one", "zero_out_one"),
    ),
}

Mechanism = Annotated[Dpsgd | Encoded | Pate | Pnsgd, Field(discriminator="kind")]


def account_of(kind: str) -> Any:
    """The accounting half of a room (a module that fulfils `contract.Account`)."""
    return import_module(f"{ROOMS[kind].package}.account")


def trainer_of(kind: str) -> Any:
    """The training half of a room; imports torch."""
    with importing():
        return import_module(f"{ROOMS[kind].package}.train")


def runner_of(kind: str) -> Any:
    """What carries a room's plans out; imports torch.

    Raises:
        RunFailed: a library that it needs can't be imported.
    """
    with importing():
        return import_module(ROOMS[kind].runner)


def attachments_of(recipe: Recipe, folder: Path) -> tuple[Mapping[str, str], list[Finding]]:
    """What the files that the mechanism names say, as text, and what is wrong with them; most name none."""
    room = ROOMS[recipe.mechanism.kind]
    if not room.reads_files:
        return {}, []
    found: tuple[Mapping[str, str], list[Finding]] = import_module(f"{room.package}.files").attachments(recipe, folder)
    return found
